"""Ends connections that the server does not read, and whose peers are gone (docs/operations/run.md#connections).

An event loop learns of the end of a connection by reading. A connection whose append waits for room, or whose share of
a budget is used up, is not read; so it would stay, and all that it holds, until there is room. Its peer connects again
meanwhile, perhaps many times. So from time to time the state of such connections is looked up in the operating system.
Trying to read would show nothing: bytes that were not read come before the end.

A peer that only ended its sending counts as gone, as it does on a connection that is read. Clients do not do that.
"""

from __future__ import annotations

import itertools
import socket
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.common import limits

if TYPE_CHECKING:
    import asyncio

_ESTABLISHED: Final = 1  # the first byte of Linux's tcp_info is the connection's state


class Unread(Protocol):
    """A connection as the looks use it."""

    def end_if_peer_gone(self) -> bool:
        """Close the connection if its peer is gone; return whether it is."""
        ...


class GonePeers:
    """Looks at the connections of a server that are not read, a bounded number at a time, in turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unread: dict[Unread, None] = {}
        self._next_look: asyncio.TimerHandle | None = None

    def stopped(self, connection: Unread) -> None:
        """Look at a connection, until it is `resumed`."""
        self._unread[connection] = None
        if self._next_look is None:
            self._look_later()

    def resumed(self, connection: Unread) -> None:
        """Look no more at a connection that is read again. The timer stays: stops come and go with each append."""
        self._unread.pop(connection, None)

    def forget(self, connection: Unread) -> None:
        """Remove a closed connection."""
        self._unread.pop(connection, None)
        if not self._unread:
            self._look_no_more()

    def _look_no_more(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def _look_later(self) -> None:
        self._next_look = self._loop.call_later(limits.GONE_PEERS_LOOK_S, self._look)

    def _look(self) -> None:
        self._look_later()
        for connection in list(itertools.islice(self._unread, limits.GONE_PEERS_PER_LOOK_MAX)):
            del self._unread[connection]
            if not connection.end_if_peer_gone():
                self._unread[connection] = None  # behind all others
        if not self._unread:
            self._look_no_more()


def has_gone(transport: asyncio.Transport) -> bool:
    """Return whether the peer ended or reset the connection, or no longer answers the kernel's probes."""
    own = transport.get_extra_info("socket")
    if own is None:
        return True  # the connection under TLS is lost, which is passed on in the next turn of the event loop
    try:
        state: int = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return True  # the socket is closed
    return state != _ESTABLISHED
