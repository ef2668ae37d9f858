"""A queue of keys with due times: the earliest first, each key worked on by one worker at a time (ADR 0015)."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable
    from typing import NoReturn

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """Keys that are due at a time of the event loop.

    A key is queued once, for the earliest time that it was added for. A key that is added while it is worked on is
    worked on again afterwards. ``work`` returns in how many seconds the key is due again; None: not before it is added
    again. ``work`` does not raise. ``group_of`` is asked when a key is due: at most ``group_max`` keys of a group are
    worked on at a time, and the others wait for these; None: the key is of no group. While keys of several groups are
    worked on, the last free worker takes only one of another group or of none. So two groups of slow keys do not delay
    the first key of a third one.
    """

    def __init__(
        self,
        work: Callable[[K], Awaitable[float | None]],
        workers: int = limits.OPERATOR_WORKERS,
        group_of: Callable[[K], Hashable | None] = lambda _: None,
        group_max: int = limits.OPERATOR_CLUSTER_WORKERS,
    ) -> None:
        self._work = work
        self._group_of = group_of
        self._group_max = group_max
        self._workers = workers
        self._slots = asyncio.Semaphore(workers)
        self._heap: list[tuple[float, int, K]] = []
        self._due_s: dict[K, float] = {}
        self._running: dict[K, Hashable | None] = {}
        """Keys that are worked on, with their groups."""
        self._busy: Counter[Hashable] = Counter()
        """By group: how many of its keys are worked on."""
        self._held: dict[Hashable, list[tuple[float, int, K]]] = {}
        """By group: a heap of entries that were due while the group might have no more keys worked on."""
        self._numbers = itertools.count()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return how many keys are queued or worked on."""
        return len(self._due_s.keys() | self._running.keys())

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
        self._let_held()  # the removed one was let go in place of another

    async def run(self) -> NoReturn:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._slots.acquire()
                group.create_task(self._do(await self._next()))
        raise AssertionError("a group that is not cancelled does not end")

    async def _next(self) -> K:
        """Return the next key that is due and whose group may have one more; count it as worked on."""
        loop = asyncio.get_running_loop()
        while True:
            while self._heap and self._due_s.get(self._heap[0][2]) != self._heap[0][0]:
                heapq.heappop(self._heap)  # the key was added for an earlier time, or removed
            wait_s = self._heap[0][0] - loop.time() if self._heap else None
            if wait_s is not None and wait_s <= 0:
                entry = heapq.heappop(self._heap)
                key = entry[2]
                group = self._group_of(key)
                if not self._may_begin(group):
                    heapq.heappush(self._held.setdefault(group, []), entry)
                    continue
                del self._due_s[key]
                self._running[key] = group
                self._busy[group] += 1
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
            self._leave(self._running.pop(key))
            self._slots.release()
        if key in self._due_s:
            self._push(key, self._due_s[key])
        if again_s is not None:
            self.add(key, again_s)

    def _leave(self, group: Hashable | None) -> None:
        self._busy[group] -= 1
        if not self._busy[group]:
            del self._busy[group]
        # Also of other groups: the group of a key that is held may be another one by now, and end none of its own.
        self._let_held()

    def _may_begin(self, group: Hashable | None) -> bool:
        """Return whether a free worker may take a key of the group."""
        if group is None or not self._busy[group]:
            return True
        if self._busy[group] >= self._group_max:
            return False
        return self._workers - len(self._running) > 1 or self._busy.keys() <= {group, None}

    def _let_held(self) -> None:
        """Let one key be due again of each group that may have one more."""
        for group in [group for group in self._held if self._may_begin(group)]:
            self._let_next(group)

    def _let_next(self, group: Hashable | None) -> None:
        """Let the first key that its group held up be due again."""
        held = self._held.get(group)
        while held:
            due_s, _, key = heapq.heappop(held)
            if self._due_s.get(key) == due_s:
                self._push(key, due_s)
                break
        if held is not None and not held:
            del self._held[group]

    def _push(self, key: K, due_s: float) -> None:
        heapq.heappush(self._heap, (due_s, next(self._numbers), key))
        self._changed.set()
