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

    Not when the stream received nothing since the last one: that one is at the same position, and older. Half a period
    after it is enough: a stream may have its turn earlier in this round than in the last one. A cut of the future was
    recorded by a clock that was wrong: retention goes on.
    """
    if not recorded:
        return size_bytes > 0
    newest = recorded[-1]
    lapse_ms = now_ms - newest.recorded_ms
    return size_bytes > newest.size_bytes and (lapse_ms < 0 or lapse_ms >= period_ms / 2)


def time_of_next(recorded: Sequence[RecordedCut], now_ms: int) -> int:
    """Return the time of a cut that is recorded now: not before that of the newest one, whose clock may be wrong."""
    return max(now_ms, recorded[-1].recorded_ms) if recorded else now_ms


def oldest_ms(
    recorded: Sequence[RecordedCut], until_head: int, head_bytes: int, tail_bytes: int, created_ms: int
) -> int | None:
    """Return when the oldest byte between head and tail was written, at the earliest; None when there is none.

    `until_head` is how many of the cuts lie before the head or at it in every segment: the first ones. It is the time
    of the last of them, or of the stream's creation when nothing was truncated. Without such a cut, after a truncation
    between two cuts, it is the time of the first one, which is late by at most the time between two cuts.
    """
    if head_bytes >= tail_bytes:
        return None
    if until_head:
        return recorded[until_head - 1].recorded_ms
    if head_bytes == 0:
        return created_ms
    return recorded[0].recorded_ms if recorded else None


def written_before_ms(recorded: Sequence[RecordedCut], until_position: int) -> int | None:
    """Return a time before which a byte behind a position was written, the earliest known; None: no cut is there.

    `until_position` is how many of the cuts lie before the position or at it in every segment: the first ones. The
    next one has bytes before it that lie behind the position.
    """
    return recorded[until_position].recorded_ms if until_position < len(recorded) else None


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
