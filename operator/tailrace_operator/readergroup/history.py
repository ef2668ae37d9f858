"""Estimate the age of unread data from the lengths that segments had at each measurement. Pure.

Segments do not store when a byte was written. When a measurement found a segment no longer than a position, the data
after that position was written later: this gives the maximum age. The first measurement that found the segment longer
gives the minimum age. If that was the first measurement of all, only the minimum age is known.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from tailrace.common import limits


class Age(NamedTuple):
    """The age of the oldest unread byte: the minimum, and the maximum if it is known."""

    least_s: float
    most_s: float | None


NOTHING_UNREAD = Age(0.0, 0.0)


class LengthHistory:
    """Lengths of one segment by time. Bounded: older ones are thinned out, so that ages get less exact, not smaller."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._lengths: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._times_s)

    def note(self, time_s: float, length: int) -> None:
        """Record the length at a time, which is later than all recorded before."""
        if len(self._lengths) > 1 and self._lengths[-1] == self._lengths[-2] == length:
            self._times_s[-1] = time_s  # only the first and the last time of a length matter
            return
        self._times_s.append(time_s)
        self._lengths.append(length)
        if len(self._times_s) > limits.OPERATOR_LAG_SAMPLES_MAX:
            half = limits.OPERATOR_LAG_SAMPLES_MAX // 2
            self._times_s = [*self._times_s[:half:2], *self._times_s[half:]]
            self._lengths = [*self._lengths[:half:2], *self._lengths[half:]]

    def age(self, position: int, now_s: float) -> Age:
        """Return the age of the byte at `position`; nothing is unread at or above the last recorded length."""
        after = bisect.bisect_right(self._lengths, position)
        if after == len(self._lengths):
            return NOTHING_UNREAD
        least_s = now_s - self._times_s[after]
        return Age(least_s, now_s - self._times_s[after - 1] if after > 0 else None)


def oldest(ages: list[Age]) -> Age:
    """Return the age of the oldest unread byte of several segments."""
    least_s = max((age.least_s for age in ages), default=0.0)
    if any(age.most_s is None for age in ages):
        return Age(least_s, None)
    return Age(least_s, max((age.most_s for age in ages if age.most_s is not None), default=0.0))
