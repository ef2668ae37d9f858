"""A queue of keys with due times: the earliest first, each key worked on by one worker at a time (ADR 0015)."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING, Generic, TypeVar

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import NoReturn

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """Keys that are due at a time of the event loop.

    A key is queued once, for the earliest time that it was added for. A key that is added while it is worked on is
    worked on again afterwards. ``work`` returns in how many seconds the key is due again; None: not before it is added
    again. ``work`` does not raise.
    """

    def __init__(self, work: Callable[[K], Awaitable[float | None]], workers: int = limits.OPERATOR_WORKERS) -> None:
        self._work = work
        self._slots = asyncio.Semaphore(workers)
        self._heap: list[tuple[float, int, K]] = []
        self._due_s: dict[K, float] = {}
        self._running: set[K] = set()
        self._numbers = itertools.count()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return how many keys are queued or worked on."""
        return len(self._due_s.keys() | self._running)

    def add(self, key: K, delay_s: float = 0.0) -> None:
        """Queue the key to be due in `delay_s` seconds, or keep its earlier time."""
        due_s = asyncio.get_running_loop().time() + delay_s
        if key in self._due_s and self._due_s[key] <= due_s:
            return
        self._due_s[key] = due_s
        if key not in self._running:
            self._push(key, due_s)

    def discard(self, key: K) -> None:
        """Remove a key from the queue."""
        self._due_s.pop(key, None)

    async def run(self) -> NoReturn:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._slots.acquire()
                key = await self._next()
                self._running.add(key)
                group.create_task(self._do(key))
        raise AssertionError("a group that is not cancelled does not end")

    async def _next(self) -> K:
        loop = asyncio.get_running_loop()
        while True:
            while self._heap and self._due_s.get(self._heap[0][2]) != self._heap[0][0]:
                heapq.heappop(self._heap)  # the key was added for an earlier time, or removed
            wait_s = self._heap[0][0] - loop.time() if self._heap else None
            if wait_s is not None and wait_s <= 0:
                _, _, key = heapq.heappop(self._heap)
                del self._due_s[key]
                return key
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _do(self, key: K) -> None:
        try:
            again_s = await self._work(key)
        finally:
            self._running.discard(key)
            self._slots.release()
        if key in self._due_s:
            self._push(key, self._due_s[key])
        if again_s is not None:
            self.add(key, again_s)

    def _push(self, key: K, due_s: float) -> None:
        heapq.heappush(self._heap, (due_s, next(self._numbers), key))
        self._changed.set()
