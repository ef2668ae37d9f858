"""Distribute segments over the readers of a group by the Java reader's rules. Pure.

See docs/protocol/reader-group-state.md#distribution.

Our readers follow the rules exactly, else Java readers and ours would take segments from each other repeatedly.
"""

from __future__ import annotations

from typing import Final

from tailrace.client.group.state.records import is_silent
from tailrace.client.group.state.state import DISTANCE_MIN, GroupState

TIME_UNIT_S: Final = 1.0


def relative_size(state: GroupState, reader: str) -> float:
    """Return a reader's load: its segments, scaled by its distance to the tail relative to the greatest distance."""
    owned = state.assigned.get(reader)
    if not owned:
        return 0.0
    greatest = max(_distance(state, name) for name, segments in state.assigned.items() if segments)
    return len(owned) * (_distance(state, reader) / greatest)


def _distance(state: GroupState, reader: str) -> int:
    return max(DISTANCE_MIN, state.distance.get(reader, 0))


def rank(state: GroupState, reader: str) -> int:
    """Return the reader's rank by load among online readers, 0 for the highest; −1 when it is offline."""
    if not state.is_online(reader):
        return -1
    ordered = sorted(state.assigned, key=lambda name: (-relative_size(state, name), name))
    return ordered.index(reader)


def acquire_timer_s(state: GroupState, reader: str) -> float:
    """Return the delay before the next attempt to acquire segments: the most loaded readers wait longest."""
    return max(1, len(state.assigned) - rank(state, reader)) * TIME_UNIT_S


def release_timer_s(state: GroupState, reader: str) -> float:
    """Return the delay before the next attempt to release a segment: the most loaded readers come first."""
    return (1 + max(0, rank(state, reader))) * TIME_UNIT_S


def lag_timer_s(state: GroupState) -> float:
    """Return the delay before the next position report of a reader."""
    return (len(state.assigned) + 1) * TIME_UNIT_S


def acquire_count(state: GroupState, reader: str) -> int:
    """Return how many free segments the reader should acquire; 0 while it must answer a checkpoint."""
    owned = state.assigned.get(reader)
    free = len(state.unassigned)
    if owned is None or free == 0 or state.due_for(reader) is not None:
        return 0
    readers = len(state.assigned)
    fair = (2 * state.segment_count + readers) // (2 * readers)  # total / readers, half rounded up
    return max(free // readers, min(free, fair - len(owned)), 1)


def segments_to_acquire(state: GroupState, reader: str) -> list[str]:
    """Choose the free segments to acquire: those that became free first."""
    return list(state.unassigned)[: acquire_count(state, reader)]


def segment_to_release(state: GroupState, reader: str) -> str | None:
    """Return the segment to release when this reader has clearly more than another; None otherwise."""
    owned = state.assigned.get(reader)
    if owned is None or len(owned) <= 1 or state.due_for(reader) is not None:
        return None
    smallest = min(relative_size(state, name) for name in state.assigned)
    if relative_size(state, reader) <= smallest + max(1, len(state.unassigned)):
        return None
    return sorted(owned)[hash_of(reader) % len(owned)]


def hash_of(text: str) -> int:
    """Return a stable hash that spreads choices between readers."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0x7FFFFFFF
    return value


def checkpoint_is_outstanding(state: GroupState) -> bool:
    """Return whether a checkpoint is open, so that no automatic one begins.

    See docs/protocol/reader-group-state.md#checkpoints.
    """
    return bool(state.due)


def may_checkpoint(state: GroupState) -> bool:
    """Return whether another manual checkpoint is allowed. Silent checkpoints do not count."""
    return len(state.outstanding_checkpoints()) < state.config.max_outstanding_checkpoints


def should_publish(state: GroupState) -> bool:
    """Return whether to publish the last checkpoint to the controller as the subscriber's cut.

    See docs/protocol/reader-group-state.md#checkpoints.
    """
    return state.config.retention == 2 and not state.published and bool(state.last_checkpoint)


__all__ = [
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
