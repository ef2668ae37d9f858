"""Combine calls that wait for each other into one change of the records (docs/controller.md#how-a-change-happens)."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from tailrace.common.call_deadline import deadline_s, restart_deadline
from tailrace.common.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

K = TypeVar("K", bound="Hashable")
A = TypeVar("A")
R = TypeVar("R")


class _Waiting(NamedTuple, Generic[A, R]):
    argument: A
    result: asyncio.Future[R]


class CombinedCalls(Generic[K, A, R]):
    """Run calls of one key one batch after the other: what comes while a batch runs is in the next one.

    ``work`` gets a key and the arguments of a batch, ``most`` at most, and returns their results in order. If it fails,
    each call of the batch raises that error. A caller that is cancelled takes nothing from the others. The number of
    waiting calls is bounded by the number of running calls of the controller.
    """

    def __init__(self, work: Callable[[K, Sequence[A]], Awaitable[Sequence[R]]], most: int) -> None:
        self._work = work
        self._most = most
        self._waiting: dict[K, deque[_Waiting[A, R]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, key: K, argument: A) -> R:
        """Return the result for one argument.

        Raises what `work` raises, and UnavailableError when the deadline of the call ends before: a batch that has
        begun with it goes on.
        """
        loop = asyncio.get_running_loop()
        one: _Waiting[A, R] = _Waiting(argument, loop.create_future())
        queue = self._waiting.get(key)
        if queue is None:
            queue = self._waiting[key] = deque()
            task = loop.create_task(self._run(key, queue), name="combined calls")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        queue.append(one)
        ends_s = deadline_s()
        try:
            async with asyncio.timeout_at(ends_s if math.isfinite(ends_s) else None) as wait:
                return await one.result
        except TimeoutError as error:
            if not wait.expired():
                raise
            raise UnavailableError("the call ended while it waited for others of the same stream") from error

    async def _run(self, key: K, queue: deque[_Waiting[A, R]]) -> None:
        batch: list[_Waiting[A, R]] = []
        try:
            while queue:
                batch = [queue.popleft() for _ in range(min(len(queue), self._most))]
                batch = [one for one in batch if not one.result.done()]
                if batch:
                    await self._run_batch(key, batch)
        finally:
            del self._waiting[key]
            for one in (*batch, *queue):
                one.result.cancel()  # only after a cancellation of this task: all others have their results

    async def _run_batch(self, key: K, batch: Sequence[_Waiting[A, R]]) -> None:
        restart_deadline()  # else that of the first call would bound the requests of all later ones
        try:
            results = await self._work(key, [one.argument for one in batch])
        except Exception as error:  # any error is that of the calls, which raise it
            for one in batch:
                if not one.result.done():
                    one.result.set_exception(error)
            return
        for one, result in zip(batch, results, strict=True):
            if not one.result.done():
                one.result.set_result(result)
