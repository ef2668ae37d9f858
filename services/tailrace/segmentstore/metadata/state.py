"""Committed and staged metadata of a container, and how each operation changes it.

See docs/design.md#write-path, docs/design.md#tier-2.

Two views of a segment exist. *Staged* fields (``staged_*`` and ``latest``) hold the outcome of every staged operation.
*Committed* fields hold what is durable, and clients see only them. Commits and replay both use `ContainerState.apply`,
so that both end in the same state. No I/O happens here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tailrace.common.errors import CorruptionError
from tailrace.common.names import is_transient_segment
from tailrace.segmentstore.api import (
    EVENT_COUNT,
    NULL_ATTRIBUTE,
    SegmentKind,
)
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.untiered_room import UntieredRoom
from tailrace.segmentstore.metadata.value_room import ValueRoom

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.kernel import AppendRun
    from tailrace.segmentstore.metadata.fields import ChunkRef


@dataclass(frozen=True, slots=True)
class MergedSource:
    """A segment that was merged, remembered so that a repeated merge is answered with success."""

    source_id: int
    target_id: int
    target_offset: int
    target_length: int
    timestamp_ms: int


class StateEncoding(Protocol):
    """Something that encodes a state in steps, as of the moment at which it began."""

    def before_change(self, segment: Segment) -> None:
        """A committed field of the segment changes after this call."""


class ContainerState:
    """All segments of a container, the objects they need in Tier 2, and the ones that may be deleted."""

    def __init__(
        self, container_id: int, untiered: UntieredRoom | None = None, values: ValueRoom | None = None
    ) -> None:
        self.container_id = container_id
        self.untiered = untiered or UntieredRoom()
        self.values = values or ValueRoom()
        self.epoch = 0
        self.next_sequence = 1
        self.committed_sequence = 0
        self.segments: dict[int, Segment] = {}
        self.by_name: dict[str, Segment] = {}
        self.staged_by_name: dict[str, Segment] = {}
        self.staged_creates: dict[int, Segment] = {}  # created and not yet committed
        self.merged: dict[str, MergedSource] = {}
        self.moves: dict[int, tuple[int, int]] = {}  # merged source id -> (target id, shift)
        self.flushing: dict[int, None] = {}  # ids of segments that are being flushed; not replayed
        self.flush_boundaries: dict[int, int] = {}  # by segment id: an offset that no new chunk spans; not replayed
        self.object_uses: dict[str, int] = {}
        self.pending_deletes: dict[str, None] = {}
        self.releases = 0
        """Grows whenever bytes in Tier 2 may have become dead; not replayed."""
        self.encodings: list[StateEncoding] = []
        """Checkpoints and snapshots that are being encoded."""

    def changing(self, segment: Segment) -> None:
        """Keep a segment for the checkpoints that are being encoded; call it before a committed field changes."""
        for encoding in self.encodings:
            encoding.before_change(segment)

    # -- applying committed operations ---------------------------------------------------------------------------

    def apply(self, sequence: int, operation: ops.Operation, place: str = "log") -> None:
        """Apply one operation to the committed view; an append changes everything but the read index.

        Raises:
            CorruptionError: the operation does not fit the state, so log and state disagree.
        """
        if sequence <= self.committed_sequence:
            raise CorruptionError(place, f"operation {sequence} after operation {self.committed_sequence}")
        try:
            if type(operation) is ops.Append:  # most of a log
                self._append(sequence, operation)
            else:
                self._dispatch(sequence, operation)
        except (KeyError, ValueError) as error:
            raise CorruptionError(
                place, f"operation {sequence} ({operation.TYPE.name}) does not fit: {error}"
            ) from error
        self.committed_sequence = sequence
        if sequence >= self.next_sequence:
            self.next_sequence = sequence + 1

    def apply_appends(self, sequence: int, next_sequence: int, runs: Iterable[AppendRun], place: str) -> None:
        """Apply the appends with the numbers from `sequence` on to before `next_sequence`, but for their attributes.

        See `apply`; `Segment.set_last_attributes` takes the attributes of several of them.
        """
        if sequence <= self.committed_sequence:
            raise CorruptionError(place, f"operation {sequence} after operation {self.committed_sequence}")
        for run in runs:
            try:
                segment = self.segments[run.segment_id]
                self._check_append(segment, run.offset)
            except (KeyError, ValueError) as error:
                raise CorruptionError(
                    place, f"operation {run.first_sequence} (APPEND) does not fit: {error}"
                ) from error
            self.changing(segment)
            segment.length += len(run.data)
        self.committed_sequence = next_sequence - 1
        self.next_sequence = max(self.next_sequence, next_sequence)

    def _dispatch(self, sequence: int, operation: ops.Operation) -> None:
        match operation:
            case ops.Append():
                self._append(sequence, operation)
            case ops.UpdateAttributes():
                segment = self.segments[operation.segment_id]
                self.changing(segment)
                segment.set_attributes(sequence, operation.attributes)
            case ops.Create():
                self._create(operation)
            case ops.Seal():
                segment = self.segments[operation.segment_id]
                self.changing(segment)
                segment.sealed = True
                segment.last_modified_ms = operation.timestamp_ms
            case ops.Truncate():
                self._truncate(operation)
            case ops.Merge():
                self._merge(sequence, operation)
            case ops.Delete():
                self._delete(operation.segment_id)
            case ops.AddChunks():
                self._add_chunks(operation)
            case ops.CommitIndex():
                self._commit_index(operation)
            case ops.ObjectsDeleted():
                for key in operation.keys:
                    self.pending_deletes.pop(key, None)
            case ops.SwapChunks():
                self._swap_chunks(operation)
            case ops.MoveChunks():
                self._move_chunks(operation)
            case ops.SweepBarrier():
                if operation.epoch != self.epoch or operation.listed_after >= sequence:
                    raise ValueError(f"a sweep of epoch {operation.epoch} in the log of epoch {self.epoch}")
            case ops.Recovered():
                self.epoch = operation.epoch
            case ops.Checkpoint():
                pass

    def _append(self, sequence: int, operation: ops.Append) -> None:
        segment = self.segments[operation.segment_id]
        self._check_append(segment, operation.offset)
        if self.encodings:
            self.changing(segment)
        segment.length += len(operation.data)
        segment.set_attributes(sequence, operation.attributes)

    @staticmethod
    def _check_append(segment: Segment, offset: int) -> None:
        if offset != segment.length:
            raise ValueError(f"append at {offset} to a segment of {segment.length} bytes")

    def _create(self, operation: ops.Create) -> None:
        if operation.name in self.by_name:
            raise ValueError(f"segment {operation.name} exists")
        segment = self.staged_creates.pop(operation.segment_id, None)
        if segment is None:
            segment = self.new_segment(
                operation.segment_id, operation.name, operation.kind, operation.key_length, operation.timestamp_ms
            )
        segment.set_attributes(operation.segment_id, operation.attributes)
        self.add_segment(segment)

    def new_segment(self, segment_id: int, name: str, kind: SegmentKind, key_length: int, timestamp_ms: int) -> Segment:
        """Return a segment of this container that is not registered yet."""
        return Segment(segment_id, name, kind, key_length, timestamp_ms, self.untiered)

    def add_segment(self, segment: Segment) -> None:
        """Register a committed segment."""
        self.segments[segment.segment_id] = segment
        self.by_name[segment.name] = segment
        before = self.merged.pop(segment.name, None)
        if before is not None:  # the name is used again; chunks of the merged source may still be committed
            self.merged[f"\0{before.source_id}"] = before

    def _truncate(self, operation: ops.Truncate) -> None:
        segment = self.segments[operation.segment_id]
        if not segment.start_offset <= operation.start_offset <= segment.length:
            raise ValueError(f"truncation at {operation.start_offset}")
        self.changing(segment)
        segment.start_offset = operation.start_offset
        segment.drop_pending_below(operation.start_offset)
        self.releases += 1
        self._release(segment.chunks.truncate(operation.start_offset))

    def _merge(self, sequence: int, operation: ops.Merge) -> None:
        target = self.segments[operation.target_id]
        source = self.segments[operation.source_id]
        if source is target:
            raise ValueError(f"merge of segment {operation.source_id} into itself")
        if operation.target_offset != target.length or operation.length != source.length or source.start_offset:
            raise ValueError(f"merge of {operation.length} bytes at {operation.target_offset}")
        self.changing(target)
        self.changing(source)
        target.length += operation.length
        target.last_modified_ms = operation.timestamp_ms
        target.set_attributes(sequence, operation.attributes)
        self._move_bytes(source, target, operation.target_offset)
        self.moves[source.segment_id] = (target.segment_id, operation.target_offset)
        self._remove(source)
        self.merged[source.name] = MergedSource(
            source.segment_id, target.segment_id, operation.target_offset, target.length, operation.timestamp_ms
        )

    def _move_bytes(self, source: Segment, target: Segment, shift: int) -> None:
        for ref in source.chunks.clear():
            target.chunks.add(ref.shifted(shift))
        for item in source.pending:
            target.pending.add(item.offset + shift, item.length, item.crc, item.frame_sequence)
        source.pending.clear()
        target.event_starts.merge(source.event_starts, shift, source.length)

    def _delete(self, segment_id: int) -> None:
        segment = self.segments[segment_id]
        self.changing(segment)
        self._release(segment.chunks.clear())
        segment.pending.clear()
        self._remove(segment)

    def _remove(self, segment: Segment) -> None:
        self._release(segment.index_pages.clear())
        segment.index = ops.EMPTY_INDEX  # a concurrent reader of the index sees the change
        segment.dirty.leave_room()
        self.values.forget(segment)
        del self.segments[segment.segment_id]
        if self.by_name.get(segment.name) is segment:
            del self.by_name[segment.name]

    def _add_chunks(self, operation: ops.AddChunks) -> None:
        for key in operation.orphans:
            self.pending_deletes[key] = None
        for _, ref in operation.refs:
            self._use(ref.object_key)  # count all of them first: segments share an object, and its last use counts
        for identifier, ref in operation.refs:
            segment_id, shift = self.resolve(identifier)
            segment = self.segments.get(segment_id)
            moved = ref.shifted(shift)
            if segment is None or segment.chunks.overlaps(moved.segment_offset, moved.end):
                self._release([moved])  # deleted, or flushed twice around a merge: the first reference counts
                continue
            if moved.end <= segment.start_offset:
                self._release([moved])
                continue
            self.changing(segment)
            segment.chunks.add(moved)
            segment.drop_tiered(moved)
            if moved.segment_offset < segment.start_offset:  # truncated while it was flushed
                self.releases += 1

    def _swap_chunks(self, operation: ops.SwapChunks) -> None:
        for ref in operation.new:
            self._use(ref.object_key)
        segment = self.segments.get(operation.segment_id)
        if segment is not None:
            self.changing(segment)
        swapped = segment is not None and segment.chunks.replace(operation.old, operation.new)
        self._release(list(operation.old if swapped else operation.new))

    def _move_chunks(self, operation: ops.MoveChunks) -> None:
        for move in operation.moves:
            self._use(move.new.object_key)  # all of them first: moves share an object, and its last use counts
        for segment_id, old, new in operation.moves:
            segment = self.segments.get(segment_id)
            if segment is None:
                self._release([new])
                continue
            if old.segment_offset < new.segment_offset > segment.start_offset and segment.chunks.holds([old]):
                raise ValueError(f"a move that drops bytes before {new.segment_offset}")
            self.changing(segment)
            self._release([old if segment.chunks.move(old, new) else new])

    def _commit_index(self, operation: ops.CommitIndex) -> None:
        segment = self.segments.get(operation.segment_id)
        for ref in operation.pages:
            self._use(ref.object_key)
        if segment is None:
            self._release(list(operation.pages))
            return
        self.changing(segment)
        root = operation.root
        for ref in operation.pages:
            segment.index_pages.add(ref)
        segment.index = root
        self._release(segment.index_pages.truncate(root.start_offset))
        segment.dirty.settle(root.flushed_through)

    # -- Tier-2 objects ------------------------------------------------------------------------------------------

    def _use(self, key: str) -> None:
        self.object_uses[key] = self.object_uses.get(key, 0) + 1

    def _release(self, refs: list[ChunkRef]) -> None:
        self.releases += len(refs)
        for ref in refs:
            uses = self.object_uses[ref.object_key] - 1
            if uses:
                self.object_uses[ref.object_key] = uses
            else:
                del self.object_uses[ref.object_key]
                self.pending_deletes[ref.object_key] = None

    def use_objects_of(self, segment: Segment) -> None:
        """Count the objects of a segment that was read from a checkpoint."""
        for ref in (*segment.chunks, *segment.index_pages):
            self._use(ref.object_key)

    def resolve(self, segment_id: int) -> tuple[int, int]:
        """Follow merges: return the segment that holds the bytes now, and how far they are shifted.

        Raises ValueError when merges form a circle, which only a damaged state can hold.
        """
        target_id, shift = segment_id, 0
        for _ in range(len(self.moves) + 1):
            if target_id not in self.moves:
                return target_id, shift
            target_id, step = self.moves[target_id]
            shift += step
        raise ValueError(f"merges of segment {segment_id} form a circle")

    def forget_merged(self, before_ms: int, keep_max: int) -> bool:
        """Forget sources merged before a time, and the oldest above `keep_max`; none while chunks of one are flushed.

        Parts of large events are not counted: their writer sends an event again when its part is unknown.

        The place of those chunks must not depend on what a later checkpoint forgets, which may never become durable:
        replay would end in another state.

        Return whether any was forgotten.
        """
        if any(segment_id in self.moves for segment_id in self.flushing):
            return False
        usual = [name for name in self.merged if not is_transient_segment(name)]
        surplus = set(usual[: max(0, len(usual) - keep_max)])
        old = [name for name, item in self.merged.items() if name in surplus or item.timestamp_ms < before_ms]
        for name in old:
            del self.merged[name]
        known = {item.source_id for item in self.merged.values()}
        for segment_id in [segment_id for segment_id in self.moves if segment_id not in known]:
            del self.moves[segment_id]
        return bool(old)

    def leave_room(self) -> None:
        """Count out what is in memory: the container has ended."""
        for segment in self.segments.values():
            segment.pending.leave_room()
            segment.dirty.leave_room()
            self.values.forget(segment)

    # -- staged view ---------------------------------------------------------------------------------------------

    def reset_staged(self) -> None:
        """Make the staged view equal to the committed one (after replay)."""
        self.staged_by_name = dict(self.by_name)
        for segment in self.segments.values():
            segment.reset_staged()
            self.values.count(segment)

    def merge_event_count(self, source: Segment) -> int:
        """Return how many events a merge adds to its target (docs/protocol/wire.md#appends): a large one is 1."""
        if source.kind.is_transient:
            return 1
        count = source.latest.get(EVENT_COUNT, 0)
        return 0 if count == NULL_ATTRIBUTE else count
