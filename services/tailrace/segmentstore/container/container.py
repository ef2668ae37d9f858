"""The segment container: a group of segments, one log, one order of operations (design §3; segmentstore.api)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common.errors import (
    BadRequestError,
    NoSuchSegmentError,
    SegmentTruncatedError,
)
from tailrace.segmentstore.api import (
    NULL_ATTRIBUTE,
    ChunkListing,
    ContainerStatus,
    ReadResult,
    SegmentKind,
    SegmentProperties,
)
from tailrace.segmentstore.container.appends import SegmentAppends
from tailrace.segmentstore.container.lifecycle import ContainerPorts
from tailrace.segmentstore.container.segment_operations import SegmentControl

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["Container", "ContainerPorts"]


class Container(SegmentAppends, SegmentControl):
    """Implements `segmentstore.api.SegmentContainer` over a durable log, an object store and the worker's cache."""

    # -- attributes ----------------------------------------------------------------------------------------------

    async def info(self, segment: str) -> SegmentProperties:
        """See `SegmentContainer.info`."""
        return self._committed(segment).properties()

    async def get_attributes(self, segment: str, attribute_ids: Sequence[bytes]) -> dict[bytes, int]:
        """See `SegmentContainer.get_attributes`."""
        target = self._committed(segment)
        values = await self._attributes.get(target, attribute_ids)
        return self._of_living(target, values)

    async def iterate_attributes(
        self, segment: str, from_id: bytes, to_id: bytes, limit: int
    ) -> list[tuple[bytes, int]]:
        """See `SegmentContainer.iterate_attributes`."""
        target = self._committed(segment)
        return self._of_living(target, await self._attributes.iterate(target, from_id, to_id, limit))

    async def writer_state(self, segment: str, writer_id: bytes) -> int:
        """See `SegmentContainer.writer_state`."""
        target = self._staged(segment)
        if target.kind & SegmentKind.TABLE:
            raise BadRequestError(f"{segment} is a table segment, it takes no events")
        if target.inflight or target.segment_id not in self.state.segments:
            await self._barrier()
        values = await self.get_attributes(segment, [writer_id])
        # Bring it into the pipeline's reach, so that the writer's first append need not wait.
        self._attributes.make_room(target)
        await self._attributes.load(target, [writer_id])
        return values.get(writer_id, NULL_ATTRIBUTE)

    # -- reads ---------------------------------------------------------------------------------------------------

    async def read(self, segment: str, offset: int, max_length: int, *, wait: bool) -> ReadResult:
        """See `SegmentContainer.read`."""
        target = self._committed(segment)
        while True:
            self._check_serving()
            if not self._alive(target):
                raise NoSuchSegmentError(segment)
            if offset < target.start_offset:
                raise SegmentTruncatedError(segment, target.start_offset)
            if offset < target.length:
                return await self._reader.read(target, offset, max_length, self._alive)
            if target.sealed:
                if offset > target.length:
                    raise BadRequestError(f"offset {offset} is beyond the end {target.length} of sealed {segment}")
                return ReadResult(offset, (), 0, True, True, _nothing)
            if not wait:
                return ReadResult(offset, (), 0, True, False, _nothing)
            self._owner.waiting_reads += 1
            try:
                await target.changed()
            finally:
                self._owner.waiting_reads -= 1

    async def read_exact(self, segment: str, offset: int, length: int) -> bytes:
        """See `SegmentContainer.read_exact`."""
        target = self._committed(segment)
        if offset < target.start_offset:
            raise SegmentTruncatedError(segment, target.start_offset)
        return bytes(await self._reader.read_range(target, offset, offset + length, self._alive))

    async def list_chunks(self, segment: str) -> list[ChunkListing]:
        """See `SegmentContainer.list_chunks`."""
        refs = list(self._committed(segment).chunks)
        return [
            ChunkListing(ref.object_key, ref.segment_offset, ref.length, await self._tier2.exists(ref)) for ref in refs
        ]

    # -- for the tools -------------------------------------------------------------------------------------------

    def segment_names(self) -> list[str]:
        """See `SegmentContainer.segment_names`."""
        return sorted(self.state.by_name)

    def status(self) -> ContainerStatus:
        """See `SegmentContainer.status`."""
        state = self.state
        details = {
            "tier2_bytes_written": self._tier2.bytes_written,
            "tier2_objects_written": self._tier2.objects_written,
            "tier2_objects": len(state.object_uses),
            "flushes": self._writer.flushes,
            "tier2_bytes_compacted": self._compaction.written_bytes,
            "orphans_deleted": self._sweep.deleted,
            "cache_hits": self._reader.cache_hits,
            "tier2_fetches": self._reader.fetches,
            "index_page_bytes": self._attributes.cached_page_bytes,
        }
        return ContainerStatus(
            self._id,
            self._phase,
            self._reason or self._writer.last_error or self._space.full_reason,
            self._epoch,
            len(state.segments),
            self._log.stored_bytes,
            sum(segment.pending_bytes for segment in state.segments.values()),
            len(state.pending_deletes),
            state.committed_sequence,
            details,
        )


def _nothing() -> None:
    """Nothing is pinned."""
