"""Callers that go away before their answer comes, as clients do that are disconnected."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable
from typing import TypeVar

from tailrace.common.errors import SegmentExistsError
from tailrace.segmentstore.api import SegmentContainer

T = TypeVar("T")
MARKER = "scope/marker/0"


class LeftError(Exception):
    """The caller went away before the answer came: what it asked for may happen or not."""


async def maybe_leave(work: Awaitable[T], rng: random.Random, chance: float) -> T:
    """Wait for an answer, or cancel the work at some moment. Raises LeftError."""
    if rng.random() > chance:
        return await work
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # its caller may be cancelled, too
    await asyncio.wait([task], timeout=rng.random() ** 3 * 0.1)
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        raise LeftError
    return task.result()


async def settled(container: SegmentContainer) -> None:
    """Wait until everything that was staged before is committed: a segment that exists is only refused then."""
    with contextlib.suppress(SegmentExistsError):
        await container.create_segment(MARKER)
