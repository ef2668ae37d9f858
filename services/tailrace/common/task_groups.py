"""Several pieces of work at a time, all of which end when one fails or when the caller is cancelled.

Not a TaskGroup: Python 3.11's leaves its caller marked as cancelled after a failure, and forgets a cancellation that
comes while it waits for its tasks; a command that was interrupted would go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any


async def all_of(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Results of all, in order. The first failure cancels the others and is raised when they have ended, too."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failures = [task.exception() for task in tasks if task in done and not task.cancelled()]
    finally:
        await _end(tasks)
    for failure in failures:
        if failure is not None:
            raise failure
    return [task.result() for task in tasks]


async def first_of(*work: Coroutine[Any, Any, Any]) -> Any:
    """The result of the first that ends, or its failure; the others are cancelled, and have ended then."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        await _end(tasks)
    return ended[0].result()


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Something that goes on while the block runs, and is cancelled at its end; raises what it failed with."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        await _end([task])
    if not task.cancelled():
        task.result()


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what still runs and wait for it; what fails meanwhile is not what the caller has to hear of."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
