"""Check stream cuts against a stream's epochs; find head, tail and the segments between cuts.

See docs/protocol/controller.md#segments-and-stream-cuts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError
from tailrace.common.names import segment_epoch
from tailrace.controller.metadata.epochs import between, check_cut, epoch_span, successors
from tailrace.controller.metadata.policies import INT64_MAX
from tailrace.controller.workflows.context import segment_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.controller.metadata.model import Epoch, StreamSegment
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey, StreamStore
    from tailrace.controller.workflows.segments import SegmentOperations


class CutReader:
    """Answer requests about positions in a stream from its epochs."""

    def __init__(self, store: StreamStore, segments: SegmentOperations) -> None:
        self._store = store
        self._segments = segments

    async def segments(self, key: StreamKey, root: StreamRecord, *cuts: Mapping[int, int]) -> dict[int, StreamSegment]:
        """Return every segment of the epochs that the cuts span.

        Raises:
            BadRequestError: a cut names an epoch that the stream does not have.
        """
        found = await self._store.segments(key, root, _numbers(root, *cuts))
        await asyncio.sleep(0)  # callers compare with all of them next, some 50 ms for epochs of 10,000 segments
        return found

    async def named_segments(
        self, key: StreamKey, root: StreamRecord, *cuts: Mapping[int, int]
    ) -> dict[int, StreamSegment]:
        """Return every segment of the epochs in which those that the cuts name were created.

        Raises:
            BadRequestError: a cut names an epoch that the stream does not have.
        """
        _checked_span(root, cuts)
        numbers = sorted({segment_epoch(identifier) for cut in cuts for identifier in cut})
        found = await self._store.segments(key, root, numbers)
        await asyncio.sleep(0)  # as in `segments`
        return found

    async def check(self, key: StreamKey, root: StreamRecord, cut: Mapping[int, int]) -> dict[int, StreamSegment]:
        """Check that a cut is a position in the stream; return the segments of the epochs that it spans.

        Raises:
            BadRequestError: it is not; the message names the field ``cut``.
        """
        if not cut:
            raise BadRequestError("cut is empty")
        segments = await self.segments(key, root, cut)
        check_cut(cut, segments)
        return segments

    async def head(self, key: StreamKey, root: StreamRecord) -> dict[int, int]:
        """Return the head of the stream by its records."""
        if root.truncation is not None:
            return {identifier: max(offset, 0) for identifier, offset in root.truncation.items()}
        first = await self._store.epoch(key, root, 0)
        return {segment.identifier: 0 for segment in first.segments}

    async def head_offsets(self, key: StreamKey, root: StreamRecord) -> dict[int, int]:
        """Return the head of the stream: for each segment the later of its record and its start offset.

        A byte stream truncates its segment without the controller.
        """
        head = await self.head(key, root)
        starts = await self._segments.start_offsets([segment_name(key, identifier) for identifier in head])
        return {
            identifier: max(offset, start) for (identifier, offset), start in zip(head.items(), starts, strict=True)
        }

    async def between(
        self, key: StreamKey, root: StreamRecord, start: Mapping[int, int], end: Mapping[int, int]
    ) -> list[StreamSegment]:
        """Return the segments from `start` (empty: the head) to `end` (empty: the tail).

        Raises:
            BadRequestError: a cut is not valid, both are empty, or `start` lies after `end`.
            AnswerTooLargeError: there are too many for any answer, found before all of them are read.
        """
        if not start and not end:
            raise BadRequestError("from and to are both empty; give at least one")
        for cut in (start, end):
            if cut:
                await self.check(key, root, cut)
        first = start or await self.head(key, root)
        if not end:
            tail = await self._store.active_epoch(key, root)
            end = {segment.identifier: INT64_MAX for segment in tail.segments}
        found = await self._store.segments(key, root, _numbers(root, first, end), limits.SEGMENTS_BETWEEN_CUTS_MAX)
        await asyncio.sleep(0)  # as in `segments`
        return between(first, end, found)

    async def successors(
        self, key: StreamKey, root: StreamRecord, identifier: int
    ) -> list[tuple[StreamSegment, list[int]]]:
        """Return the successors of a segment, each with all its predecessors; empty for an active segment.

        Raises:
            NotFoundError: the stream never had the segment.
        """
        created = segment_epoch(identifier)
        first = await self._store.epoch(key, root, created)
        segment = first.find(identifier)
        if segment is None:
            raise NotFoundError(f"stream {key} has no segment {identifier}")
        replaced_in = await self._first_epoch_without(key, root, identifier, created)
        if replaced_in is None:
            return []
        before = await self._store.epoch(key, root, replaced_in.epoch - 1)
        return successors(segment, before, replaced_in)

    async def _first_epoch_without(
        self, key: StreamKey, root: StreamRecord, identifier: int, created: int
    ) -> Epoch | None:
        """Find the last epoch in which a segment is active. Its active epochs are consecutive."""
        low, high = created, root.active_epoch
        last = await self._store.epoch(key, root, high)
        if last.find(identifier) is not None:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if (await self._store.epoch(key, root, middle)).find(identifier) is None:
                high = middle
            else:
                low = middle
        return await self._store.epoch(key, root, high)


def _numbers(root: StreamRecord, *cuts: Mapping[int, int]) -> range:
    """Return the numbers of the epochs that the cuts span. Raises BadRequestError as `CutReader.segments`."""
    first, last = _checked_span(root, cuts)
    return range(first, last + 1)


def _checked_span(root: StreamRecord, cuts: Sequence[Mapping[int, int]]) -> tuple[int, int]:
    """Return the first and last epoch that the cuts span."""
    first, last = epoch_span(*cuts)
    if first < 0 or last > root.active_epoch:
        raise BadRequestError(
            f"cut names a segment of epoch {last}, but the stream's last epoch is {root.active_epoch}"
        )
    return first, last
