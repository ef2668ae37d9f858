"""Segment operations that may be repeated: the form in which workflows use them (design §10)."""

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
    """Results of the calls in the order of the items, a bounded number at a time.

    A failure cancels the rest; the first one in the order of the items is raised.
    """
    gate = asyncio.Semaphore(limits.SEGMENT_CALLS_CONCURRENT_MAX)

    async def guarded(item: T) -> U:
        async with gate:
            return await call(item)

    # not a TaskGroup: Python 3.11's leaves its caller marked as cancelled after a failure, and forgets a cancellation
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
    """Idempotent operations on many segments: done already counts as done."""

    def __init__(self, port: SegmentStorePort) -> None:
        self.port = port

    async def create(self, names: Sequence[str], config: StreamConfig) -> None:
        """Create segments that count what the scaling policy asks for."""

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
        """Tell segments what to count."""

        async def one(name: str) -> None:
            await self.port.update_policy(name, int(config.scaling.kind), config.scaling.target_rate)

        await gather_bounded(names, one)

    async def seal(self, names: Sequence[str]) -> list[int]:
        """Seal; returns the final lengths."""

        async def one(name: str) -> int:
            with contextlib.suppress(SegmentSealedError):  # by an earlier run of the same step
                await self.port.seal_segment(name)
            return (await self.port.segment_info(name)).length

        return await gather_bounded(names, one)

    async def truncate(self, offsets: Sequence[tuple[str, int]]) -> None:
        """Set start offsets; a segment that starts later already stays as it is."""

        async def one(item: tuple[str, int]) -> None:
            try:
                await self.port.truncate_segment(*item)
            except SegmentTruncatedError:
                if (await self.port.segment_info(item[0])).start_offset < item[1]:
                    raise

        await gather_bounded(offsets, one)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete."""

        async def one(name: str) -> None:
            try:
                await self.port.delete_segment(name)
            except NoSuchSegmentError:
                return

        await gather_bounded(names, one)

    async def delete_tables(self, names: Sequence[str]) -> None:
        """Delete table segments with what they hold."""

        async def one(name: str) -> None:
            try:
                await self.port.delete_table(name)
            except NoSuchSegmentError:
                return

        await gather_bounded(names, one)

    async def merge(self, targets: Sequence[tuple[str, Sequence[str]]]) -> list[int]:
        """Merge each target's sources in order; returns the targets' lengths.

        Only for transactions whose commit is decided: a source that is gone counts as merged.
        """

        async def one(item: tuple[str, Sequence[str]]) -> int:
            lengths = await self.port.merge_batch(item[0], item[1])
            return lengths[-1]

        return await gather_bounded(targets, one)

    async def lengths(self, names: Sequence[str]) -> list[int]:
        """Lengths, counted from offset 0."""

        async def one(name: str) -> int:
            return (await self.port.segment_info(name)).length

        return await gather_bounded(names, one)

    async def start_offsets(self, names: Sequence[str]) -> list[int]:
        """Start offsets; 0 for a segment that is gone."""

        async def one(name: str) -> int:
            try:
                return (await self.port.segment_info(name)).start_offset
            except NoSuchSegmentError:
                return 0

        return await gather_bounded(names, one)
