"""Chunk compaction: rewrites a run of a segment's small chunks as one object (docs/design.md#tier-2).

A slowly written segment gets a chunk every 30 s, and each transaction adds one. Compaction reads and verifies a run of
them, writes one object, and swaps it in by one operation that names exactly the references that it replaces. After a
truncation, merge or deletion of those the operation does nothing, and the new object is deleted like any other that
nothing references. A crash before the swap leaves an orphan. Readers that hold an old reference have
``DELETE_DELAY_S`` to finish; a later one finds the object gone and looks up the references again.

The storage writer has priority. Compaction takes one upload slot of the process at a time, and only when one is free or
after ``COMPACT_DEFER_MAX_S``. Its writes are limited by a credit: ``COMPACT_SHARE`` bytes for each flushed byte, and
``COMPACT_FLOOR_BYTES_PER_S``. So a container writes to Tier 2 at most twice what it flushes, plus 256 KiB/s, one object
and the saved credit (32 MiB). `compaction_policy` bounds how often a byte is rewritten.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, TailraceError, UnavailableError
from tailrace.segmentstore.background.compaction_policy import choose
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects, Section

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState

_log = structlog.get_logger()


class ChunkCompaction:
    """Compacts the chunks of one container.

    ``commit`` puts an operation through the log and returns after its commit. ``may_work`` says whether work that can
    wait may run now.
    """

    def __init__(
        self,
        state: ContainerState,
        tier2: ChunkObjects,
        *,
        commit: Callable[[ops.ControlOperation], Awaitable[None]],
        upload_slots: asyncio.Semaphore,
        may_work: Callable[[], bool],
    ) -> None:
        self._state = state
        self._tier2 = tier2
        self._commit = commit
        self._slots = upload_slots
        self._may_work = may_work
        self._cursors: dict[int, int] = {}  # segments that were not searched to the end: where to continue
        self._next_segments: deque[int] = deque()
        self._refused: dict[int, str] = {}  # damaged segments, until the container opens again
        self._credit = 0.0
        self._credited_at_s = 0.0
        self._credited_bytes = 0
        self._deferred_since_s: float | None = None
        self.written_bytes = 0
        self.replaced_refs = 0
        self.last_error = ""

    async def run(self) -> None:
        """Compact until cancelled. While Tier 2 is unavailable nothing changes."""
        self._credited_at_s = asyncio.get_running_loop().time()
        retry_s = limits.STORAGE_RETRY_MIN_S
        while True:
            found = self._find() if self._allowed() else None
            if found is None:
                await asyncio.sleep(limits.COMPACT_TICK_S)
                continue
            self._deferred_since_s = None
            try:
                await self._compact(*found)
                retry_s = limits.STORAGE_RETRY_MIN_S
                self.last_error = ""
            except UnavailableError as error:
                self.last_error = str(error)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, limits.STORAGE_RETRY_MAX_S)

    # -- when ----------------------------------------------------------------------------------------------------

    def _allowed(self) -> bool:
        now = asyncio.get_running_loop().time()
        flushed = self._tier2.bytes_written - self.written_bytes
        earned = limits.COMPACT_SHARE * (flushed - self._credited_bytes)
        earned += limits.COMPACT_FLOOR_BYTES_PER_S * (now - self._credited_at_s)
        self._credit = min(self._credit + earned, limits.COMPACT_CREDIT_MAX_BYTES)
        self._credited_at_s, self._credited_bytes = now, flushed
        if self._credit <= 0 or not self._may_work():
            return False
        if not self._slots.locked() and not self._tier2.window_full:
            self._deferred_since_s = None
            return True
        if self._deferred_since_s is None:
            self._deferred_since_s = now
        return now - self._deferred_since_s >= limits.COMPACT_DEFER_MAX_S

    # -- what ----------------------------------------------------------------------------------------------------

    def _find(self) -> tuple[Segment, Sequence[ChunkRef]] | None:
        """Return the next run worth compacting; search a bounded number of segments and references."""
        segments = self._state.segments
        if not self._next_segments:
            self._next_segments.extend(segments)
            self._cursors = {segment_id: at for segment_id, at in self._cursors.items() if segment_id in segments}
        for _ in range(min(len(self._next_segments), limits.COMPACT_LOOK_SEGMENTS)):
            segment = segments.get(self._next_segments[0])
            if segment is not None and segment.segment_id not in self._refused and (run := self._look(segment)):
                return segment, run
            self._next_segments.popleft()
        return None

    def _look(self, segment: Segment) -> Sequence[ChunkRef]:
        """Search from where the last search ended, or from the first reference that was added since."""
        chunks = segment.chunks
        cursor = self._cursors.pop(segment.segment_id, None)
        changed = chunks.take_changed()
        if changed is not None:  # they may be the end of a run
            begin = chunks.before(changed, limits.COMPACT_RUN_FORCED)
            cursor = begin if cursor is None else min(cursor, begin)
        if cursor is None:
            return ()
        refs = chunks.following(cursor, limits.COMPACT_LOOK_REFS)
        run = choose(refs, segment.chunk_max_bytes)
        if run:
            self._cursors[segment.segment_id] = cursor
        elif len(refs) == limits.COMPACT_LOOK_REFS:  # the next search sees a run whole that begins near the end
            last = refs[-min(limits.COMPACT_RUN_FORCED, len(refs) - 1)]
            self._cursors[segment.segment_id] = last.segment_offset
        return run

    # -- how -----------------------------------------------------------------------------------------------------

    async def _compact(self, segment: Segment, refs: Sequence[ChunkRef]) -> None:
        """Write a run as one object and swap it in."""
        segment_id, name, start = segment.segment_id, segment.name, refs[0].segment_offset
        async with self._slots:
            try:
                data, begins_event = await self._read(refs)
            except CorruptionError as error:
                if self._holds(segment, refs):
                    self._refuse(segment, error)
                return
            if not self._holds(segment, refs):
                return  # truncated, merged or deleted meanwhile: nothing to swap
            self._credit -= len(data)  # even if the write fails: the object may exist
            section = Section(segment_id, name, start, data, begins_event=begins_event)
            written = await self._tier2.write([section])
            self.written_bytes += len(data)
        await self._commit(ops.SwapChunks(segment_id, refs, [ref for _, ref in written]))
        self.replaced_refs += len(refs)

    def _holds(self, segment: Segment, refs: Sequence[ChunkRef]) -> bool:
        return self._state.segments.get(segment.segment_id) is segment and segment.chunks.holds(refs)

    async def _read(self, refs: Sequence[ChunkRef]) -> tuple[bytearray, bool]:
        """Return the bytes of contiguous references, verified block by block, and whether an event begins at the first.

        Raises:
            CorruptionError: an object is damaged or missing. UnavailableError: Tier 2 does not answer.
        """
        start = refs[0].segment_offset
        content = bytearray(refs[-1].end - start)
        waiting = deque(refs)
        begins_event = False

        async def lane() -> None:
            nonlocal begins_event
            while waiting:
                ref = waiting.popleft()
                try:
                    if ref is refs[0]:
                        data, begins_event = await self._tier2.read_section(ref)
                    else:
                        data = await self._tier2.read_exact(ref, ref.segment_offset, ref.length)
                except TailraceError:
                    waiting.clear()  # the other lanes may stop
                    raise
                if len(data) != ref.length:
                    raise CorruptionError(f"object {ref.object_key}", f"{len(data)} bytes where {ref.length} should be")
                content[ref.segment_offset - start : ref.end - start] = data

        lanes = (lane() for _ in range(limits.COMPACT_READS_MAX))
        for result in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return content, begins_event

    def _refuse(self, segment: Segment, error: CorruptionError) -> None:
        """Leave a damaged segment as stored: a reader of the damaged bytes gets the error."""
        self._refused[segment.segment_id] = str(error)
        _log.error("chunks_not_compacted", segment=segment.name, reason=str(error))
