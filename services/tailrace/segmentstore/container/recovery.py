"""Rebuilds a container's state from its log (docs/design.md#tier-1).

Recovery finds the last complete checkpoint, then applies every later operation. An append from before the checkpoint
matters only if Tier 2 lacks its bytes. It and each later append go to the cache while the cache has room. Else their
bytes stay in the log, and the read index points there (docs/adr/0064-recovery-caches-bytes-before-a-checkpoint.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from typing import TYPE_CHECKING

from tailrace.common.errors import CorruptionError, DataLossError
from tailrace.kernel import BLOCK_BYTES
from tailrace.segmentstore.cache.cache_manager import drop_truncated, mark_tiered
from tailrace.segmentstore.container.early_appends import EarlyAppend, EarlyAppends
from tailrace.segmentstore.container.replayed_attributes import ReplayedAttributes
from tailrace.segmentstore.metadata import checkpoint, operation_log
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.missing_bytes import missing_bytes
from tailrace.segmentstore.metadata.read_index import FramePlaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.kernel import AppendRun
    from tailrace.log.port import ReadableLog
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.fields import Buffer
    from tailrace.segmentstore.metadata.read_index import LogPlaces, ReadIndex
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState


class _Run:
    """Contiguous appends to one segment in one frame."""

    __slots__ = ("length", "offset", "pieces", "places", "segment")

    def __init__(self, segment: Segment, offset: int) -> None:
        self.segment = segment
        self.offset = offset
        self.length = 0
        self.pieces: list[memoryview] = []
        self.places: list[LogPlaces] = []


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
    """Raise CorruptionError with the place for operations that contradict the state.

    Only the log's own bytes lead here, so a repetition would end the same way. What reads them is outside.
    """
    try:
        yield
    except (KeyError, ValueError) as error:
        raise CorruptionError(place, f"its operations do not fit: {error}") from error


class Recovery:
    """Replays one container's log into an empty state."""

    def __init__(self, log: ReadableLog, state: ContainerState, cache: CacheManager) -> None:
        self._log = log
        self._state = state
        self._cache = cache
        # A quarter of the cache stays free, so that the container can serve and flush at once.
        self._spare_blocks = cache.cache.max_bytes // (4 * BLOCK_BYTES)
        self._early: dict[int, EarlyAppends] = {}
        self._runs: dict[int, _Run] = {}
        self._attributes = ReplayedAttributes()
        self.operations = 0
        self._checkpoint_frame = -1
        self.replayed_bytes = 0
        """Of the frames behind the last checkpoint."""
        self.replayed_operations = 0
        """Those that the last checkpoint does not hold."""

    async def run(self) -> None:
        """Replay the log, and verify that every byte of every segment is in the log or in Tier 2.

        Raises:
            CorruptionError, DataLossError, FormatVersionError: the state cannot be right; the error names the place.
        """
        await self.replay()
        for segment, start, end in missing_bytes(self._state):
            raise DataLossError(f"segment {segment.name}: bytes {start} to {end} are neither in the log nor in Tier 2")
        self._state.reset_staged()

    async def replay(self) -> None:
        """Replay the log without the last check of `run`. Raises what `run` raises."""
        as_of = await self._load_checkpoint()
        assembler = operation_log.Assembler()
        expected = -1
        last_sequence = -1
        async for frame in self._log.recover():
            place = f"log of container {self._state.container_id}, frame {frame.sequence}"
            if 0 <= last_sequence != frame.sequence - 1:
                raise DataLossError(f"{place}: frame {last_sequence + 1} is missing")
            last_sequence = frame.sequence
            with _naming(place):
                for placed in assembler.feed_runs(
                    frame.sequence, frame.payload, place, split_after=as_of, attributes=self._attributes.by_segment
                ):
                    if placed.sequence != expected:
                        self._check_order(placed.sequence, expected, place)
                    expected = placed.next_sequence
                    self.operations += expected - placed.sequence
                    if placed.sequence <= as_of:
                        self._take_early(placed)
                        continue
                    if self._early:
                        self._settle_early()
                    self._apply(placed, place)
                if frame.sequence > self._checkpoint_frame:
                    self.replayed_bytes += len(frame.payload)
                self._insert_runs()  # payloads are valid until the next step
                self._attributes.scanned(len(frame.payload), self._state.segments)
        with _naming(f"log of container {self._state.container_id}"):
            self._settle_early()
            self._attributes.apply(self._state.segments)
        self.replayed_operations = self._state.committed_sequence - as_of

    async def _load_checkpoint(self) -> int:
        assembler = operation_log.Assembler(ops.OperationType.CHECKPOINT)
        found: ops.Checkpoint | None = None
        async for frame in self._log.recover():
            place = f"log of container {self._state.container_id}, frame {frame.sequence}"
            for placed in assembler.feed(frame.sequence, frame.payload, place):
                assert isinstance(placed.operation, ops.Checkpoint)
                found = ops.Checkpoint(placed.operation.as_of_sequence, bytes(placed.operation.body))
                self._checkpoint_frame = frame.sequence
        if found is None:
            return 0
        place = f"checkpoint of container {self._state.container_id} as of {found.as_of_sequence}"
        for _ in checkpoint.load_in_steps(self._state, found.as_of_sequence, found.body, place):
            await asyncio.sleep(0)
        return found.as_of_sequence

    def _check_order(self, sequence: int, expected: int, place: str) -> None:
        """Raise when an operation is missing; the log may begin with an earlier one than the state needs."""
        if expected >= 0:
            raise CorruptionError(place, f"operation {sequence} where {expected} should be")
        if sequence > self._state.next_sequence:
            raise DataLossError(f"{place}: begins with operation {sequence}, {self._state.next_sequence} is missing")

    # -- before the checkpoint -----------------------------------------------------------------------------------

    def _take_early(self, placed: operation_log.Placed | operation_log.PlacedAppends) -> None:
        if isinstance(placed, operation_log.PlacedAppends):
            for run in placed.runs:
                if run.data:
                    self._early_run(placed.frame_sequence, run)
        else:
            self._early_operation(placed.operation, placed.places)

    def _early_run(self, frame_sequence: int, run: AppendRun) -> None:
        segment_id, segment, shift = self._place(run.segment_id)
        lengths, crcs, starts = (array("I", column) for column in (run.lengths, run.crcs, run.starts))
        offsets = array("q", run.offsets)
        if shift:
            offsets = array("q", (offset + shift for offset in offsets))
        for rows in _untiered(segment, offsets, lengths):
            at = offsets[rows.start] - offsets[0]
            data = run.data[at : at + sum(lengths[rows])]
            places = starts[rows]
            if segment is not None and self._cached(segment.read_index, offsets[rows.start], data):
                places = array("I", (0,)) * len(places)
            early = self._early.setdefault(segment_id, EarlyAppends())
            early.add_run(offsets[rows], lengths[rows], crcs[rows], frame_sequence, places)

    def _place(self, segment_id: int) -> tuple[int, Segment | None, int]:
        """Return which segment of the checkpoint holds the bytes of one, and how far merges moved them.

        None: the checkpoint does not name it. It was deleted, or the checkpoint has forgotten a merge, which stands
        later in the log then.
        """
        resolved, shift = self._state.resolve(segment_id)
        segment = self._state.segments.get(resolved)
        return (segment_id, None, 0) if segment is None else (resolved, segment, shift)

    def _early_operation(self, operation: ops.Operation, places: LogPlaces) -> None:
        if isinstance(operation, ops.Append):
            length = len(operation.data)
            segment_id, segment, shift = self._place(operation.segment_id)
            offset = operation.offset + shift
            if length and (segment is None or _lacks(segment, offset, offset + length)):
                cached = segment is not None and self._cached(segment.read_index, offset, operation.data)
                left = () if cached else _data_places(places, length)
                item = EarlyAppend(offset, length, operation.crc, places[0][0], left)
                self._early.setdefault(segment_id, EarlyAppends()).add(item)
        elif isinstance(operation, ops.Merge):
            moved = self._early.pop(operation.source_id, None)
            if moved is not None:
                self._early.setdefault(operation.target_id, EarlyAppends()).extend(moved, operation.target_offset)

    def _settle_early(self) -> None:
        early, self._early = self._early, {}
        by_segment: dict[int, EarlyAppends] = {}
        while early:
            segment_id, items = early.popitem()
            resolved, shift = self._state.resolve(segment_id)
            if resolved == segment_id and resolved not in by_segment:
                by_segment[resolved] = items
            else:
                by_segment.setdefault(resolved, EarlyAppends()).extend(items, shift)
        for segment_id, items in by_segment.items():
            segment = self._state.segments.get(segment_id)
            if segment is not None:
                self._leave_in_log(segment.read_index, self._uncached(segment, items))

    @staticmethod
    def _uncached(segment: Segment, items: EarlyAppends) -> Iterator[tuple[int, int, LogPlaces]]:
        """Count those that Tier 2 lacks as pending; yield offset, length and places of those that the cache lacks."""
        for offset, length, crc, begin_frame, places in items:
            if not places or _lacks(segment, offset, offset + length):
                segment.pending.add(offset, length, crc, begin_frame)
                if places:
                    yield offset, length, places

    def _leave_in_log(self, index: ReadIndex, appends: Iterable[tuple[int, int, LogPlaces]]) -> None:
        """Point the read index to the log: one entry for consecutive appends in one frame.

        So reads and flushes take a frame of small appends at once. ``appends``: offset, length and places of each.
        """
        for offset, length, places in _joined(appends):
            self._cache.add_log_places(index, offset, length, places)

    # -- after the checkpoint ------------------------------------------------------------------------------------

    def _apply(self, placed: operation_log.Placed | operation_log.PlacedAppends, place: str) -> None:
        if isinstance(placed, operation_log.PlacedAppends):
            self._apply_appends(placed, place)
        else:
            self._apply_operation(placed, place)

    def _apply_appends(self, placed: operation_log.PlacedAppends, place: str) -> None:
        self._insert_runs()
        self._state.apply_appends(placed.sequence, placed.next_sequence, placed.runs, place)
        for run in placed.runs:
            if run.data:
                segment = self._state.segments[run.segment_id]
                segment.pending.extend(run.offsets, run.lengths, run.crcs, placed.frame_sequence)
                if not self._cached(segment.read_index, run.offset, run.data):
                    frame = placed.frame_sequence
                    rows = ((offset, length, ((frame, start, length),)) for offset, length, _, start in _rows(run))
                    self._leave_in_log(segment.read_index, rows)

    def _apply_operation(self, placed: operation_log.Placed, place: str) -> None:
        state, operation = self._state, placed.operation
        self._attributes.apply(state.segments)
        if type(operation) is ops.Append:
            state.apply(placed.sequence, operation, place)
            self._append_data(operation, placed.places)
            return
        self._insert_runs()
        before = {segment_id: state.segments.get(segment_id) for segment_id in _affected(operation)}
        state.apply(placed.sequence, operation, place)
        if isinstance(operation, ops.Merge):
            source, target = before[operation.source_id], before[operation.target_id]
            assert source is not None
            assert target is not None
            self._cache.move(source.read_index, target.read_index, operation.target_offset, target.length)
        elif isinstance(operation, ops.Delete):
            segment = before[operation.segment_id]
            assert segment is not None
            self._cache.drop_all(segment.read_index)
        elif isinstance(operation, ops.Truncate):
            drop_truncated(state.segments[operation.segment_id], self._cache)
        elif isinstance(operation, ops.AddChunks):
            for identifier, ref in operation.refs:
                resolved, shift = state.resolve(identifier)
                mark_tiered(state.segments.get(resolved), ref.shifted(shift), self._cache)

    def _append_data(self, operation: ops.Append, places: LogPlaces) -> None:
        """Remember the bytes; those of one segment and one frame go to the cache together."""
        segment_id, offset, crc, _, data = operation
        length = len(data)
        if not length:
            return
        run = self._runs.get(segment_id)
        if run is None:
            run = self._runs[segment_id] = _Run(self._state.segments[segment_id], offset)
        run.pieces.append(data)
        run.places.append(places)
        run.length += length
        segment = run.segment
        segment.pending.add(offset, length, crc, places[0][0])

    def _insert_runs(self) -> None:
        """Insert the remembered bytes into the cache; bytes without room there stay in the log."""
        if not self._runs:
            return
        for run in self._runs.values():
            index, offset = run.segment.read_index, run.offset
            if self._cached(index, offset, run.pieces[0] if len(run.pieces) == 1 else b"".join(run.pieces)):
                continue
            left = []
            for piece, places in zip(run.pieces, run.places, strict=True):
                left.append((offset, len(piece), _data_places(places, len(piece))))
                offset += len(piece)
            self._leave_in_log(index, left)
        self._runs.clear()

    def _cached(self, index: ReadIndex, offset: int, data: Buffer) -> bool:
        """Insert bytes that Tier 2 lacks into the cache; return False, and insert none, without room."""
        return self._cache.insert_untiered(index, offset, data, self._spare_blocks)


def _untiered(segment: Segment | None, offsets: array[int], lengths: array[int]) -> Iterator[slice]:
    """Yield the contiguous rows of appends that Tier 2 lacks: all of them when the segment is not known."""
    count = len(offsets)
    if segment is None or (
        offsets[0] >= segment.start_offset and not segment.chunks.overlaps(offsets[0], offsets[-1] + lengths[-1])
    ):
        yield slice(0, count)
        return
    begin = 0
    for row in range(count):
        if not _lacks(segment, offsets[row], offsets[row] + lengths[row]):
            if begin < row:
                yield slice(begin, row)
            begin = row + 1
    if begin < count:
        yield slice(begin, count)


def _lacks(segment: Segment, start: int, end: int) -> bool:
    """Return whether Tier 2 lacks any of the bytes that the segment still has between `start` and `end`."""
    start = max(start, segment.start_offset)
    return end > start and not segment.chunks.covers(start, end)


def _rows(run: AppendRun) -> Iterator[tuple[int, int, int, int]]:
    """Return offset, length, CRC and place in the payload of each append."""
    offsets = array("q", run.offsets)
    lengths, crcs, starts = (array("I", column) for column in (run.lengths, run.crcs, run.starts))
    return zip(offsets, lengths, crcs, starts, strict=True)


def _joined(
    appends: Iterable[tuple[int, int, LogPlaces]],
) -> Iterator[tuple[int, int, LogPlaces | FramePlaces]]:
    """Join appends that follow each other in the segment and are in the same frame; others stay as they are.

    An append that spans frames stays alone: the log keeps its first frame for it alone.
    """
    start = end = 0
    places: LogPlaces | FramePlaces = ()
    frame = -1
    for offset, length, its in appends:
        if offset == end and len(its) == 1 and its[0][0] == frame:
            if not isinstance(places, FramePlaces):
                ((_, at, size),) = places
                places = FramePlaces(frame)
                places.add(at, size)
            places.add(its[0][1], its[0][2])
            end += length
            continue
        if end > start:
            yield start, end - start, places
        start, end, places = offset, offset + length, its
        frame = its[0][0] if len(its) == 1 else -1
    if end > start:
        yield start, end - start, places


def _data_places(places: LogPlaces, length: int) -> LogPlaces:
    """Return the part of an operation's places that holds its last `length` bytes: the data."""
    if len(places) == 1:
        ((frame_sequence, offset, fragment),) = places
        return ((frame_sequence, offset + fragment - length, length),)
    result: list[tuple[int, int, int]] = []
    left = length
    for frame_sequence, offset, fragment in reversed(places):
        take = min(left, fragment)
        if take:
            result.append((frame_sequence, offset + fragment - take, take))
        left -= take
    return tuple(reversed(result))


def _affected(operation: ops.Operation) -> tuple[int, ...]:
    if isinstance(operation, ops.Merge):
        return operation.source_id, operation.target_id
    if isinstance(operation, ops.Delete):
        return (operation.segment_id,)
    return ()
