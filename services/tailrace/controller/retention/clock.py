"""Say whether the time of an application counts: data are deleted by age only at times that two rounds agree on. Pure.

See docs/controller.md#clocks-that-are-wrong.

A controller's clock may be days ahead, and then all data look old. The time of an application therefore counts only
near that of the last one that counted, by whatever controller. A time far from it counts when an application about a
period earlier saw such a time: after a pause of all controllers, and after a clock was set right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.model import RecordedCut


class Judged(NamedTuple):
    """Whether a time counts, how far it is from the last one that did, and what is to be remembered as seen."""

    counts: bool
    lapse_ms: int
    seen_ms: int
    """0: nothing."""


def judged(now_ms: int, applied_ms: int, seen_ms: int, recorded: Sequence[RecordedCut], period_ms: int) -> Judged:
    """Judge the time of an application.

    `applied_ms` is the time of the last application that counted (0: not known), `seen_ms` one that a later application
    saw and that did not count (0: there was none). Without both, the newest recorded cut stands for the former.
    """
    leap_ms = limits.RETENTION_CLOCK_LEAP_PERIODS * period_ms + limits.RETENTION_CLOCK_LEAP_MS
    last_ms = applied_ms or (recorded[-1].recorded_ms if recorded else now_ms)
    lapse_ms = now_ms - last_ms
    if abs(lapse_ms) <= leap_ms:
        return Judged(True, lapse_ms, 0)
    since_ms = now_ms - seen_ms
    if limits.RETENTION_CLOCK_AGREES_PERIODS * period_ms <= since_ms <= leap_ms:
        return Judged(True, lapse_ms, now_ms)  # rounds that fail for long agree with each other
    return Judged(False, lapse_ms, seen_ms if 0 <= since_ms <= leap_ms else now_ms)
