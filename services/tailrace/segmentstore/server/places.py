"""Gives newcomers the places of idle connections when all are taken (docs/operations/run.md#connections).

A connection is idle without a request that waits for its reply, a transient segment, or a writer that was ever set up.
Of the host with most connections the one that is idle for longest gives way, so a peer that opens connections and
leaves them takes places from itself alone. KeepAlive does not count as use.
"""

from __future__ import annotations

from typing import Protocol


class Guest(Protocol):
    """A connection as the places use it."""

    @property
    def peer(self) -> str:
        """Host of the client."""
        ...

    def give_up(self, reason: str) -> None:
        """Close the connection."""
        ...


class _Host:
    """The connections of one host. Those that are idle have the moment since when, earliest first."""

    __slots__ = ("connections", "idle")

    def __init__(self) -> None:
        self.connections = 0
        self.idle: dict[Guest, int] = {}


class Places:
    """The places of a server's connections: constant time for each request, time by hosts for each at the limit."""

    def __init__(self) -> None:
        self.taken = 0
        """Without connections that gave way and still close."""
        self._hosts: dict[str, _Host] = {}
        self._guests: dict[Guest, _Host] = {}
        self._moment = 0

    def join(self, guest: Guest) -> None:
        """Take a place for a new connection, which is idle."""
        host = self._hosts.setdefault(guest.peer, _Host())
        host.connections += 1
        self.taken += 1
        self._guests[guest] = host
        self.rests(guest)

    def leave(self, guest: Guest) -> None:
        """Free the place of a connection that ends. It may have left before."""
        host = self._guests.pop(guest, None)
        if host is None:
            return
        host.idle.pop(guest, None)
        host.connections -= 1
        self.taken -= 1
        if not host.connections:
            del self._hosts[guest.peer]

    def works(self, guest: Guest) -> None:
        """Record that a connection is not idle."""
        if (host := self._guests.get(guest)) is not None:
            host.idle.pop(guest, None)

    def rests(self, guest: Guest) -> None:
        """Record that a connection is idle from now on."""
        if (host := self._guests.get(guest)) is not None:
            self._moment += 1
            host.idle[guest] = self._moment

    def make_room(self, newcomer: Guest) -> bool:
        """Close the idle connection that gives way to a newcomer; return False when it is the newcomer itself."""
        idle = self._longest_idle()
        if idle is None or idle is newcomer:
            return False
        self.leave(idle)
        idle.give_up("all places are taken, and of the host with most connections this one is idle for longest")
        return True

    def _longest_idle(self) -> Guest | None:
        hosts = (host for host in self._hosts.values() if host.idle)
        most = max(hosts, key=lambda host: (host.connections, -next(iter(host.idle.values()))), default=None)
        return None if most is None else next(iter(most.idle))
