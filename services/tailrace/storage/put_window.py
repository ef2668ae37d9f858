"""How many puts a process may run at a time: frames of its object logs, uploads to Tier 2.

Puts share the way to the store. When it is too slow for all of them, they miss their deadlines together, and each
starts again from its first byte: nothing would ever be stored. So fewer run at a time until those have their answers
in time (docs/design.md#faults-of-the-log).

Small puts take no part: they need no slot, so that none of them waits for large ones that do not get through, and what
becomes of them says nothing of large ones.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import DeadlineError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class RequestWindow:
    """Slots for requests; each that ends well makes them one more, one that fails as `halved_by` says halves them."""

    def __init__(self, slots_max: int, halved_by: type[UnavailableError]) -> None:
        self._slots_max = slots_max
        self._halved_by = halved_by
        self._size = slots_max
        self._running = 0
        self._begun = 0
        self._begun_before = 0
        """How many had begun when the slots were halved: their failures are of that size, and halve no more."""
        self._turns = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """Requests that wait for a slot, by turn."""

    @property
    def size(self) -> int:
        """Return how many requests may run at a time."""
        return self._size

    @property
    def full(self) -> bool:
        """Return whether one more request would wait."""
        return self._running >= self._size

    def turn(self) -> int:
        """Return the next turn. Lower turns get slots first: one kept for several attempts goes before later ones."""
        return next(self._turns)

    @asynccontextmanager
    async def request(self, turn: int | None = None) -> AsyncIterator[None]:
        """Run a request as soon as it has a slot; requests have deadlines, so slots get free. `turn` None: the next."""
        await self._enter(self.turn() if turn is None else turn)
        number = self._begun
        self._begun += 1
        try:
            yield
            self._size = min(self._size + 1, self._slots_max)
        except self._halved_by:
            if number >= self._begun_before:
                self._size = max(1, min(self._size, self._running) // 2)
                self._begun_before = self._begun
            raise
        finally:
            self._leave()

    async def _enter(self, turn: int) -> None:
        if self._running < self._size:  # then none waits
            self._running += 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = granted
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self._leave()
            raise
        finally:
            self._waiting.pop(turn, None)

    def _leave(self) -> None:
        self._running -= 1
        while self._waiting and self._running < self._size:
            granted = self._waiting.pop(min(self._waiting))
            if not granted.done():
                self._running += 1
                granted.set_result(None)


class PutWindow(RequestWindow):
    """Slots for puts; one without an answer in time halves them."""

    def __init__(self, slots_max: int) -> None:
        super().__init__(slots_max, DeadlineError)
        self._report_at_s = float("-inf")

    @asynccontextmanager
    async def slot(self, length_bytes: int, turn: int | None = None) -> AsyncIterator[None]:
        """Run a put as soon as it has a slot. `turn` None: the next one."""
        if length_bytes <= limits.STORAGE_SMALL_PUT_BYTES:
            yield
            return
        async with self.request(turn):
            yield

    def may_report(self, now_s: float) -> bool:
        """Return whether to log that a frame is not stored: once in ``limits.LOG_OBJECT_PUT_REPORT_S``."""
        if now_s < self._report_at_s:
            return False
        self._report_at_s = now_s + limits.LOG_OBJECT_PUT_REPORT_S
        return True
