"""Stream cuts against a stream's stored epochs: validity, head and tail, what lies between (controller §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common.errors import BadRequestError, NotFoundError
from tailrace.common.names import segment_epoch
from tailrace.controller.metadata.epochs import between, check_cut, epoch_span, segments_of, successors
from tailrace.controller.metadata.policies import INT64_MAX
from tailrace.controller.workflows.context import segment_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.controller.metadata.model import Epoch, StreamSegment
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey, StreamStore
    from tailrace.controller.workflows.segments import SegmentOperations


class CutReader:
    """Questions about positions in a stream, answered from its epochs."""

    def __init__(self, store: StreamStore, segments: SegmentOperations) -> None:
        self._store = store
        self._segments = segments

    async def segments(self, key: StreamKey, root: StreamRecord, *cuts: Mapping[int, int]) -> dict[int, StreamSegment]:
        """Every segment of the epochs that the cuts span.

        Raises:
            BadRequestError: a cut names an epoch that the stream does not have.
        """
        first, last = epoch_span(*cuts)
        if first < 0 or last > root.active_epoch:
            raise BadRequestError(f"cut names epoch {last}, the stream's last one is {root.active_epoch}")
        return segments_of(await self._store.epochs(key, root, first, last))

    async def check(self, key: StreamKey, root: StreamRecord, cut: Mapping[int, int]) -> dict[int, StreamSegment]:
        """The segments of the epochs that a cut spans, if it is a position in the stream.

        Raises:
            BadRequestError: it is not; the message names the field ``cut``.
        """
        if not cut:
            raise BadRequestError("cut is empty")
        segments = await self.segments(key, root, cut)
        check_cut(cut, segments)
        return segments

    async def head(self, key: StreamKey, root: StreamRecord) -> dict[int, int]:
        """Where the stream begins by the records."""
        if root.truncation is not None:
            return {identifier: max(offset, 0) for identifier, offset in root.truncation.items()}
        first = await self._store.epoch(key, root, 0)
        return {segment.identifier: 0 for segment in first.segments}

    async def head_offsets(self, key: StreamKey, root: StreamRecord) -> dict[int, int]:
        """Where the stream begins: a byte stream truncates its segment without the controller, so the later of record
        and segment start counts (issue part 6)."""
        head = await self.head(key, root)
        starts = await self._segments.start_offsets([segment_name(key, identifier) for identifier in head])
        return {
            identifier: max(offset, start) for (identifier, offset), start in zip(head.items(), starts, strict=True)
        }

    async def between(
        self, key: StreamKey, root: StreamRecord, start: Mapping[int, int], end: Mapping[int, int]
    ) -> list[StreamSegment]:
        """Segments from `start` (empty: the head) to `end` (empty: the tail).

        Raises:
            BadRequestError: a cut is not valid, both are empty, or `start` lies after `end`.
        """
        if not start and not end:
            raise BadRequestError("from and to are both empty")
        for cut in (start, end):
            if cut:
                await self.check(key, root, cut)
        first = start or await self.head(key, root)
        if not end:
            tail = await self._store.active_epoch(key, root)
            end = {segment.identifier: INT64_MAX for segment in tail.segments}
        return between(first, end, await self.segments(key, root, first, end))

    async def successors(
        self, key: StreamKey, root: StreamRecord, identifier: int
    ) -> list[tuple[StreamSegment, list[int]]]:
        """What follows a segment, with all predecessors of each successor; empty for an active one.

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
        """A segment is active in a run of epochs from its creation on: search for the run's end."""
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
