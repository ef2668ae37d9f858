"""Groups of tasks that all end when one fails or when the caller is cancelled.

Not asyncio.TaskGroup: in Python 3.11 it leaves its caller marked as cancelled after a failure, and loses a cancellation
that comes while it waits for its tasks, so that an interrupted command would continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tailrace.common import limits

T = TypeVar("T")
U = TypeVar("U")


async def run_all(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return the results of all, in order. The first failure cancels the others and is raised after they have ended."""
    tasks = [asyncio.ensure_future(one) for one in work]
    if not tasks:
        return []
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failures = [task.exception() for task in tasks if task in done and not task.cancelled()]
    finally:
        await _end(tasks)
    for failure in failures:
        if failure is not None:
            raise failure
    return [task.result() for task in tasks]


async def gather_bounded(items: Iterable[T], call: Callable[[T], Awaitable[U]]) -> list[U]:
    """Run at most SEGMENT_CALLS_CONCURRENT_MAX calls at a time; return their results in the order of the items.

    A failure cancels the other calls. The first failure in the order of the items is raised. There are as many tasks as
    calls at a time, however many items there are; a single call needs none.
    """
    chosen = list(items)
    if len(chosen) == 1:
        return [await call(chosen[0])]
    loop = asyncio.get_running_loop()
    left, results, failures = iter(enumerate(chosen)), dict[int, U](), dict[int, BaseException]()
    ended = loop.create_future()
    running = min(len(chosen), limits.SEGMENT_CALLS_CONCURRENT_MAX)

    async def work() -> None:
        nonlocal running
        try:
            for index, item in left:  # shared by all tasks
                try:
                    results[index] = await call(item)
                except asyncio.CancelledError:
                    raise
                except BaseException as error:  # any error ends the calls, and is raised below
                    failures[index] = error
                    raise
        finally:
            running -= 1
            if (failures or not running) and not ended.done():
                ended.set_result(None)

    tasks = [loop.create_task(work()) for _ in range(running)]
    if not tasks:
        return []
    try:
        await ended  # asyncio.wait would take a turn of the loop for each task
    finally:
        await _end(tasks)
    if failures:
        raise failures[min(failures)]
    for task in tasks:
        task.result()  # raises the cancellation of a call that was cancelled by itself
    return [results[index] for index in range(len(chosen))]


async def run_until_first(*work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of the first that ends, or raise its failure. The others are cancelled and have ended then."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        await _end(tasks)
    return ended[0].result()


@asynccontextmanager
async def running(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run work in the background while the block runs, then cancel it. Raises the failure of the work."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        await _end([task])
    if not task.cancelled():
        task.result()


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what still runs and wait for it. Failures during the cancellation are dropped."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
    for task in tasks:
        if not task.cancelled():
            task.exception()
