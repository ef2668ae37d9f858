"""Bounds the memory for large frames that a server receives, all connections together (docs/design.md#memory-budgets).

The pool promises room for whole frames. While connections wait for room, a started frame must make progress: a
connection that was promised room and sends almost nothing is cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tailrace.common import limits
from tailrace.wire.receiver import BufferPool, Receiver

if TYPE_CHECKING:
    import asyncio

    from tailrace.segmentstore.server.budgets import InFlightBudget


class Receiving(Protocol):
    """A connection as the bound uses it; the owner of its `Receiver`."""

    @property
    def is_read(self) -> bool:
        """Return whether the server reads it; otherwise the peer is not to blame for a slow frame."""
        ...

    def room_to_receive(self) -> bool:
        """Resume if there is room; return whether there was."""
        ...

    def cut_off(self, reason: str) -> None:
        """End the connection at once."""
        ...


class ReceiveRoom:
    """The receive buffers of a server. While others wait, a connection must make progress every ``look_s``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: BufferPool | None = None,
        look_s: float = limits.RECEIVE_PROGRESS_S,
    ) -> None:
        self._loop = loop
        self._look_s = look_s
        self._waiting: dict[Receiving, None] = {}
        self._oldest_next = True
        self._seen: dict[Receiver, tuple[int, int]] = {}
        self._look: asyncio.TimerHandle | None = None
        self.pool = pool or BufferPool()
        self.pool.on_room = self._wake_soon
        self._waking = False

    def bound_by(self, in_flight: InFlightBudget) -> None:
        """Let no large frame begin while too many received bytes are in flight."""
        self.pool.is_open = lambda: in_flight.has_room
        in_flight.on_room = self._wake_soon

    def wait(self, connection: Receiving) -> None:
        """Call the connection's `room_to_receive` when there may be room."""
        self._waiting[connection] = None
        if self._look is None:
            self._seen = self._received()
            self._look = self._loop.call_later(self._look_s, self._look_for_slow_ones)

    def forget(self, connection: Receiving) -> None:
        """Remove a closed connection."""
        self._waiting.pop(connection, None)
        self._stop_looking()

    def _wake_soon(self) -> None:
        if self._waiting and not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Serve the oldest and the newest waiter in turn.

        The oldest is not starved, and many connections that leave their room unused do not delay newer ones for long.
        """
        self._waking = False
        refused = False
        while self._waiting:
            connection = next(iter(self._waiting) if self._oldest_next else reversed(self._waiting))
            self._oldest_next = not self._oldest_next
            if connection.room_to_receive():
                self._waiting.pop(connection, None)
                refused = False
            elif refused:
                break
            else:
                refused = True
        self._stop_looking()

    def _stop_looking(self) -> None:
        if self._look is not None and not self._waiting:
            self._look.cancel()
            self._look = None
            self._seen = {}

    def _look_for_slow_ones(self) -> None:
        """Cut off connections without progress since the last check; in a deadlock, the one that waited longest."""
        slow, progressing = [], False
        for receiver in self.pool.promised:
            if not receiver.owner.is_read:
                continue
            if self._is_slow(receiver):
                slow.append(receiver.owner)
            else:
                progressing = True
        if not slow and not progressing:
            slow = [connection for connection in self._waiting if self._holds(connection)][:1]
        self._seen = self._received()
        self._look = self._loop.call_later(self._look_s, self._look_for_slow_ones)
        if not self.pool.is_open():
            return  # the connections wait for the server, not for each other
        for connection in slow:
            connection.cut_off("a large frame made no progress while other connections wait for receive buffers")

    def _received(self) -> dict[Receiver, tuple[int, int]]:
        return {receiver: (receiver.received_bytes, receiver.received_frames) for receiver in self.pool.promised}

    def _is_slow(self, receiver: Receiver) -> bool:
        """Return whether the frame that had room at the last check has made almost no progress since."""
        seen = self._seen.get(receiver)
        if seen is None or (receiver.received_frames != seen[1] and receiver.held_start < 0):
            return False  # frames that come while a block waits for its end do not end it
        return receiver.received_bytes - seen[0] < limits.RECEIVE_PROGRESS_MIN_BYTES

    def _holds(self, connection: Receiving) -> bool:
        return any(receiver.owner is connection for receiver in self.pool.promised)
