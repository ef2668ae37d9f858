"""A lock whose waiters follow each other within one turn of the event loop (docs/design.md#table-segments).

`asyncio.Lock` wakes one waiter for each turn of the loop. After one holder had to wait, a table's changes would queue
for good: each would take a turn of the loop, and a log frame, of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from types import TracebackType


class Turns:
    """A fair lock for sections that rarely wait; use it with ``async with``.

    A release wakes a batch of waiters, which run one after another, in order of arrival. When one of them waits inside
    its section, the rest of its batch waits again, still before later arrivals. Batches double while no section waits,
    and begin again with one waiter when one does: when all sections wait, each waiter is woken about once.
    """

    __slots__ = ("_again", "_batch", "_held", "_waiting", "_woken")

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._again: deque[asyncio.Future[None]] = deque()  # woken in vain: they precede those in `_waiting`
        self._woken = 0  # woken waiters that have not run yet
        self._batch = 1

    def locked(self) -> bool:
        """Return whether a caller would have to wait."""
        return self._held or bool(self._woken or self._again or self._waiting)

    async def __aenter__(self) -> None:
        """Wait until every earlier caller has left its section."""
        if self.locked():
            await self._wait()
        self._held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the section."""
        self._held = False
        self._wake()

    async def _wait(self) -> None:
        queue = self._waiting
        while True:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.append(future)
            if queue is self._again:
                self._wake()
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():  # woken and cancelled in the same turn
                    self._woken -= 1
                    self._wake()
                raise
            self._woken -= 1
            if not self._held and not self._again:
                return
            self._batch = 1
            queue = self._again

    def _wake(self) -> None:
        """Wake the next batch, unless a section runs or a woken waiter is about to."""
        if self._held or self._woken:
            return
        queue = self._waiting
        if self._again:
            queue.extendleft(reversed(self._again))
            self._again.clear()
        while queue and self._woken < self._batch:
            future = queue.popleft()
            if not future.done():
                future.set_result(None)
                self._woken += 1
        self._batch = min(self._batch * 2, limits.TABLE_TURNS_MAX) if queue else 1
