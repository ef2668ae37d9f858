"""How fast a segment is written, averaged over several windows (docs/controller.md#automatic-scaling). Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class SegmentRate:
    """Averages of one counter, weighted towards the present by each window.

    A mean takes the time since the first sample into account: right after it a window does not stand for more than was
    seen. One burst at the beginning is therefore no high rate later.
    """

    __slots__ = ("_before", "_left_out", "_sampled_s", "_spread", "_spread_s", "_sums", "_windows_s", "begun_s", "key")

    def __init__(self, key: object, windows_s: Sequence[float], count: int, now_s: float) -> None:
        """Begin at a count. ``key`` is what the caller compares to know whether the averages are still of use."""
        self.key = key
        self.begun_s = self._sampled_s = now_s
        self._windows_s = windows_s
        self._before = count
        self._left_out = 0
        self._sums = [0.0] * len(windows_s)
        self._spread = [0.0] * len(windows_s)
        self._spread_s = now_s

    def sample(self, count: int, now_s: float) -> None:
        """Take the counter's present value."""
        lapse_s = now_s - self._sampled_s
        if lapse_s <= 0:
            return
        added = count - self._before
        out = min(self._left_out, added)  # what is left out may be known before it is counted
        self._left_out -= out
        rate = (added - out) / lapse_s
        self._before, self._sampled_s = count, now_s
        self._age_spread(now_s)
        for number, window_s in enumerate(self._windows_s):
            old = math.exp(-lapse_s / window_s)
            self._sums[number] = old * self._sums[number] + (1 - old) * rate + self._spread[number]
            self._spread[number] = 0.0

    def spread(self, amount: int, lapse_s: float, now_s: float) -> None:
        """Take so much of what the counter rises by now as if it had come evenly over the past ``lapse_s``."""
        self._left_out += amount
        self._age_spread(now_s)
        seen_s = min(lapse_s, now_s - self.begun_s)
        for number, window_s in enumerate(self._windows_s):
            self._spread[number] += amount / lapse_s * -math.expm1(-seen_s / window_s)

    def _age_spread(self, now_s: float) -> None:
        lapse_s, self._spread_s = now_s - self._spread_s, now_s
        for number, window_s in enumerate(self._windows_s):
            self._spread[number] *= math.exp(-lapse_s / window_s)

    def sampled_before(self, time_s: float) -> bool:
        """Return whether the last sample, or the beginning, was before a time."""
        return self._sampled_s < time_s

    def rates(self) -> list[float]:
        """Return the mean rate per second of each window, at the last sample."""
        age_s = self._sampled_s - self.begun_s
        if age_s <= 0:
            return [0.0] * len(self._windows_s)
        sums = zip(self._sums, self._windows_s, strict=True)
        return [total / -math.expm1(-age_s / window_s) for total, window_s in sums]
