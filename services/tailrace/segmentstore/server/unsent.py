"""Bounds the unsent replies of a server, all connections together (docs/design.md#memory-budgets).

Each connection has its own high-water mark, but a thousand connections that read nothing would hold a thousand times
that. So the bound counts unsent bytes of all connections, and the large replies that handlers make. Its upper half is
for connections that hold nothing yet. Small replies do not wait for large ones that handlers make, which can take as
long as Tier 2 does: while those fill the bound, small ones may take a quarter of it besides. Otherwise no reply begins
above it, but for the smallest (`REPLY_FREE_BYTES`) on connections that hold nothing. While connections wait for room,
or all hold more than the bound, those that hold unsent replies and take almost none are cut off, so that a peer that
stopped reading cannot block the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tailrace.common import limits

if TYPE_CHECKING:
    import asyncio


class Sender(Protocol):
    """The send side of a connection, as the bound uses it."""

    def unsent(self) -> tuple[int, int]:
        """Return the bytes that the peer has not taken, and all bytes ever passed to the transport."""
        ...

    def room_again(self) -> None:
        """Wake the waiters: there may be room again."""
        ...

    def cut_off(self, reason: str) -> None:
        """End the connection at once and drop what is unsent."""
        ...


class _Held:
    """What one connection holds, and how much it had taken at the last check for slow ones."""

    __slots__ = ("seen_taken", "unsent_bytes")

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.seen_taken = -1


class UnsentReplies:
    """The bound of a server. While others wait, or above it, a connection must take replies every ``look_s``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_bytes: int = limits.SEND_BUFFERS_MAX_BYTES,
        look_s: float = limits.SEND_PROGRESS_S,
    ) -> None:
        self._loop = loop
        self._max_bytes = max_bytes
        # Wake well below the bound, so that many waiters are not woken for one reply that fills it again.
        self._enough_bytes = max_bytes * 3 // 8
        self._enough_for_small_bytes = max_bytes * 3 // 4
        self._small_besides_bytes = max_bytes // 4
        self._look_s = look_s
        self._held: dict[Sender, _Held] = {}
        self._waiting: dict[Sender, bool] = {}
        """Each connection that waits, and whether for a small reply."""
        self._look: asyncio.TimerHandle | None = None
        self._reserved_bytes = 0
        self.total_bytes = 0

    def has_room(self, *, holds_nothing: bool) -> bool:
        """Return whether a connection may begin another large reply."""
        return self.total_bytes < (self._max_bytes if holds_nothing else self._max_bytes // 2)

    def has_room_for_small(self) -> bool:
        """Return whether a small reply may begin: also while the large ones that handlers make fill the bound."""
        return self.total_bytes < self._max_bytes or self._unsent_bytes < self._small_besides_bytes

    @property
    def _unsent_bytes(self) -> int:
        return self.total_bytes - self._reserved_bytes

    def reserve(self, length_bytes: int) -> None:
        """Count a reply of at most that size that a handler makes."""
        self._reserved_bytes += length_bytes
        self.total_bytes += length_bytes

    def release(self, length_bytes: int) -> None:
        """End the reservation: the reply is queued, or failed."""
        self._reserved_bytes -= length_bytes
        self.total_bytes -= length_bytes
        self._wake()

    def holds(self, sender: Sender, unsent_bytes: int) -> None:
        """Record how many unsent bytes the connection holds."""
        held = self._held.get(sender)
        if held is None:
            if not unsent_bytes:
                return
            held = self._held[sender] = _Held()
        change = unsent_bytes - held.unsent_bytes
        held.unsent_bytes = unsent_bytes
        self.total_bytes += change
        if not unsent_bytes:
            del self._held[sender]
        if change < 0:
            self._wake()
        elif self._unsent_bytes > self._max_bytes:
            self._begin_looking()

    def wait(self, sender: Sender, *, is_small: bool = False) -> None:
        """Call the connection's `room_again` when there may be room. `is_small`: for a small reply."""
        if not self._waiting:
            self._count_again(begins=self._look is None)
        self._waiting[sender] = is_small or self._waiting.get(sender, False)
        self._wake()
        if self._waiting:
            self._begin_looking()

    def forget(self, sender: Sender) -> None:
        """Remove a closed connection."""
        self._waiting.pop(sender, None)
        self.holds(sender, 0)
        self._stop_looking()

    def _wake(self) -> None:
        if not self._waiting:
            return
        large = self.total_bytes <= self._enough_bytes
        small = self.total_bytes <= self._enough_for_small_bytes or self._unsent_bytes < self._small_besides_bytes
        if not small:
            return  # nor is there room for large ones
        for sender in [sender for sender, is_small in self._waiting.items() if is_small or large]:
            del self._waiting[sender]
            sender.room_again()
        self._stop_looking()

    def _begin_looking(self) -> None:
        if self._look is None:
            self._look = self._loop.call_later(self._look_s, self._look_for_slow_ones)

    def _stop_looking(self) -> None:
        if self._look is not None and not self._waiting and self._unsent_bytes <= self._enough_bytes:
            self._look.cancel()
            self._look_ended()

    def _look_ended(self) -> None:
        self._look = None
        for held in self._held.values():
            held.seen_taken = -1

    def _count_again(self, *, begins: bool = True) -> list[tuple[int, Sender]]:
        """Count the unsent bytes, because small remainders leave without an event. Return the slow connections.

        `begins`: what each takes is counted from now on.
        """
        slow = []
        for sender, held in list(self._held.items()):
            unsent_bytes, handed_bytes = sender.unsent()
            taken_bytes = handed_bytes - unsent_bytes
            if held.seen_taken >= 0 and taken_bytes - held.seen_taken < min(
                limits.SEND_PROGRESS_MIN_BYTES, unsent_bytes
            ):
                slow.append((unsent_bytes, sender))
            if begins:
                held.seen_taken = taken_bytes
            self.holds(sender, unsent_bytes)
        return slow

    @property
    def _needs_room(self) -> bool:
        return bool(self._waiting) or self._unsent_bytes > self._max_bytes

    def _look_for_slow_ones(self) -> None:
        """Cut off the connections that took almost nothing since the last look, largest first, until there is room."""
        for unsent_bytes, sender in sorted(self._count_again(), key=lambda item: item[0], reverse=True):
            if not self._needs_room:
                break
            why = "while other connections wait" if self._waiting else "and all connections hold more than the bound"
            sender.cut_off(f"the peer does not take {unsent_bytes} bytes of replies {why}")
            self.holds(sender, 0)
        if self._needs_room:
            self._look = self._loop.call_later(self._look_s, self._look_for_slow_ones)
        else:
            self._look_ended()
