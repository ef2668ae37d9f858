"""Choose which cuts at the tail are recorded, and which of them are kept. Pure.

See "Pravega Stream Retention" and docs/controller.md#retention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.model import RecordedCut


def is_due(recorded: Sequence[RecordedCut], now_ms: int, size_bytes: int, period_ms: int) -> bool:
    """Return whether a cut at the tail is to be recorded now.

    Not when the stream received nothing since the last one: that one is at the same position, and older.
    """
    if not recorded:
        return size_bytes > 0
    newest = recorded[-1]
    return size_bytes > newest.size_bytes and now_ms - newest.recorded_ms >= period_ms


def oldest_ms(recorded: Sequence[RecordedCut], head_bytes: int, tail_bytes: int, created_ms: int) -> int | None:
    """Return when the oldest byte between head and tail was written, at the earliest; None when there is none.

    It is the time of the last cut at or before the head, or of the stream's creation when nothing was truncated.
    Without such a cut, after a truncation by a call, it is the time of the first one behind the head, which is late by
    at most the time between two cuts.
    """
    if head_bytes >= tail_bytes:
        return None
    before = [each.recorded_ms for each in recorded if each.size_bytes <= head_bytes]
    if before:
        return before[-1]
    if head_bytes == 0:
        return created_ms
    return recorded[0].recorded_ms if recorded else None


def written_before_ms(recorded: Sequence[RecordedCut], position_bytes: int) -> int | None:
    """Return a time before which a byte behind the position was written, the earliest known; None: no cut is there."""
    return next((each.recorded_ms for each in recorded if each.size_bytes > position_bytes), None)


def between(recorded: Sequence[RecordedCut], from_ms: int, to_ms: int | None) -> Sequence[RecordedCut]:
    """Return the cuts around a span of time, oldest first.

    They begin with the newest one at or before `from_ms`, or with the oldest one, and end with the oldest one at or
    after `to_ms`, or with the newest one; None: with that one.
    """
    first = max((index for index, each in enumerate(recorded) if each.recorded_ms <= from_ms), default=0)
    last = len(recorded) - 1
    if to_ms is not None:
        last = next((index for index in range(first, last) if recorded[index].recorded_ms >= to_ms), last)
    return recorded[first : last + 1]


def thinned(recorded: Sequence[RecordedCut]) -> list[RecordedCut]:
    """Return the cuts to keep before another one is added: all that there is room for, else half of the older half.

    Old cuts become rarer in proportion to their age, so what a stream keeps is exact to about 2 %.
    """
    if len(recorded) < limits.RETENTION_CUTS_MAX:
        return list(recorded)
    half = len(recorded) // 2
    return [*recorded[:half:2], *recorded[half:]]
