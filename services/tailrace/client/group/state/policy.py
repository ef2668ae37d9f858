"""How readers share the segments of a group: the Java reader's rules as pure functions (reader-group-state §6).

Our readers follow them exactly, else the two kinds would fight over segments.
"""

from __future__ import annotations

from typing import Final

from tailrace.client.group.state.records import is_silent
from tailrace.client.group.state.state import DISTANCE_MIN, GroupState

TIME_UNIT_S: Final = 1.0
BUSY_TIMER_S: Final = 30.0
"""What the acquire and release timers are set to while an attempt runs."""


def relative_size(state: GroupState, reader: str) -> float:
    """Load of a reader: segments owned, scaled by its distance to the tail against the greatest among owners."""
    owned = state.assigned.get(reader)
    if not owned:
        return 0.0
    greatest = max(_distance(state, name) for name, segments in state.assigned.items() if segments)
    return len(owned) * (_distance(state, reader) / greatest)


def _distance(state: GroupState, reader: str) -> int:
    return max(DISTANCE_MIN, state.distance.get(reader, 0))


def rank(state: GroupState, reader: str) -> int:
    """Place among the online readers by load, 0 = most loaded; −1 when the reader is not online."""
    if not state.is_online(reader):
        return -1
    ordered = sorted(state.assigned, key=lambda name: (-relative_size(state, name), name))
    return ordered.index(reader)


def acquire_timer_s(state: GroupState, reader: str) -> float:
    """Wait before the next look for free segments: the most loaded readers wait longest."""
    return max(1, len(state.assigned) - rank(state, reader)) * TIME_UNIT_S


def release_timer_s(state: GroupState, reader: str) -> float:
    """Wait before the next look whether to give a segment away: the most loaded readers look first."""
    return (1 + max(0, rank(state, reader))) * TIME_UNIT_S


def lag_timer_s(state: GroupState) -> float:
    """Wait before a reader tells again how far it has read."""
    return (len(state.assigned) + 1) * TIME_UNIT_S


def acquire_count(state: GroupState, reader: str) -> int:
    """How many free segments the reader should take now; 0 while a checkpoint is due for it or nothing is free."""
    owned = state.assigned.get(reader)
    free = len(state.unassigned)
    if owned is None or free == 0 or state.due_for(reader) is not None:
        return 0
    readers = len(state.assigned)
    fair = (2 * state.segment_count + readers) // (2 * readers)  # total / readers, half rounded up
    return max(free // readers, min(free, fair - len(owned)), 1)


def segments_to_acquire(state: GroupState, reader: str) -> list[str]:
    """Which free segments to take: any will do, so those that became free first."""
    return list(state.unassigned)[: acquire_count(state, reader)]


def segment_to_release(state: GroupState, reader: str) -> str | None:
    """The segment to give away, when this reader has clearly more than another; None otherwise."""
    owned = state.assigned.get(reader)
    if owned is None or len(owned) <= 1 or state.due_for(reader) is not None:
        return None
    smallest = min(relative_size(state, name) for name in state.assigned)
    if relative_size(state, reader) <= smallest + max(1, len(state.unassigned)):
        return None
    return sorted(owned)[hash_of(reader) % len(owned)]


def hash_of(text: str) -> int:
    """A stable hash that spreads choices between readers."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0x7FFFFFFF
    return value


def checkpoint_is_outstanding(state: GroupState) -> bool:
    """Whether anything at all is due, so that no automatic checkpoint is begun (reader-group-state §5)."""
    return bool(state.due)


def may_checkpoint(state: GroupState) -> bool:
    """Whether another manual checkpoint is allowed: silent ones do not count against the maximum."""
    return len(state.outstanding_checkpoints()) < state.config.max_outstanding_checkpoints


def should_publish(state: GroupState) -> bool:
    """Whether the last checkpoint should be told to the controller as the subscriber's cut (§5 "publish")."""
    return state.config.retention == 2 and not state.published and bool(state.last_checkpoint)


__all__ = [
    "BUSY_TIMER_S",
    "TIME_UNIT_S",
    "acquire_count",
    "acquire_timer_s",
    "checkpoint_is_outstanding",
    "is_silent",
    "lag_timer_s",
    "may_checkpoint",
    "rank",
    "relative_size",
    "release_timer_s",
    "segment_to_release",
    "segments_to_acquire",
    "should_publish",
]
