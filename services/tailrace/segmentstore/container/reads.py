"""The read path: bytes, attributes and properties of committed segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tailrace.common.errors import (
    BadRequestError,
    NoSuchSegmentError,
)
from tailrace.common.task_groups import gather_bounded
from tailrace.segmentstore.api import (
    NULL_ATTRIBUTE,
    ChunkListing,
    ReadResult,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.container.core import ContainerCore, ContainerStorage
    from tailrace.segmentstore.metadata.segment import Segment

_T = TypeVar("_T")


class ReadPath:
    """Answers reads of one container."""

    def __init__(self, core: ContainerCore, storage: ContainerStorage) -> None:
        self._core = core
        self._attributes = storage.attributes
        self._reader = storage.reader
        self._tier2 = storage.tier2
        self.reads = 0
        """Reads that returned bytes."""
        self.read_bytes = 0

    # -- attributes ----------------------------------------------------------------------------------------------

    async def get_attributes(
        self, segment: str, attribute_ids: Sequence[bytes], *, keep: bool = False
    ) -> dict[bytes, int]:
        """See `SegmentContainer.get_attributes`."""
        target = self._core.committed_segment(segment)
        values = await self._attributes.get(target, attribute_ids, keep=keep)
        return self._if_live(target, values)

    def attributes_in_memory(self, segment: str, attribute_ids: Sequence[bytes]) -> dict[bytes, int] | None:
        """See `SegmentContainer.attributes_in_memory`."""
        return self._attributes.get_in_memory(self._core.committed_segment(segment), attribute_ids)

    async def iterate_attributes(
        self, segment: str, from_id: bytes, to_id: bytes, limit: int
    ) -> list[tuple[bytes, int]]:
        """See `SegmentContainer.iterate_attributes`."""
        target = self._core.committed_segment(segment)
        return self._if_live(target, await self._attributes.iterate(target, from_id, to_id, limit))

    async def writer_state(self, segment: str, writer_id: bytes) -> int:
        """See `SegmentContainer.writer_state`."""
        target = self._core.staged_segment(segment)
        if target.kind.is_table:
            raise BadRequestError(f"{segment} is a table segment; it takes no events")
        if target.inflight or target.segment_id not in self._core.state.segments:
            await self._core.barrier()
        values = await self.get_attributes(segment, [writer_id])
        # Load the value for the staged view too, so that the writer's first append need not wait.
        await self._attributes.load(target, [writer_id])
        return values.get(writer_id, NULL_ATTRIBUTE)

    def _if_live(self, segment: Segment, found: _T) -> _T:
        """Return what was read of a segment. Raise NoSuchSegmentError when it was deleted meanwhile."""
        if not self._core.is_live(segment):
            raise NoSuchSegmentError(segment.name)
        return found

    # -- bytes ---------------------------------------------------------------------------------------------------

    def available(self, segment: str, offset: int) -> int:
        """See `SegmentContainer.available`."""
        target = self._core.state.by_name.get(segment)
        return 0 if target is None else max(0, target.length - offset)

    async def read(self, segment: str, offset: int, max_length: int, wait: bool) -> ReadResult:
        """See `SegmentContainer.read`."""
        core = self._core
        target = core.committed_segment(segment)
        while True:
            core.check_serving()
            if not core.is_live(target):
                raise NoSuchSegmentError(segment)
            target.check_not_truncated(offset)
            if offset < target.length:
                result = await self._reader.read(target, offset, max_length, core.is_live)
                self.reads += 1
                self.read_bytes += result.length
                return result
            if target.sealed:
                if offset > target.length:
                    raise BadRequestError(f"offset {offset} is beyond the end {target.length} of sealed {segment}")
                return ReadResult(offset, (), 0, True, True)
            if not wait:
                return ReadResult(offset, (), 0, True, False)
            core.ownership.waiting_reads += 1
            try:
                await target.changed()
            finally:
                core.ownership.waiting_reads -= 1

    async def read_exact(self, segment: str, offset: int, length: int) -> bytes:
        """See `SegmentContainer.read_exact`."""
        target = self._core.committed_segment(segment)
        target.check_not_truncated(offset)
        return bytes(await self._reader.read_range(target, offset, offset + length, self._core.is_live))

    async def list_chunks(self, segment: str, after: int, limit: int | None) -> list[ChunkListing]:
        """See `SegmentContainer.list_chunks`."""
        chunks = self._core.committed_segment(segment).chunks
        refs = chunks.following(after, len(chunks) if limit is None else limit)
        looks = await gather_bounded(refs, self._tier2.look)
        return [
            ChunkListing(ref.object_key, ref.segment_offset, ref.length, exists, begins_event)
            for ref, (exists, begins_event) in zip(refs, looks, strict=True)
        ]
