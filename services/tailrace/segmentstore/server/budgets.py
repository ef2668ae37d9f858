"""Bounds the bytes in flight: received bytes that wait for their commit, and their records (docs/design.md#admit).

The server does not read a connection above its share, nor any connection while all together are above the total. An
exception keeps small connections from starving: one with less than `limits.CONNECTION_IN_FLIGHT_FREE_BYTES` outstanding
is read until all together reach twice the total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Callable


class InFlightBudget:
    """The total of all connections of a server."""

    def __init__(self, max_bytes: int = limits.ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.outstanding_bytes = 0
        self._waiting: dict[ConnectionBudget, None] = {}
        self.on_room: Callable[[], None] | None = None
        """Called whenever bytes were released and `has_room`."""

    @property
    def has_room(self) -> bool:
        """Return whether all connections together are within the total."""
        return self.outstanding_bytes <= self.max_bytes

    @property
    def serves_small_shares(self) -> bool:
        """Return whether a connection with little outstanding is read."""
        return self.outstanding_bytes <= 2 * self.max_bytes

    def connection(self, on_room: Callable[[], None]) -> ConnectionBudget:
        """Return the share of a new connection; `on_room` is called once for each `must_wait` that returned True."""
        return ConnectionBudget(self, on_room)

    def wait(self, budget: ConnectionBudget) -> None:
        """Call the connection's `on_room` when there is room for it."""
        self._waiting[budget] = None

    def forget(self, budget: ConnectionBudget) -> None:
        """Remove a connection from the waiting ones."""
        self._waiting.pop(budget, None)

    def released(self, budget: ConnectionBudget, length_bytes: int) -> None:
        """Wake the connections that may be read again after `budget` released bytes."""
        if self.on_room is not None and self.has_room:
            self.on_room()
        if not self._waiting:
            return
        # Check all connections when the total allows it, or when small shares are served again. Otherwise check only
        # the one whose own share has changed.
        again = self.serves_small_shares and self.outstanding_bytes + length_bytes > 2 * self.max_bytes
        candidates = list(self._waiting) if again or self.has_room else [budget]
        for each in candidates:
            if each in self._waiting and each.may_resume:
                del self._waiting[each]
                each.on_room()


class ConnectionBudget:
    """The share of one connection."""

    __slots__ = ("_shared", "on_room", "outstanding_bytes")

    def __init__(self, shared: InFlightBudget, on_room: Callable[[], None]) -> None:
        self._shared = shared
        self.on_room = on_room
        self.outstanding_bytes = 0

    def charge(self, length_bytes: int) -> None:
        """Count bytes in."""
        self.outstanding_bytes += length_bytes
        self._shared.outstanding_bytes += length_bytes

    def must_wait(self) -> bool:
        """Return whether the connection must not be read for now; `on_room` is called when it may be read again."""
        shared = self._shared
        if self.outstanding_bytes <= limits.CONNECTION_IN_FLIGHT_FREE_BYTES and shared.serves_small_shares:
            return False
        if self.outstanding_bytes <= limits.CONNECTION_IN_FLIGHT_MAX_BYTES and shared.has_room:
            return False
        shared.wait(self)
        return True

    def release(self, length_bytes: int) -> None:
        """Count bytes out; this and other connections may be read again."""
        self.outstanding_bytes -= length_bytes
        self._shared.outstanding_bytes -= length_bytes
        self._shared.released(self, length_bytes)

    def close(self) -> None:
        """End the share of a closed connection; its bytes in flight are released as they complete."""
        self._shared.forget(self)

    @property
    def may_resume(self) -> bool:
        """Return whether reading may resume: a quarter below the limit, so that it does not stop at every append."""
        if self.outstanding_bytes < limits.CONNECTION_IN_FLIGHT_FREE_BYTES and self._shared.serves_small_shares:
            return True
        return self.outstanding_bytes <= limits.CONNECTION_IN_FLIGHT_MAX_BYTES * 3 // 4 and self._shared.has_room
