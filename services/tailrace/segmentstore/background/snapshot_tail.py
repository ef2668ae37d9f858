"""The bytes that a snapshot needs beside its checkpoint, because Tier 2 lacked them at that moment.

They are pinned in the cache. What the storage writer moves to Tier 2 in the meantime the snapshot names where it is
now, and unpins: so it is written once, and the cache has room again when it would have without a snapshot
(docs/adr/0047-a-snapshot-waits-for-the-flush.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import MemoryDamageError
from tailrace.kernel import crc32c
from tailrace.segmentstore.metadata.pending_appends import PendingAppends
from tailrace.segmentstore.tier2.chunk_objects import Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace.kernel import CacheView
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState


@dataclass(slots=True)
class TailRun:
    """Contiguous bytes of a segment for one object, pinned in the cache, and the CRCs to verify them with."""

    segment: Segment
    start: int
    end: int
    items: PendingAppends = field(default_factory=PendingAppends)
    pieces: deque[tuple[int, CacheView]] = field(default_factory=deque)

    def pin(self, cache: CacheManager) -> bool:
        """Pin the cached bytes; return False when the cache lacks some."""
        position = self.start
        for entry in self.segment.read_index.run(self.start, self.end - self.start):
            if entry.address < 0:
                return False
            self.pieces.append((entry.offset, cache.pin(entry)))
            position = entry.end
        return position >= self.end

    def release(self, cache: CacheManager) -> None:
        """Unpin the cache blocks."""
        while self.pieces:
            cache.unpin(self.pieces.popleft()[1])

    def shorten(self, start: int, cache: CacheManager) -> None:
        """Leave out the bytes before `start`, which no append of the run spans; unpin the blocks of those alone."""
        self.start = start
        self.items.remove_first(self.items.count_before(start))
        while len(self.pieces) > 1 and self.pieces[1][0] <= start:
            cache.unpin(self.pieces.popleft()[1])

    def section(self) -> Section:
        """Return the bytes, each append verified. Raises MemoryDamageError."""
        segment, content = self.segment, bytearray()
        for offset, view in self.pieces:
            content += view.tobytes()[max(self.start - offset, 0) : self.end - offset]
        data = memoryview(content)
        for item in self.items:
            if crc32c(data[item.offset - self.start : item.end - self.start]) != item.crc:
                raise MemoryDamageError(
                    f"segment {segment.name} at {item.offset}",
                    f"{item.length} cached bytes differ from those that were written",
                )
        begins = bool(self.items) and self.items.start == self.start and segment.event_starts.is_start(self.start)
        return Section(segment.segment_id, segment.name, self.start, data, begins_event=begins)


class SnapshotTail:
    """Everything that Tier 2 lacked at one moment: what is left of it, and where the rest is now.

    ``gaps``: the runs of one range of a segment each, in order. Until `release`, no chunk of the storage writer spans
    the end that a segment had.
    """

    def __init__(self, state: ContainerState, cache: CacheManager, gaps: Iterable[Sequence[TailRun]]) -> None:
        self._state = state
        self._cache = cache
        self._awaited = deque(deque(gap) for gap in gaps)
        self._passed: deque[deque[TailRun]] = deque()  # ranges that no chunk of their segment will have
        self._batches_of = self._awaited
        state.flush_boundaries = {gap[0].segment.segment_id: gap[-1].end for gap in self._awaited}
        self.flushed: list[tuple[int, ChunkRef]] = []
        """References to what the storage writer has moved to Tier 2 since then, with the ids of the segments."""

    @property
    def left_ranges(self) -> int:
        """Return how many ranges are neither flushed nor written, as far as `take_flushed` knows."""
        return len(self._awaited) + len(self._passed)

    @property
    def awaited_ranges(self) -> int:
        """Return how many ranges the storage writer has yet to move, as far as `take_flushed` knows."""
        return len(self._awaited)

    @property
    def awaited_bytes(self) -> int:
        """Return how many bytes these have."""
        return sum(gap[-1].end - gap[0].start for gap in self._awaited)

    @property
    def passed_bytes(self) -> int:
        """Return how many bytes of the segments no chunk of theirs will have."""
        return sum(gap[-1].end - gap[0].start for gap in self._passed)

    def take_flushed(self) -> None:
        """Name and unpin what the storage writer has moved to Tier 2 by now; find what it will not move any more."""
        for _ in range(len(self._awaited)):
            gap = self._awaited.popleft()
            is_passed = self._take_flushed(gap)
            if gap:
                (self._passed if is_passed else self._awaited).append(gap)

    def _take_flushed(self, gap: deque[TailRun]) -> bool:
        """Return whether no chunk will have what is left. The storage writer begins where a range begins."""
        segment, at, end = gap[0].segment, gap[0].start, gap[-1].end
        if self._state.segments.get(segment.segment_id) is not segment or at < segment.start_offset:
            return True  # merged, deleted or truncated: the snapshot has it as it was
        refs: list[tuple[int, ChunkRef]] = []
        while (ref := segment.chunks.find(at)) is not None:
            if ref.segment_offset < at or ref.end > end:
                return True  # compacted with bytes that are not missing
            refs.append((segment.segment_id, ref))
            at = ref.end
            if not any(run.items.splits(at) for run in gap if run.start < at < run.end):
                self._leave_out(gap, at)
                self.flushed += refs
                refs = []
        return False

    def _leave_out(self, gap: deque[TailRun], before: int) -> None:
        while gap and gap[0].end <= before:
            gap.popleft().release(self._cache)
        if gap and gap[0].start < before:
            gap[0].shorten(before, self._cache)

    def next_batch(self, *, awaited_too: bool) -> list[TailRun]:
        """Return runs to write to one object; none when nothing is left. Awaited ones come after all others.

        They are the last ones: the storage writer comes to them last.
        """
        self.take_flushed()
        self._batches_of = self._awaited if awaited_too and not self._passed else self._passed
        batch: list[TailRun] = []
        size = 0
        for run in _backwards(self._batches_of):
            size += run.end - run.start
            if batch and size > limits.FLUSH_THRESHOLD_BYTES:
                break
            batch.append(run)
        return batch[::-1]

    def written(self, batch: Sequence[TailRun]) -> None:
        """Unpin runs that are written to Tier 2, the last batch that `next_batch` returned."""
        gaps = self._batches_of
        for run in reversed(batch):
            last = gaps[-1].pop()
            assert last is run
            run.release(self._cache)
            if not gaps[-1]:
                gaps.pop()

    def release(self) -> None:
        """Unpin everything."""
        for gaps in (self._awaited, self._passed):
            for run in _backwards(gaps):
                run.release(self._cache)
            gaps.clear()
        self._state.flush_boundaries = {}


def _backwards(gaps: deque[deque[TailRun]]) -> Iterator[TailRun]:
    for gap in reversed(gaps):
        yield from reversed(gap)


def capture(state: ContainerState, cache: CacheManager) -> SnapshotTail | None:
    """Pin and return everything that Tier 2 lacks; None, with nothing pinned, when some of it is in the log alone."""
    gaps: list[list[TailRun]] = []
    for segment in state.segments.values():
        for gap in _gaps(segment):
            gaps.append(gap)
            if not all(run.pin(cache) for run in gap):
                SnapshotTail(state, cache, gaps).release()
                return None
    return SnapshotTail(state, cache, gaps)


def _gaps(segment: Segment) -> Iterator[list[TailRun]]:
    """Yield the un-tiered ranges of a segment, each split between appends into runs."""
    if not segment.pending:
        return
    for start, end in segment.chunks.gaps(segment.start_offset, segment.length):
        run = TailRun(segment, start, start)
        runs = [run]
        for item in segment.pending.overlapping(start, end):
            stop = min(item.end, end)
            if run.end > run.start and stop - run.start > limits.FLUSH_OBJECT_MAX_BYTES:
                run = TailRun(segment, run.end, run.end)
                runs.append(run)
            run.end = stop
            if item.offset >= run.start and item.end <= end:
                run.items.add(*item)
        yield runs
