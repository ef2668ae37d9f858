"""The storage writer: moves a container's bytes to Tier 2 (docs/design.md#tier-2).

A segment is flushed when enough bytes are pending, after some time, or when the log has too many frames for a
quick recovery (`FLUSH_*` in `common/limits.py`).
Small segments of one pass share an object. A reference counts only once it is committed through the log: a crash
between writing an object and committing its reference leaves an orphan, which a later sweep deletes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    MemoryDamageError,
    NoSuchSegmentError,
    SegmentTruncatedError,
    UnavailableError,
)
from tailrace.kernel import crc32c
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects, Section

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tailrace.segmentstore.background.flush_queue import FlushQueue
    from tailrace.segmentstore.cache.segment_reader import SegmentReader
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.pending_appends import PendingAppend, PendingAppends
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState

_log = structlog.get_logger()
_Job: TypeAlias = "list[tuple[Segment, PendingAppends]]"
_SHARED_MAX_BYTES = limits.FLUSH_THRESHOLD_BYTES
_VERIFIED_AT_ONCE = 4096  # appends whose CRCs are compared before other tasks run


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPorts:
    """What the storage writer works with.

    ``commit`` puts an operation through the log and returns after its commit. ``checkpoint_if_due`` writes a checkpoint
    and truncates the log. ``wants_flush`` says whether the log has too many frames. ``upload_slots`` bounds the objects
    that the process holds in memory while it writes them. ``evict_values`` evicts attribute values of a flushed segment
    when there are too many.
    """

    state: ContainerState
    queue: FlushQueue
    reader: SegmentReader
    tier2: ChunkObjects
    upload_slots: asyncio.Semaphore
    commit: Callable[[ops.ControlOperation], Awaitable[None]]
    checkpoint_if_due: Callable[[], Awaitable[None]]
    wants_flush: Callable[[], bool]
    evict_values: Callable[[Segment], None]


class StorageWriter:
    """Flushes one container in the background."""

    def __init__(self, ports: FlushPorts) -> None:
        self._ports = ports
        self._state = ports.state
        self._queue = ports.queue
        self._tier2 = ports.tier2
        self.flushes = 0
        self.last_error = ""

    async def run(self) -> None:
        """Flush until cancelled. Retry without end while Tier 2 is unavailable; appends are throttled meanwhile."""
        retry_s = limits.STORAGE_RETRY_MIN_S
        while True:
            try:
                await self._one_pass()
                retry_s = limits.STORAGE_RETRY_MIN_S
                self.last_error = ""
            except UnavailableError as error:
                if not self.last_error:
                    _log.warning("tier2_unavailable", container=self._state.container_id, reason=str(error))
                self.last_error = str(error)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, limits.STORAGE_RETRY_MAX_S)
                continue
            if self._queue.must_flush_now or self._queue.due(self._state.segments, flush_now=False):
                continue
            await self._queue.wait()

    async def _one_pass(self) -> None:
        flush_now = self._queue.take_flush_now() or self._ports.wants_flush()
        due = self._queue.due(self._state.segments, flush_now=flush_now)
        try:
            await self._flush(due)
        except UnavailableError:
            if flush_now:
                self._queue.flush_now()  # those who asked for it still wait
            raise
        await self._ports.checkpoint_if_due()

    async def flush_all(self, through_frame: int) -> None:
        """Move the bytes of all log frames up to that one to Tier 2; later appends may be left."""
        while pending := [
            segment
            for segment in self._state.segments.values()
            if segment.pending and segment.pending.oldest_frame <= through_frame
        ]:
            await self._flush([segment for segment in pending if not segment.flushing])
            if any(segment.flushing for segment in pending):
                await asyncio.sleep(limits.FLUSH_TICK_S / 10)

    async def _flush(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.flushing = True
            self._state.flushing[segment.segment_id] = None
        try:
            await self._write_all(_jobs(segments, self._state.flush_boundaries))
        finally:
            for segment in segments:
                segment.flushing = False
                del self._state.flushing[segment.segment_id]
        for segment in segments:
            self._queue.flushed(segment)
            self._ports.evict_values(segment)

    async def _write_all(self, jobs: Sequence[_Job]) -> None:
        """Write one object per job, a few at a time; commit their references in order, many at once when the log lags.

        Raise the first error once the other uploads are done.
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
                    await self._ports.commit(ops.AddChunks(refs, self._tier2.take_unreferenced()))
                    self.flushes += 1
        finally:
            for upload in uploads:
                upload.cancel()
            await asyncio.gather(*uploads, return_exceptions=True)  # the first error is raised below
        if failed is not None:
            raise failed

    async def _upload(self, job: _Job) -> list[tuple[int, ChunkRef]]:
        """Write one object with the runs of a job, or several with one long append; return the references to commit."""
        async with self._ports.upload_slots:
            first, run = job[0]
            if len(job) == len(run) == 1 and run.length_bytes > first.chunk_max_bytes:
                return await self._write_long(first, run)
            sections = []
            for segment, run in job:
                try:
                    sections.append(await self._section(segment, run))
                except (NoSuchSegmentError, SegmentTruncatedError):
                    continue  # merged, deleted or truncated meanwhile: the next pass writes what is left
            return await self._tier2.write(sections) if sections else []

    async def _write_long(self, segment: Segment, run: PendingAppends) -> list[tuple[int, ChunkRef]]:
        """Write one append that no chunk may hold whole, in pieces of which one is in memory at a time.

        It is verified before any reference counts. Objects without one are deleted later.
        """
        (item,) = run
        refs: list[tuple[int, ChunkRef]] = []
        start, crc, length = max(item.offset, segment.start_offset), 0, segment.chunk_max_bytes
        try:
            for at in range(start, item.end, length):
                if at < segment.start_offset:
                    raise SegmentTruncatedError(segment.name, segment.start_offset)
                end = min(item.end, at + length)
                data = memoryview(await self._ports.reader.read_range(segment, at, end, self._alive))
                crc = crc32c(data, crc)
                begins = at == item.offset and segment.event_starts.is_start(at)
                section = Section(segment.segment_id, segment.name, at, data, begins_event=begins)
                refs += await self._tier2.write([section])
            if start == item.offset and crc != item.crc:
                raise _damage(segment, item)
        except BaseException as error:
            self._tier2.remember_unreferenced(ref.object_key for _, ref in refs)
            if isinstance(error, (NoSuchSegmentError, SegmentTruncatedError)):
                return []  # the next pass writes what is left
            raise
        return refs

    async def _section(self, segment: Segment, run: PendingAppends) -> Section:
        """Read a run of appends and verify each against the CRC from its arrival."""
        start = max(run.start, segment.start_offset)
        end = run.end
        if start >= end:
            raise SegmentTruncatedError(segment.name, segment.start_offset)
        data = memoryview(await self._ports.reader.read_range(segment, start, end, self._alive))
        begins = start == run.start and segment.event_starts.is_start(start)
        for number, item in enumerate(run, 1):
            if number % _VERIFIED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if item.offset < start:
                continue  # partly truncated: its first bytes are gone
            if crc32c(data[item.offset - start : item.end - start]) != item.crc:
                raise _damage(segment, item)
        return Section(segment.segment_id, segment.name, start, data, begins_event=begins)

    def _alive(self, segment: Segment) -> bool:
        return self._state.segments.get(segment.segment_id) is segment


def _damage(segment: Segment, item: PendingAppend) -> MemoryDamageError:
    return MemoryDamageError(
        f"segment {segment.name} at {item.offset}",
        f"{item.length} cached bytes differ from those that were written",
    )


def _jobs(segments: Sequence[Segment], boundaries: Mapping[int, int]) -> list[_Job]:
    """Return what to write: one object per run of a large segment, shared objects for all other runs.

    No run spans the boundary of its segment. Merges of what Tier 2 holds leave runs of single appends between them: one
    object for each would never catch up.
    """
    jobs: list[_Job] = []
    small: _Job = []
    for segment in segments:
        boundary = boundaries.get(segment.segment_id)
        chunk_max = segment.chunk_max_bytes
        own_min = min(_SHARED_MAX_BYTES, chunk_max) // 4
        left = limits.FLUSH_RUNS_PER_PASS_MAX * limits.FLUSH_OBJECT_MAX_BYTES  # a long backlog may follow small runs
        if segment.pending.length_bytes >= own_min:
            runs = segment.pending.runs(chunk_max, left // chunk_max, boundary)
            if len(runs) > 1 and runs[-1].length_bytes < own_min and runs[-1].start != boundary:
                del runs[-1]  # a later pass writes it together with later appends
            if sum(run.length_bytes for run in runs) >= own_min:
                jobs += [[(segment, run)] for run in runs]
                continue
        runs = segment.pending.runs(min(_SHARED_MAX_BYTES, chunk_max), limits.FLUSH_SMALL_RUNS_PER_PASS_MAX, boundary)
        for run in runs:
            if run.length_bytes > chunk_max:  # one append, which is written in pieces
                jobs.append([(segment, run)])
            else:
                small.append((segment, run))
            left -= run.length_bytes
            if left <= 0:
                break
    return jobs + _batches(small)


def _batches(runs: _Job) -> list[_Job]:
    """Group runs that share an object."""
    batches: list[_Job] = []
    size = 0
    for segment, run in runs:
        if not batches or size + run.length_bytes > _SHARED_MAX_BYTES:
            batches.append([])
            size = 0
        batches[-1].append((segment, run))
        size += run.length_bytes
    return batches
