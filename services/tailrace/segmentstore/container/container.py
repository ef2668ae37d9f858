"""The segment container: a group of segments, one log, one order of operations (segmentstore.api).

See docs/design.md#write-path.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.segmentstore.api import (
    AppendRequest,
    AttributeUpdate,
    Buffer,
    ChunkListing,
    ContainerStatus,
    MeasuredSegment,
    MergeResult,
    ReadResult,
    SegmentKind,
    SegmentLength,
    SegmentProperties,
    StreamBytes,
)
from tailrace.segmentstore.attributes.attribute_store import AttributeStore
from tailrace.segmentstore.background.flush_queue import FlushQueue
from tailrace.segmentstore.background.held_bytes import held_bytes
from tailrace.segmentstore.cache.segment_reader import SegmentReader
from tailrace.segmentstore.container.appends import AppendPath
from tailrace.segmentstore.container.background_tasks import BackgroundTasks
from tailrace.segmentstore.container.core import ContainerCore, ContainerPorts, ContainerStorage
from tailrace.segmentstore.container.lifecycle import Lifecycle
from tailrace.segmentstore.container.rates import RateSampler
from tailrace.segmentstore.container.reads import ReadPath
from tailrace.segmentstore.container.segment_operations import SegmentOperations
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.segmentstore.cache.damages import DamagedRange
    from tailrace.segmentstore.metadata.segment import Segment


__all__ = ["Container", "ContainerPorts"]


class Container:
    """Implements `segmentstore.api.SegmentContainer`: a façade over parts that share a `ContainerCore`.

    ``core``, ``storage`` and ``background`` are public for the tests and the simulator, which look inside.
    """

    def __init__(self, container_id: int, epoch: int, ports: ContainerPorts) -> None:
        core = ContainerCore(container_id, epoch, ports, FlushQueue())
        tier2 = ChunkObjects(
            ports.store,
            ports.cluster_id,
            container_id,
            epoch,
            ports.entropy,
            confirm_owner=core.confirm_owner_or_stop,
            spawn=core.spawn_for_caller,
            upload_window=ports.upload_window,
        )
        attributes = AttributeStore(tier2, ports.values, ports.pages)
        reader = SegmentReader(ports.cache, ports.log, tier2, core.spawn)
        self.core = core
        self.state = core.state
        self.storage = ContainerStorage(tier2=tier2, attributes=attributes, reader=reader)
        self._rates = RateSampler(core.state, lambda: asyncio.get_running_loop().time())
        self._operations = SegmentOperations(core, attributes, self._rates)
        self.background = BackgroundTasks(core, self.storage, self._operations.delete)
        self._ownership = core.ownership
        self._appends = AppendPath(core, attributes)
        self._stream_bytes: asyncio.Task[dict[str, StreamBytes]] | None = None
        self._stream_bytes_s = 0.0
        self._reads = ReadPath(core, self.storage)
        self._lifecycle = Lifecycle(core, attributes, self.background)

    @property
    def container_id(self) -> int:
        """Number of the container."""
        return self.core.container_id

    @property
    def epoch(self) -> int:
        """Epoch of this owner."""
        return self.core.epoch

    # -- lifecycle -----------------------------------------------------------------------------------------------

    async def start(self, nonce: bytes) -> None:
        """See `Lifecycle.start`."""
        await self._lifecycle.start(nonce)

    async def close(self, *, flush: bool = False, at_once: bool = False) -> None:
        """See `Lifecycle.close`."""
        await self._lifecycle.close(flush, at_once)

    def leave(self) -> None:
        """See `Lifecycle.leave`."""
        self._lifecycle.leave()

    @property
    def leaving(self) -> bool:
        """Return whether it refuses requests because its worker closes it."""
        return self.core.leaving

    async def wait_stopped(self) -> Exception:
        """See `Lifecycle.wait_stopped`."""
        return await self._lifecycle.wait_stopped()

    # -- ownership -----------------------------------------------------------------------------------------------

    def may_answer(self) -> bool:
        """See `SegmentContainer.may_answer`."""
        return self._ownership.may_answer()

    async def wait_owner(self) -> None:
        """See `SegmentContainer.wait_owner`."""
        self.core.check_running()
        await self._ownership.wait()
        self.core.check_running()

    # -- appends -------------------------------------------------------------------------------------------------

    def submit_append(self, request: AppendRequest) -> asyncio.Future[None] | None:
        """See `SegmentContainer.submit_append`."""
        return self._appends.submit(request)

    async def append(
        self,
        segment: str,
        data: Sequence[Buffer],
        updates: Sequence[AttributeUpdate] = (),
        *,
        expected_offset: int = -1,
    ) -> tuple[int, int]:
        """See `SegmentContainer.append`."""
        return await self._appends.append(segment, data, updates, expected_offset)

    # -- operations on segments ----------------------------------------------------------------------------------

    async def create_segment(
        self,
        segment: str,
        *,
        kind: SegmentKind = SegmentKind.STREAM,
        key_length: int = 0,
        attributes: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        """See `SegmentContainer.create_segment`."""
        await (await self._operations.begin_create(segment, kind, key_length, attributes))

    async def begin_create(self, segment: str, *, attributes: Sequence[tuple[bytes, int]] = ()) -> asyncio.Future[None]:
        """See `SegmentContainer.begin_create`."""
        return await self._operations.begin_create(segment, SegmentKind.STREAM, 0, attributes)

    async def seal(self, segment: str) -> int:
        """See `SegmentContainer.seal`."""
        return await self._operations.seal(segment)

    async def truncate(self, segment: str, offset: int) -> None:
        """See `SegmentContainer.truncate`."""
        await self._operations.truncate(segment, offset)

    async def delete(self, segment: str) -> None:
        """See `SegmentContainer.delete`."""
        await self._operations.delete(segment)

    async def merge(self, target: str, source: str, updates: Sequence[AttributeUpdate] = ()) -> MergeResult:
        """See `SegmentContainer.merge`."""
        return await self._operations.merge(target, source, updates)

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """See `SegmentContainer.merge_batch`."""
        return await self._operations.merge_batch(target, sources)

    async def update_attributes(self, segment: str, updates: Sequence[AttributeUpdate]) -> None:
        """See `SegmentContainer.update_attributes`."""
        await self._operations.update_attributes(segment, updates)

    # -- reads ---------------------------------------------------------------------------------------------------

    async def info(self, segment: str) -> SegmentProperties:
        """See `SegmentContainer.info`."""
        return self.core.committed_segment(segment).properties()

    def length_of(self, segment: str) -> SegmentLength:
        """See `SegmentContainer.length_of`."""
        found = self.core.committed_segment(segment)
        return SegmentLength(found.name, found.segment_id, found.length)

    async def get_attributes(
        self, segment: str, attribute_ids: Sequence[bytes], *, keep: bool = False
    ) -> dict[bytes, int]:
        """See `SegmentContainer.get_attributes`."""
        return await self._reads.get_attributes(segment, attribute_ids, keep=keep)

    def attributes_in_memory(self, segment: str, attribute_ids: Sequence[bytes]) -> dict[bytes, int] | None:
        """See `SegmentContainer.attributes_in_memory`."""
        return self._reads.attributes_in_memory(segment, attribute_ids)

    async def iterate_attributes(
        self, segment: str, from_id: bytes, to_id: bytes, limit: int
    ) -> list[tuple[bytes, int]]:
        """See `SegmentContainer.iterate_attributes`."""
        return await self._reads.iterate_attributes(segment, from_id, to_id, limit)

    async def writer_state(self, segment: str, writer_id: bytes) -> int:
        """See `SegmentContainer.writer_state`."""
        return await self._reads.writer_state(segment, writer_id)

    def available(self, segment: str, offset: int) -> int:
        """See `SegmentContainer.available`."""
        return self._reads.available(segment, offset)

    async def read(self, segment: str, offset: int, max_length: int, *, wait: bool) -> ReadResult:
        """See `SegmentContainer.read`."""
        return await self._reads.read(segment, offset, max_length, wait)

    async def read_exact(self, segment: str, offset: int, length: int) -> bytes:
        """See `SegmentContainer.read_exact`."""
        return await self._reads.read_exact(segment, offset, length)

    async def stream_bytes(self, max_age_s: float = 0.0) -> dict[str, StreamBytes]:
        """See `SegmentContainer.stream_bytes`."""
        self.core.check_running()
        now_s = asyncio.get_running_loop().time()
        if self._stream_bytes is None or self._stream_bytes_s + max_age_s <= now_s:
            self._stream_bytes_s = now_s
            self._stream_bytes = self.core.spawn_for_caller(held_bytes(self.state, self.storage.tier2.shared_bytes))
        measured = self._stream_bytes
        await asyncio.wait([measured])
        if measured.cancelled():
            raise self.core.stopped_error()
        return measured.result()

    async def list_chunks(self, segment: str, after: int = 0, limit: int | None = None) -> list[ChunkListing]:
        """See `SegmentContainer.list_chunks`."""
        return await self._reads.list_chunks(segment, after, limit)

    # -- rates ---------------------------------------------------------------------------------------------------

    def measure_rates(self, windows_ms: Sequence[int], after: int) -> tuple[list[MeasuredSegment], bool]:
        """See `SegmentContainer.measure_rates`."""
        self.core.check_running()
        return self._rates.measure(windows_ms, after)

    def list_segments(self, after: int) -> tuple[list[tuple[int, str]], bool]:
        """See `SegmentContainer.list_segments`."""
        self.core.check_running()
        segments, most = self.state.segments, limits.SEGMENTS_PER_REPLY_MAX
        found = heapq.nsmallest(most + 1, (each for each in segments if each > after))
        return [(each, segments[each].name) for each in found[:most]], len(found) > most

    # -- for the tools -------------------------------------------------------------------------------------------

    async def flush_to_storage(self) -> None:
        """See `SegmentContainer.flush_to_storage`."""
        await self.background.flush_to_storage()

    def segment_names(self) -> list[str]:
        """See `SegmentContainer.segment_names`."""
        return sorted(self.state.by_name)

    def status(self) -> ContainerStatus:
        """See `SegmentContainer.status`."""
        core, state, background, storage = self.core, self.state, self.background, self.storage
        damaged = _damages(state.segments.values(), storage.reader.damages.current())
        committer, reads = core.committer, self._reads
        details = {
            "appends": committer.appends,
            "appended_bytes": committer.appended_bytes,
            "reads": reads.reads,
            "read_bytes": reads.read_bytes,
            "log_frames": committer.frames,
            "log_write_seconds": committer.log_write_s,
            "tier2_bytes_written": storage.tier2.bytes_written,
            "tier2_objects_written": storage.tier2.objects_written,
            "tier2_objects": len(state.object_uses),
            "flushes": background.writer.flushes,
            "index_flushes": background.attribute_writer.flushes,
            "tier2_bytes_compacted": background.compaction.written_bytes,
            "tier2_bytes_moved": background.reclamation.moved_bytes,
            "tier2_bytes_held": background.reclamation.stored_bytes,
            "tier2_bytes_live": background.reclamation.live_bytes,
            "orphans_deleted": background.sweep.deleted,
            "objects_not_deleted": len(background.deletions.refused),
            "cache_hits": storage.reader.cache_hits,
            "tier2_fetches": storage.reader.fetches,
            "damaged_segments": len(damaged),
            "index_page_bytes": storage.attributes.cached_page_bytes,
        }
        return ContainerStatus(
            container_id=core.container_id,
            state=core.phase,
            reason=core.reason or background.last_error or core.disk_full_reason() or _summarise(damaged),
            epoch=core.epoch,
            segments=len(state.segments),
            log_bytes=core.log.stored_bytes,
            untiered_bytes=sum(segment.pending.length_bytes for segment in state.segments.values()),
            pending_deletes=len(state.pending_deletes),
            last_sequence=state.committed_sequence,
            details=details,
        )


def _damages(segments: Iterable[Segment], ranges: Sequence[DamagedRange]) -> dict[int, str]:
    """Return what is known to be damaged of each damaged segment, by its id: its attribute index, or bytes of it."""
    found = {
        each.segment_id: f"the attribute index of {each.name} is damaged: {each.damage.error()}"
        for each in segments
        if each.damage is not None
    }
    for damaged in ranges:
        found.setdefault(damaged.segment.segment_id, str(damaged))
    return found


def _summarise(damaged: Mapping[int, str]) -> str:
    """Name the first damaged segment, and count the others; empty when none is."""
    if not damaged:
        return ""
    more = f"; {len(damaged) - 1} more segments" if len(damaged) > 1 else ""
    return f"{next(iter(damaged.values()))}{more}"
