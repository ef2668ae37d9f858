"""Apply updates to the state of a reader group (docs/protocol/reader-group-state.md#state).

`GroupState.apply` is deterministic, so readers that apply the same records hold the same state. An update with a
violated precondition would fail every client of the group. Therefore callers write such updates conditionally, computed
from exactly the state that they apply to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.client.group.state import records as r
from tailrace.common import names
from tailrace.common.errors import IllegalStateError

if TYPE_CHECKING:
    from tailrace.client.model import ReaderGroupConfig
    from tailrace.common.ranges import KeyRange

DISTANCE_UNKNOWN = 2**63 - 1
DISTANCE_MIN = 30_000


@dataclass(slots=True)
class GroupState:
    """State of a reader group. ``unassigned``, ``assigned`` and ``last_read`` map segments to offsets."""

    config: ReaderGroupConfig
    end_segments: dict[str, int] = field(default_factory=dict)
    updating_config: bool = False
    checkpoints: list[str] = field(default_factory=list)
    due: dict[str, list[str]] = field(default_factory=dict)
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    last_checkpoint: dict[str, int] | None = None
    published: bool = True
    distance: dict[str, int] = field(default_factory=dict)
    future: dict[str, list[int]] = field(default_factory=dict)
    assigned: dict[str, dict[str, int]] = field(default_factory=dict)
    unassigned: dict[str, int] = field(default_factory=dict)
    last_read: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, KeyRange | None] = field(default_factory=dict)
    heartbeats: dict[str, r.Heartbeat] = field(default_factory=dict)

    # -- derived ------------------------------------------------------------------------------------------------

    @property
    def online_readers(self) -> list[str]:
        """Return the online readers in the order in which they joined."""
        return list(self.assigned)

    @property
    def segment_count(self) -> int:
        """Return the number of assigned and free segments, without those that wait for predecessors."""
        return len(self.unassigned) + sum(len(owned) for owned in self.assigned.values())

    @property
    def end_of_data(self) -> bool:
        """Return whether the group has read everything up to its end cuts."""
        return not self.future and not self.unassigned and not any(self.assigned.values())

    def is_online(self, reader: str) -> bool:
        """Return whether the reader is online."""
        return reader in self.assigned

    def coarse_positions(self) -> dict[str, int]:
        """Return the offsets of free segments, and of assigned ones at the last checkpoint."""
        result = dict(self.unassigned)
        for owned in self.assigned.values():
            result.update(owned)
        return result

    def due_for(self, reader: str) -> str | None:
        """Return the oldest checkpoint that the reader has not answered."""
        for name in self.checkpoints:
            if reader in self.due.get(name, ()):
                return name
        return None

    def is_complete(self, checkpoint: str) -> bool:
        """Return whether all readers have answered; also true for unknown checkpoints."""
        return checkpoint not in self.due

    def outstanding_checkpoints(self) -> list[str]:
        """Return the incomplete checkpoints that have an event for the application."""
        return [name for name in self.checkpoints if name in self.due and not r.is_silent(name)]

    def range_of(self, segment: str) -> KeyRange | None:
        """Return the key range of a segment if the group has it."""
        return self.ranges.get(segment)

    # -- changes ------------------------------------------------------------------------------------------------

    def apply(self, update: r.Update) -> None:
        """Apply one update.

        Raises:
            IllegalStateError: the update contradicts the state; the group is unusable.
        """
        match update:
            case r.Init() | r.Compact():
                self._replace(update)
            case r.AddReader(reader):
                _require(reader not in self.assigned, f"reader {reader} is online already")
                self.assigned[reader] = {}
                self.heartbeats.pop(reader, None)
                self.distance.setdefault(reader, DISTANCE_UNKNOWN)
            case r.RemoveReader(reader, positions):
                self._remove_reader(reader, positions)
            case r.ReleaseSegment(reader, segment, offset):
                self._take_from(reader, segment)
                self.unassigned[segment] = offset
                if segment in self.last_read:
                    self.last_read[segment] = offset
            case r.AcquireSegment(reader, segment):
                _require(segment in self.unassigned, f"segment {segment} is not free")
                self._owned(reader)[segment] = self.unassigned.pop(segment)
            case r.UpdateDistanceToTail(reader, distance, last_read, heartbeat):
                self._update_distance(reader, distance, last_read or {})
                self._note_heartbeat(reader, heartbeat)
            case r.SegmentCompleted():
                self._complete_segment(update)
            case _:
                self._apply_to_checkpoints(update)

    def _apply_to_checkpoints(self, update: r.Update) -> None:
        match update:
            case r.CheckpointReader(checkpoint, reader, positions):
                self._answer_checkpoint(checkpoint, reader, positions)
            case r.CreateCheckpoint(checkpoint):
                self._create_checkpoint(checkpoint)
            case r.ClearCheckpointsBefore(checkpoint):
                if checkpoint in self.checkpoints:
                    index = self.checkpoints.index(checkpoint)
                    self._forget(self.checkpoints[:index])
                    del self.checkpoints[:index]
            case r.UpdateCheckpointPublished(published):
                self.published = published
            case r.UpdatingConfig(updating):
                self.updating_config = updating
            case r.RemoveOutstandingCheckpoints():
                self._forget(self.outstanding_checkpoints())

    def _replace(self, update: r.InitialUpdate) -> None:
        fresh = initial_state(update)
        for name in GroupState.__slots__:
            setattr(self, name, getattr(fresh, name))

    def _owned(self, reader: str) -> dict[str, int]:
        owned = self.assigned.get(reader)
        _require(owned is not None, f"reader {reader} is not online")
        assert owned is not None
        return owned

    def _take_from(self, reader: str, segment: str) -> int:
        owned = self._owned(reader)
        _require(segment in owned, f"reader {reader} does not own segment {segment}")
        return owned.pop(segment)

    def _remove_reader(self, reader: str, positions: r.Offsets) -> None:
        final = {segment: positions.get(segment, offset) for segment, offset in self.assigned.pop(reader, {}).items()}
        self.unassigned.update(final)
        self.distance.pop(reader, None)
        self.heartbeats.pop(reader, None)
        for checkpoint in list(self.checkpoints):
            if reader in self.due.get(checkpoint, ()):
                self._record_answer(checkpoint, reader, final)

    def _update_distance(self, reader: str, distance: int, last_read: r.RangedOffsets) -> None:
        self.distance[reader] = max(DISTANCE_MIN, distance)
        for (segment, _), offset in last_read.items():
            if segment in self.last_read:
                self.last_read[segment] = offset

    def _note_heartbeat(self, reader: str, heartbeat: r.Heartbeat | None) -> None:
        """Keep the heartbeat of an online reader; ignore one of an earlier session under the same name."""
        if heartbeat is None or reader not in self.assigned:
            return
        known = self.heartbeats.get(reader)
        if known is None or known.session == heartbeat.session:
            self.heartbeats[reader] = heartbeat

    def _complete_segment(self, update: r.SegmentCompleted) -> None:
        self._take_from(update.reader, update.segment)
        self.last_read.pop(update.segment, None)
        for segment, predecessors in update.successors.items():
            self.future.setdefault(segment, list(predecessors))
            self.ranges[segment] = update.ranges.get(segment)
        identifier = names.parse_segment_name(update.segment).identifier
        for segment, waiting in list(self.future.items()):
            left = [predecessor for predecessor in waiting if predecessor != identifier]
            self.future[segment] = left
            if not left:
                del self.future[segment]
                self.unassigned[segment] = 0
                self.last_read.setdefault(segment, 0)
        self.ranges.pop(update.segment, None)

    def _create_checkpoint(self, checkpoint: str) -> None:
        if checkpoint in self.positions:
            return
        if self.assigned:
            self.due[checkpoint] = list(self.assigned)
        self.positions[checkpoint] = dict(self.unassigned)
        self.checkpoints.append(checkpoint)

    def _answer_checkpoint(self, checkpoint: str, reader: str, positions: r.Offsets) -> None:
        if not r.is_silent(checkpoint):
            owned = self._owned(reader)
            owned.update({segment: offset for segment, offset in positions.items() if segment in owned})
        if checkpoint in self.due:
            _require(reader in self.due[checkpoint], f"reader {reader} has answered checkpoint {checkpoint} already")
            self._record_answer(checkpoint, reader, positions)

    def _record_answer(self, checkpoint: str, reader: str, positions: r.Offsets) -> None:
        waiting = self.due[checkpoint]
        waiting.remove(reader)
        self.positions[checkpoint].update(positions)
        if waiting:
            return
        del self.due[checkpoint]
        if not r.is_silent(checkpoint):
            self.last_checkpoint = self.positions[checkpoint]
            self.published = False

    def _forget(self, checkpoints: Iterable[str]) -> None:
        for name in checkpoints:
            self.due.pop(name, None)
            self.positions.pop(name, None)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise IllegalStateError(message)


def initial_state(update: r.InitialUpdate) -> GroupState:
    """Return the state of an initialisation record."""
    if isinstance(update, r.Init):
        starting = {segment: offset for (segment, _), offset in update.starting.items()}
        return GroupState(
            config=update.config,
            end_segments=dict(update.end_segments),
            updating_config=update.updating_config,
            unassigned=starting,
            last_read=dict(starting),
            ranges=dict(update.starting),
        )
    return _from_compact(update)


def _from_compact(update: r.Compact) -> GroupState:
    checkpoints = update.checkpoint_state
    return GroupState(
        config=update.config,
        end_segments=dict(update.end_segments),
        updating_config=update.updating_config,
        checkpoints=list(checkpoints.checkpoints),
        due={name: list(readers) for name, readers in checkpoints.due.items()},
        positions={name: dict(offsets) for name, offsets in checkpoints.positions.items()},
        last_checkpoint=dict(checkpoints.last_checkpoint or {}),
        published=checkpoints.published,
        distance=dict(update.distance),
        future={segment: list(predecessors) for segment, predecessors in update.future.items()},
        assigned={reader: dict(owned) for reader, owned in update.assigned.items()},
        unassigned=dict(update.unassigned),
        last_read=dict(update.last_read),
        ranges=dict(update.ranges),
        heartbeats=dict(update.heartbeats),
    )


def compact(state: GroupState) -> r.Compact:
    """Return the record that replaces all records before it (docs/protocol/reader-group-state.md#compaction)."""
    named = [*state.unassigned, *state.future, *state.last_read]
    named += [segment for owned in state.assigned.values() for segment in owned]
    return r.Compact(
        config=state.config,
        checkpoint_state=r.CheckpointState(
            checkpoints=list(state.checkpoints),
            due={name: list(readers) for name, readers in state.due.items()},
            positions={name: dict(offsets) for name, offsets in state.positions.items()},
            last_checkpoint=None if state.last_checkpoint is None else dict(state.last_checkpoint),
            published=state.published,
        ),
        distance=dict(state.distance),
        future={segment: list(predecessors) for segment, predecessors in state.future.items()},
        assigned={reader: dict(owned) for reader, owned in state.assigned.items()},
        unassigned=dict(state.unassigned),
        end_segments=dict(state.end_segments),
        last_read=dict(state.last_read),
        ranges={segment: state.ranges.get(segment) for segment in named},
        updating_config=state.updating_config,
        heartbeats=dict(state.heartbeats),
    )


def replay(state: GroupState | None, updates: Sequence[r.Update]) -> GroupState:
    """Apply updates in order. Without a state the first one must be an initial one."""
    for update in updates:
        if state is None:
            _require(isinstance(update, r.Init | r.Compact), "the group has updates before its first state")
            assert isinstance(update, r.Init | r.Compact)
            state = initial_state(update)
        else:
            state.apply(update)
    assert state is not None
    return state
