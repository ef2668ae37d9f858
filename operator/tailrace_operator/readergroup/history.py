"""How old unread data is, from the lengths that segments had when they were looked at. Pure.

Nothing stored tells when a byte was written. But a segment that was no longer than a position at one look got what is
unread after that look: so much is its age at most. A look that found the segment longer tells the least. Where the
first look of all found it longer already, only the least age is known.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from tailrace.common import limits


class Age(NamedTuple):
    """Age of the oldest unread byte: at least so much, and at most, if that is known."""

    least_s: float
    most_s: float | None


NOTHING_UNREAD = Age(0.0, 0.0)


class LengthHistory:
    """Lengths of one segment in order of time; bounded, older ones get sparse, so ages get less exact, never less."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._lengths: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._times_s)

    def note(self, time_s: float, length: int) -> None:
        """The segment had this length then; later than all that was noted before."""
        if len(self._lengths) > 1 and self._lengths[-1] == self._lengths[-2] == length:
            self._times_s[-1] = time_s  # the first and the last look at a length say all
            return
        self._times_s.append(time_s)
        self._lengths.append(length)
        if len(self._times_s) > limits.OPERATOR_LAG_SAMPLES_MAX:
            half = limits.OPERATOR_LAG_SAMPLES_MAX // 2
            self._times_s = [*self._times_s[:half:2], *self._times_s[half:]]
            self._lengths = [*self._lengths[:half:2], *self._lengths[half:]]

    def age(self, position: int, now_s: float) -> Age:
        """Age of the byte at `position`, which is below the last length noted (else nothing is unread)."""
        after = bisect.bisect_right(self._lengths, position)
        if after == len(self._lengths):
            return NOTHING_UNREAD
        least_s = now_s - self._times_s[after]
        return Age(least_s, now_s - self._times_s[after - 1] if after > 0 else None)


def oldest(ages: list[Age]) -> Age:
    """The age of the oldest unread byte of several segments."""
    least_s = max((age.least_s for age in ages), default=0.0)
    if any(age.most_s is None for age in ages):
        return Age(least_s, None)
    return Age(least_s, max((age.most_s for age in ages if age.most_s is not None), default=0.0))
