"""Rebuilding a container's state from its log (design §4).

First the last complete checkpoint is found; then every operation after the one it stands for is applied. Appends
from before it matter only for bytes that Tier 2 does not hold: those stay in the log and the read index points there.
Appends after it go to the cache while that has room, else they stay in the log too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common.errors import CorruptionError, DataLossError
from tailrace.kernel import BLOCK_BYTES
from tailrace.segmentstore import checkpoint, oplog
from tailrace.segmentstore import operations as ops
from tailrace.segmentstore.segment import PendingAppend, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.port import ReadableLog
    from tailrace.segmentstore.cachemanager import CacheManager
    from tailrace.segmentstore.fields import ChunkRef
    from tailrace.segmentstore.readindex import LogPlaces
    from tailrace.segmentstore.state import ContainerState


@dataclass(frozen=True, slots=True)
class _EarlyAppend:
    """An append from before the checkpoint, in coordinates that merges shift."""

    offset: int
    length: int
    crc: int
    begin_frame: int
    places: LogPlaces

    def shifted(self, shift: int) -> _EarlyAppend:
        return _EarlyAppend(self.offset + shift, self.length, self.crc, self.begin_frame, self.places)


class Recovery:
    """Replays one container's log into a fresh state."""

    def __init__(self, log: ReadableLog, state: ContainerState, cache: CacheManager) -> None:
        self._log = log
        self._state = state
        self._cache = cache
        # A quarter of the cache stays free, so that the container can serve and flush at once.
        self._spare_blocks = cache.cache.max_bytes // (4 * BLOCK_BYTES)
        self._early: dict[int, list[_EarlyAppend]] = {}
        self.operations = 0

    async def run(self) -> None:
        """Replay everything, and see that every byte of every segment is somewhere.

        Raises:
            CorruptionError, DataLossError, FormatVersionError: the state cannot be right; names the place.
        """
        await self.replay()
        for segment, start, end in missing_bytes(self._state):
            raise DataLossError(f"segment {segment.name}: bytes {start} to {end} are neither in the log nor in Tier 2")
        self._state.reset_staged()

    async def replay(self) -> None:
        """Bring the committed state to the end of the log; `run` without its last look. Errors of `run`."""
        as_of = await self._load_checkpoint()
        assembler = oplog.Assembler()
        expected = -1
        last_sequence = -1
        async for frame in self._log.recover():
            place = f"log of container {self._state.container_id}, frame {frame.sequence}"
            if 0 <= last_sequence != frame.sequence - 1:
                raise DataLossError(f"{place}: frame {last_sequence + 1} is missing")
            last_sequence = frame.sequence
            for placed in assembler.feed(frame.sequence, frame.payload, place):
                expected = self._check_order(placed, expected, place)
                if placed.sequence <= as_of:
                    self._early_operation(placed.operation, placed.places)
                    continue
                if self._early:
                    self._settle_early()
                self._apply(placed, place)
        self._settle_early()

    async def _load_checkpoint(self) -> int:
        assembler = oplog.Assembler(ops.OperationType.CHECKPOINT)
        found: ops.Checkpoint | None = None
        async for frame in self._log.recover():
            place = f"log of container {self._state.container_id}, frame {frame.sequence}"
            for placed in assembler.feed(frame.sequence, frame.payload, place):
                assert isinstance(placed.operation, ops.Checkpoint)
                found = ops.Checkpoint(placed.operation.as_of_sequence, bytes(placed.operation.body))
        if found is None:
            return 0
        place = f"checkpoint of container {self._state.container_id} as of {found.as_of_sequence}"
        checkpoint.load(self._state, found.as_of_sequence, found.body, place)
        return found.as_of_sequence

    def _check_order(self, placed: oplog.Placed, expected: int, place: str) -> int:
        if expected < 0:
            if placed.sequence > self._state.next_sequence:
                raise DataLossError(
                    f"{place}: begins with operation {placed.sequence}, {self._state.next_sequence} is missing"
                )
        elif placed.sequence != expected:
            raise CorruptionError(place, f"operation {placed.sequence} where {expected} should be")
        self.operations += 1
        return placed.sequence + 1

    # -- before the checkpoint -----------------------------------------------------------------------------------

    def _early_operation(self, operation: ops.Operation, places: LogPlaces) -> None:
        if isinstance(operation, ops.Append):
            length = len(operation.data)
            if not length:
                return
            segment = self._state.segments.get(operation.segment_id)
            end = operation.offset + length
            if segment is not None and segment.chunks.covers(max(operation.offset, segment.start_offset), end):
                return
            item = _EarlyAppend(operation.offset, length, operation.crc, places[0][0], _data_places(places, length))
            self._early.setdefault(operation.segment_id, []).append(item)
        elif isinstance(operation, ops.Merge):
            moved = self._early.pop(operation.source_id, [])
            if moved:
                target = self._early.setdefault(operation.target_id, [])
                target.extend(item.shifted(operation.target_offset) for item in moved)

    def _settle_early(self) -> None:
        early, self._early = self._early, {}
        for segment_id, items in early.items():
            resolved, shift = self._state.resolve(segment_id)
            segment = self._state.segments.get(resolved)
            if segment is None:
                continue
            for item in (item.shifted(shift) for item in items):
                start, end = max(item.offset, segment.start_offset), item.offset + item.length
                if end > start and not segment.chunks.covers(start, end):
                    self._left_in_log(segment, item)

    def _left_in_log(self, segment: Segment, item: _EarlyAppend) -> None:
        self._cache.add_log_places(segment.read_index, item.offset, item.length, item.places)
        segment.add_pending(PendingAppend(item.offset, item.length, item.crc, item.begin_frame))

    # -- after the checkpoint ------------------------------------------------------------------------------------

    def _apply(self, placed: oplog.Placed, place: str) -> None:
        state, operation = self._state, placed.operation
        if isinstance(operation, ops.Append):
            state.apply(placed.sequence, operation, place)
            self._append_data(operation, placed.places)
            return
        before = {segment_id: state.segments.get(segment_id) for segment_id in _affected(operation)}
        state.apply(placed.sequence, operation, place)
        if isinstance(operation, ops.Merge):
            source, target = before[operation.source_id], before[operation.target_id]
            assert source is not None
            assert target is not None
            self._cache.move(source.read_index, target.read_index, operation.target_offset)
        elif isinstance(operation, ops.Delete):
            segment = before[operation.segment_id]
            assert segment is not None
            self._cache.drop_all(segment.read_index)
        elif isinstance(operation, ops.Truncate):
            segment = state.segments[operation.segment_id]
            self._cache.drop_below(segment.read_index, segment.start_offset)
        elif isinstance(operation, ops.AddChunks):
            for identifier, ref in operation.refs:
                resolved, shift = state.resolve(identifier)
                mark_tiered(state.segments.get(resolved), ref.shifted(shift), self._cache)

    def _append_data(self, operation: ops.Append, places: LogPlaces) -> None:
        length = len(operation.data)
        if not length:
            return
        cache, segment = self._cache, self._state.segments[operation.segment_id]
        segment.add_pending(PendingAppend(operation.offset, length, operation.crc, places[0][0]))
        blocks = cache.blocks_for(length)
        if cache.cache.available_blocks > blocks + self._spare_blocks and cache.reserve(blocks):
            cache.release(cache.append_tail(segment.read_index, operation.offset, operation.data, blocks))
        else:
            cache.add_log_places(segment.read_index, operation.offset, length, _data_places(places, length))


def missing_bytes(state: ContainerState) -> Iterator[tuple[Segment, int, int]]:
    """Ranges of segments that are neither in Tier 2 nor in the log: there must be none."""
    for segment in state.segments.values():
        pending = sorted(segment.pending)
        for gap_start, gap_end in segment.chunks.gaps(segment.start_offset, segment.length):
            position = gap_start
            for item in pending:
                if item.offset <= position < item.end:
                    position = item.end
            if position < gap_end:
                yield segment, position, gap_end


def _data_places(places: LogPlaces, length: int) -> LogPlaces:
    """The part of an operation's places that holds its last `length` bytes: the data."""
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


def mark_tiered(segment: Segment | None, ref: ChunkRef, cache: CacheManager) -> None:
    """Entries that Tier 2 holds now may be evicted."""
    if segment is None:
        return
    for entry in segment.read_index.between(ref.segment_offset, ref.end):
        if segment.chunks.covers(max(entry.offset, segment.start_offset), entry.end):
            cache.make_evictable(entry)
