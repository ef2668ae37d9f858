"""Segment operations that workflows can repeat (docs/design.md#controller)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from tailrace.common import limits
from tailrace.common.errors import NoSuchSegmentError, SegmentExistsError, SegmentSealedError, SegmentTruncatedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from tailrace.common.stream_policies import StreamConfig
    from tailrace.controller.metadata.ports import SegmentStorePort

T = TypeVar("T")
U = TypeVar("U")


async def gather_bounded(items: Iterable[T], call: Callable[[T], Awaitable[U]]) -> list[U]:
    """Run a bounded number of calls at a time; return their results in the order of the items.

    A failure cancels the other calls. The first failure in the order of the items is raised.
    """
    gate = asyncio.Semaphore(limits.SEGMENT_CALLS_CONCURRENT_MAX)

    async def guarded(item: T) -> U:
        async with gate:
            return await call(item)

    # not a TaskGroup: in Python 3.11 it marks its caller as cancelled after a failure, and drops a cancellation
    tasks = [asyncio.ensure_future(guarded(item)) for item in items]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        failures = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if failures:
        raise failures[0]
    return [task.result() for task in tasks]


class SegmentOperations:
    """Idempotent operations on many segments: an operation that was done before succeeds."""

    def __init__(self, port: SegmentStorePort) -> None:
        self.port = port

    async def create(self, names: Sequence[str], config: StreamConfig) -> None:
        """Create segments that measure the rate of the scaling policy."""

        async def one(name: str) -> None:
            try:
                await self.port.create_segment(
                    name,
                    scale_type=int(config.scaling.kind),
                    target_rate=config.scaling.target_rate,
                    rollover_bytes=config.rollover_bytes,
                )
            except SegmentExistsError:
                return

        await gather_bounded(names, one)

    async def create_tables(self, names: Sequence[str], key_length: int) -> None:
        """Create table segments."""

        async def one(name: str) -> None:
            try:
                await self.port.create_table(name, key_length)
            except SegmentExistsError:
                return

        await gather_bounded(names, one)

    async def update_policy(self, names: Sequence[str], config: StreamConfig) -> None:
        """Change the rate that segments measure."""

        async def one(name: str) -> None:
            await self.port.update_policy(name, int(config.scaling.kind), config.scaling.target_rate)

        await gather_bounded(names, one)

    async def seal(self, names: Sequence[str]) -> list[int]:
        """Seal segments; return their final lengths."""

        async def one(name: str) -> int:
            with contextlib.suppress(SegmentSealedError):  # by an earlier run of the same step
                await self.port.seal_segment(name)
            return (await self.port.segment_info(name)).length

        return await gather_bounded(names, one)

    async def truncate(self, offsets: Sequence[tuple[str, int]]) -> None:
        """Set start offsets. A segment with a later start offset keeps it."""

        async def one(item: tuple[str, int]) -> None:
            try:
                await self.port.truncate_segment(*item)
            except SegmentTruncatedError:
                if (await self.port.segment_info(item[0])).start_offset < item[1]:
                    raise

        await gather_bounded(offsets, one)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete segments."""

        async def one(name: str) -> None:
            try:
                await self.port.delete_segment(name)
            except NoSuchSegmentError:
                return

        await gather_bounded(names, one)

    async def delete_tables(self, names: Sequence[str]) -> None:
        """Delete table segments and their contents."""

        async def one(name: str) -> None:
            try:
                await self.port.delete_table(name)
            except NoSuchSegmentError:
                return

        await gather_bounded(names, one)

    async def merge(self, targets: Sequence[tuple[str, Sequence[str]]]) -> list[int]:
        """Merge each target's sources in order; return the targets' lengths.

        Only for transactions whose commit is decided: a missing source counts as merged.
        """

        async def one(item: tuple[str, Sequence[str]]) -> int:
            lengths = await self.port.merge_batch(item[0], item[1])
            return lengths[-1]

        return await gather_bounded(targets, one)

    async def lengths(self, names: Sequence[str]) -> list[int]:
        """Return lengths, counted from offset 0."""

        async def one(name: str) -> int:
            return (await self.port.segment_info(name)).length

        return await gather_bounded(names, one)

    async def start_offsets(self, names: Sequence[str]) -> list[int]:
        """Return start offsets; 0 for a missing segment."""

        async def one(name: str) -> int:
            try:
                return (await self.port.segment_info(name)).start_offset
            except NoSuchSegmentError:
                return 0

        return await gather_bounded(names, one)
