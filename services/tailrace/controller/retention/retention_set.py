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


def thinned(recorded: Sequence[RecordedCut]) -> list[RecordedCut]:
    """Return the cuts to keep before another one is added: all that there is room for, else half of the older half.

    Old cuts become rarer in proportion to their age, so what a stream keeps is exact to about 2 %.
    """
    if len(recorded) < limits.RETENTION_CUTS_MAX:
        return list(recorded)
    half = len(recorded) // 2
    return [*recorded[:half:2], *recorded[half:]]
