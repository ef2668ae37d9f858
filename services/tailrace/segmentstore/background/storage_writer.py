"""The storage writer: moves a container's bytes and attributes to Tier 2 (design §5).

Per segment it waits for 4 MiB or 30 s, or until the log has too many frames for a quick recovery, whichever comes
first; small segments of one pass share an object. Nothing is real before its reference is committed through the log, so
a crash between writing and committing only leaves an orphan object.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias

import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, NoSuchSegmentError, SegmentTruncatedError, UnavailableError
from tailrace.kernel import crc32c
from tailrace.segmentstore.attributes.attribute_store import AttributeStore
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.cache.segment_reader import SegmentReader
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import PendingAppend, Segment
    from tailrace.segmentstore.metadata.state import ContainerState

_log = structlog.get_logger()
_Job: TypeAlias = "list[tuple[Segment, list[PendingAppend]]]"
_SHARED_MAX_BYTES = limits.FLUSH_THRESHOLD_BYTES


class FlushHost(Protocol):
    """What the storage writer needs of its container."""

    @property
    def state(self) -> ContainerState:
        """Committed state."""
        ...

    async def commit_control(self, operation: ops.ControlOperation) -> None:
        """Put an operation through the pipeline and wait for its commit."""
        ...

    async def checkpoint_if_due(self, *, force: bool = False) -> None:
        """Write a checkpoint and truncate the log, if enough happened since the last one."""
        ...

    def checkpoint_wants_flush(self) -> bool:
        """Whether everything is to be flushed because the log has too many frames."""
        ...

    def may_delete(self, object_key: str) -> bool:
        """Whether no restore needs a dereferenced object."""
        ...


class StorageWriter:
    """Background flushing of one container. ``slots`` bounds the objects that the process holds in memory to write."""

    def __init__(
        self,
        host: FlushHost,
        reader: SegmentReader,
        attributes: AttributeStore,
        tier2: ChunkObjects,
        slots: asyncio.Semaphore,
    ) -> None:
        self._host = host
        self._reader = reader
        self._attributes = attributes
        self._tier2 = tier2
        self._slots = slots
        self._wake = asyncio.Event()
        self._flush_now = False
        self._active: dict[int, Segment] = {}
        self._delete_after: dict[str, float] = {}
        self.flushes = 0
        self.last_error = ""

    # -- signals from the container ------------------------------------------------------------------------------

    def appended(self, segment: Segment) -> None:
        """The segment has new un-tiered bytes or dirty attributes."""
        if segment.segment_id not in self._active:
            self._active[segment.segment_id] = segment
        if segment.flush_deadline == math.inf:
            segment.flush_deadline = asyncio.get_running_loop().time() + limits.FLUSH_INTERVAL_S
        if (
            segment.pending_bytes >= limits.FLUSH_THRESHOLD_BYTES
            or len(segment.pending) >= limits.FLUSH_PENDING_APPENDS_MAX
        ):
            self._wake.set()

    def pressure(self) -> None:
        """There is no room: flush everything now."""
        self._flush_now = True
        self._wake.set()

    # -- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Flush until cancelled. An unavailable store is tried again, for ever; the pipeline fills up meanwhile."""
        retry_s = limits.STORAGE_RETRY_MIN_S
        while True:
            try:
                await self._one_pass()
                retry_s = limits.STORAGE_RETRY_MIN_S
                self.last_error = ""
            except UnavailableError as error:
                if not self.last_error:
                    _log.warning("tier2_unavailable", container=self._host.state.container_id, reason=str(error))
                self.last_error = str(error)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, limits.STORAGE_RETRY_MAX_S)
                continue
            if self._flush_now or self._due(flush_now=False):
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(limits.FLUSH_TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _due(self, *, flush_now: bool) -> list[Segment]:
        now = asyncio.get_running_loop().time()
        due = []
        for segment_id, segment in list(self._active.items()):
            if self._host.state.segments.get(segment_id) is not segment:
                del self._active[segment_id]  # deleted or merged: its bytes belong to another one now
                continue
            if segment.flushing:
                continue
            if (
                segment.pending_bytes >= limits.FLUSH_THRESHOLD_BYTES
                or len(segment.pending) >= limits.FLUSH_PENDING_APPENDS_MAX
                or (segment.pending and (flush_now or segment.flush_deadline <= now))
                or self._attributes_due(segment, now)
            ):
                due.append(segment)
        return due

    @staticmethod
    def _attributes_due(segment: Segment, now: float) -> bool:
        count = len(segment.dirty)
        return count >= limits.FLUSH_ATTRIBUTES_THRESHOLD or (
            count >= limits.FLUSH_ATTRIBUTES_AGED_THRESHOLD and segment.flush_deadline <= now
        )

    async def _one_pass(self) -> None:
        flush_now, self._flush_now = self._flush_now, False
        due = self._due(flush_now=flush_now or self._host.checkpoint_wants_flush())
        if due:
            await self._flush(due)
        await self._delete_objects()
        await self._host.checkpoint_if_due()

    async def flush_all(self, through_frame: int) -> None:
        """Move all bytes of the log's frames up to that one to Tier 2, whatever is appended meanwhile."""
        while pending := [
            segment
            for segment in self._host.state.segments.values()
            if any(item.frame_sequence <= through_frame for item in segment.pending)
        ]:
            await self._flush([segment for segment in pending if not segment.flushing])
            if any(segment.flushing for segment in pending):
                await asyncio.sleep(limits.FLUSH_TICK_S / 10)

    async def _flush(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.flushing = True
            self._host.state.flushing[segment.segment_id] = None
        try:
            await self._write_all(_jobs(segments))
            now = asyncio.get_running_loop().time()
            for segment in segments:
                if self._attributes_due(segment, now):
                    await self._flush_attributes(segment)
        finally:
            for segment in segments:
                segment.flushing = False
                del self._host.state.flushing[segment.segment_id]
        self._settle(segments)

    def _settle(self, segments: Sequence[Segment]) -> None:
        deadline = asyncio.get_running_loop().time() + limits.FLUSH_INTERVAL_S
        for segment in segments:
            segment.flush_deadline = deadline if segment.pending else math.inf
            if not segment.pending and not segment.dirty:
                self._active.pop(segment.segment_id, None)
            AttributeStore.evict(segment)

    async def _write_all(self, jobs: Sequence[_Job]) -> None:
        """One object per job, a few at a time; their references are committed in order, many at once when the log lags.

        The first error is raised once the others are done.
        """
        uploads = deque(asyncio.get_running_loop().create_task(self._upload(job)) for job in jobs)
        failed: Exception | None = None
        try:
            while uploads:
                await asyncio.wait([uploads[0]])
                refs: list[tuple[int, ChunkRef]] = []
                while uploads and uploads[0].done():
                    upload = uploads.popleft()
                    try:
                        refs += upload.result()
                    except Exception as error:
                        failed = failed or error
                if refs:
                    await self._host.commit_control(ops.AddChunks(refs, self._tier2.take_uncertain()))
                    self.flushes += 1
        finally:
            for upload in uploads:
                upload.cancel()
            await asyncio.gather(*uploads, return_exceptions=True)  # one error is raised already
        if failed is not None:
            raise failed

    async def _upload(self, job: _Job) -> list[tuple[int, ChunkRef]]:
        """Write one object with the runs of a job; returns the references that are now to be committed."""
        async with self._slots:
            sections = []
            for segment, run in job:
                try:
                    sections.append(await self._section(segment, run))
                except (NoSuchSegmentError, SegmentTruncatedError):
                    continue  # merged, deleted or truncated while it was read: the next pass sees what is left
            return await self._tier2.write(sections) if sections else []

    async def _section(self, segment: Segment, run: Sequence[PendingAppend]) -> Section:
        """Read a run of appends and verify each against the CRC that was kept when it arrived."""
        start = max(run[0].offset, segment.start_offset)
        end = run[-1].end
        if start >= end:
            raise SegmentTruncatedError(segment.name, segment.start_offset)
        name, segment_id = segment.name, segment.segment_id
        data = memoryview(await self._reader.read_range(segment, start, end, self._alive))
        for item in run:
            if item.offset < start:
                continue  # partly truncated: its first bytes are gone
            piece = data[item.offset - start : item.end - start]
            if crc32c(piece) != item.crc:
                raise CorruptionError(
                    f"segment {name} at {item.offset}",
                    f"{item.length} cached bytes differ from those that were written",
                )
        return Section(segment_id, name, start, data)

    def _alive(self, segment: Segment) -> bool:
        return self._host.state.segments.get(segment.segment_id) is segment

    async def _flush_attributes(self, segment: Segment) -> None:
        try:
            flush = await self._attributes.build_update(segment)
        except CorruptionError:
            if self._alive(segment):
                raise
            return  # deleted or merged meanwhile, and its pages with it
        if flush is not None:
            await self._host.commit_control(flush.operation)
            segment.dirty.settle_items(flush.items)

    # -- deletions -----------------------------------------------------------------------------------------------

    async def _delete_objects(self) -> None:
        """Delete dereferenced objects once no reader can still be at them, and no restore needs them (design §5)."""
        pending = self._host.state.pending_deletes
        now = asyncio.get_running_loop().time()
        for key in pending:
            self._delete_after.setdefault(key, now + limits.DELETE_DELAY_S)
        may_delete = self._host.may_delete
        ready = [key for key in pending if self._delete_after[key] <= now and may_delete(key)]
        ready = ready[: limits.DELETE_BATCH_MAX]
        if not ready:
            return
        await self._tier2.delete(ready)
        await self._host.commit_control(ops.ObjectsDeleted(ready))
        for key in ready:
            del self._delete_after[key]


def _jobs(segments: Sequence[Segment]) -> list[_Job]:
    """What to write: objects of their own for runs of large segments, shared ones for small segments."""
    jobs: list[_Job] = []
    small: list[Segment] = []
    for segment in segments:
        if segment.pending_bytes >= _SHARED_MAX_BYTES // 4:
            runs = _runs(segment, limits.FLUSH_OBJECT_MAX_BYTES, limits.FLUSH_RUNS_PER_PASS_MAX)
            if len(runs) > 1 and runs[-1][-1].end - runs[-1][0].offset < _SHARED_MAX_BYTES // 4:
                del runs[-1]  # a later pass writes it with what comes behind it
            jobs += [[(segment, run)] for run in runs]
        elif segment.pending:
            small.append(segment)
    for batch in _batches(small):
        jobs.append([(segment, run) for segment in batch for run in _runs(segment, _SHARED_MAX_BYTES, 1)])
    return jobs


def _runs(segment: Segment, max_bytes: int, max_runs: int) -> list[list[PendingAppend]]:
    """The first contiguous runs of un-tiered appends, each at most `max_bytes` long unless one append is longer."""
    runs: list[list[PendingAppend]] = []
    size = 0
    for item in segment.pending:
        if not runs or item.offset != runs[-1][-1].end or size + item.length > max_bytes:
            if len(runs) == max_runs:
                break
            runs.append([])
            size = 0
        runs[-1].append(item)
        size += item.length
    return runs


def _batches(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Small segments that share an object."""
    batches: list[list[Segment]] = []
    size = 0
    for segment in segments:
        if not batches or size + segment.pending_bytes > _SHARED_MAX_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(segment)
        size += segment.pending_bytes
    return batches
