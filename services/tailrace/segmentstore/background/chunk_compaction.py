"""Small-chunk compaction: runs of small chunks of a segment become one object (design §5).

A segment that is written slowly gets a chunk every 30 s, and each transaction brings one. Here they are read, verified,
written as one object, and swapped in by one operation that names exactly what it replaces: a truncation, a merge or a
deletion that came between makes it do nothing, and the new object waits to be deleted like any other that nobody
needs. A crash between leaves an orphan. Readers that hold an old reference have ``DELETE_DELAY_S`` to finish; one that
is later finds the object gone and looks at the references once more.

The storage writer goes first. Of the process's upload slots compaction takes one at a time and only when one is free
(or after ``COMPACT_DEFER_MAX_S``), and what it writes is paid from a credit: ``COMPACT_SHARE`` bytes for each byte that
was flushed, and ``COMPACT_FLOOR_BYTES_PER_S``. So a container writes to Tier 2 at most twice what it flushes, and
256 KiB/s, one object and what credit was saved up (32 MiB) on top; `compactionpolicy` bounds how often a byte is
written.
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
        self._cursors: dict[int, int] = {}  # of segments that were not looked through to the end: where to go on
        self._turns: deque[int] = deque()
        self._refused: dict[int, str] = {}  # segments with damage, until the container opens again
        self._credit = 0.0
        self._credited_at_s = 0.0
        self._credited_bytes = 0
        self._deferred_since_s: float | None = None
        self.written_bytes = 0
        self.replaced_refs = 0
        self.last_error = ""

    async def run(self) -> None:
        """Compact until cancelled. While the store does not answer everything stays as it is."""
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
        if not self._slots.locked():
            self._deferred_since_s = None
            return True
        if self._deferred_since_s is None:
            self._deferred_since_s = now
        return now - self._deferred_since_s >= limits.COMPACT_DEFER_MAX_S

    # -- what ----------------------------------------------------------------------------------------------------

    def _find(self) -> tuple[Segment, Sequence[ChunkRef]] | None:
        """The next run that is worth it; looks at a bounded number of segments and of their references."""
        segments = self._state.segments
        if not self._turns:
            self._turns.extend(segments)
            self._cursors = {segment_id: at for segment_id, at in self._cursors.items() if segment_id in segments}
        for _ in range(min(len(self._turns), limits.COMPACT_LOOK_SEGMENTS)):
            segment = segments.get(self._turns[0])
            if segment is not None and segment.segment_id not in self._refused and (run := self._look(segment)):
                return segment, run
            self._turns.popleft()
        return None

    def _look(self, segment: Segment) -> Sequence[ChunkRef]:
        """Look on where the last look ended, or where references came since: not always at the end of the segment."""
        chunks = segment.chunks
        cursor = self._cursors.pop(segment.segment_id, None)
        changed = chunks.take_changed()
        if changed is not None:  # they may be the end of a run
            begin = chunks.before(changed, limits.COMPACT_RUN_FORCED)
            cursor = begin if cursor is None else min(cursor, begin)
        if cursor is None:
            return ()
        refs = chunks.following(cursor, limits.COMPACT_LOOK_REFS)
        run = choose(refs)
        if run:
            self._cursors[segment.segment_id] = cursor
        elif len(refs) == limits.COMPACT_LOOK_REFS:  # a run that begins among the last ones is seen whole next time
            last = refs[-min(limits.COMPACT_RUN_FORCED, len(refs) - 1)]
            self._cursors[segment.segment_id] = last.segment_offset
        return run

    # -- how -----------------------------------------------------------------------------------------------------

    async def _compact(self, segment: Segment, refs: Sequence[ChunkRef]) -> None:
        """Write a run as one object and swap it in."""
        segment_id, name, start = segment.segment_id, segment.name, refs[0].segment_offset
        async with self._slots:
            try:
                data = await self._read(refs)
            except CorruptionError as error:
                if self._holds(segment, refs):
                    self._refuse(segment, error)
                return
            if not self._holds(segment, refs):
                return  # truncated, merged or deleted meanwhile: there is nothing to swap any more
            self._credit -= len(data)  # also for what fails: it may have been written
            written = await self._tier2.write([Section(segment_id, name, start, data)])
            self.written_bytes += len(data)
        await self._commit(ops.SwapChunks(segment_id, refs, [ref for _, ref in written]))
        self.replaced_refs += len(refs)

    def _holds(self, segment: Segment, refs: Sequence[ChunkRef]) -> bool:
        return self._state.segments.get(segment.segment_id) is segment and segment.chunks.holds(refs)

    async def _read(self, refs: Sequence[ChunkRef]) -> bytearray:
        """All bytes of references that follow each other, verified block by block.

        Raises:
            CorruptionError: an object is damaged or gone. UnavailableError: the store does not answer.
        """
        start = refs[0].segment_offset
        content = bytearray(refs[-1].end - start)
        waiting = deque(refs)

        async def lane() -> None:
            while waiting:
                ref = waiting.popleft()
                try:
                    data = await self._tier2.read_exact(ref, ref.segment_offset, ref.length)
                except TailraceError:
                    waiting.clear()  # the others need not go on
                    raise
                if len(data) != ref.length:
                    raise CorruptionError(f"object {ref.object_key}", f"{len(data)} bytes where {ref.length} should be")
                content[ref.segment_offset - start : ref.end - start] = data

        lanes = (lane() for _ in range(limits.COMPACT_READS_MAX))
        for result in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return content

    def _refuse(self, segment: Segment, error: CorruptionError) -> None:
        """Whoever reads the place hears of it; nothing is written over it."""
        self._refused[segment.segment_id] = str(error)
        _log.error("chunks_not_compacted", segment=segment.name, reason=str(error))
