"""The times of automatic scaling (docs/protocol/server.md#auto-scaling). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.common import limits

_MINUTE_MS: Final = 60_000
_WINDOWS_MINUTES: Final = (2, 5, 10, 20)
_COOL_DOWN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class ScalingTimes:
    """All times of automatic scaling, times one factor: 0.01 turns ten minutes into six seconds, to try it out."""

    factor: float = 1.0

    @property
    def windows_ms(self) -> tuple[int, int, int, int]:
        """Return the windows over which rates are averaged: 2, 5, 10 and 20 minutes."""
        two, five, ten, twenty = (round(_MINUTE_MS * minutes * self.factor) for minutes in _WINDOWS_MINUTES)
        return two, five, ten, twenty

    @property
    def sample_ms(self) -> float:
        """Return the least time between two samples of a segment, 5 seconds: a younger one has no rate yet."""
        return self.windows_ms[0] / limits.SEGMENT_RATE_SAMPLES_PER_WINDOW

    @property
    def rates_shown_s(self) -> float:
        """Return how long a rate is shown that was not measured again: 2 minutes."""
        return 4 * self.period_s

    @property
    def split_age_s(self) -> float:
        """Return how long a segment must have been measured before it is split: 10 minutes."""
        return _COOL_DOWN_S * self.factor

    @property
    def merge_age_s(self) -> float:
        """Return how long a segment must have been measured before it is merged: 20 minutes."""
        return 2 * _COOL_DOWN_S * self.factor

    @property
    def period_s(self) -> float:
        """Return the time between two looks at the rates: 30 seconds."""
        return max(limits.SCALING_PERIOD_MIN_S, limits.SCALING_PERIOD_S * self.factor)
