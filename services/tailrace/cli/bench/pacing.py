"""Pace an open loop: each event is due at a fixed time, independent of earlier ones (pure).

See docs/performance.md#how-the-benchmarks-measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """`rate_per_s` events from `start_s` on, evenly spaced. Latency counts from an event's due time."""

    start_s: float
    rate_per_s: float

    def due_by(self, now_s: float) -> int:
        """Return how many events are due at that time; the first is due at the start."""
        if now_s < self.start_s:
            return 0
        return math.floor((now_s - self.start_s) * self.rate_per_s + 1e-9) + 1

    def due_at_s(self, index: int) -> float:
        """Return the due time of event `index` (from 0)."""
        return self.start_s + index / self.rate_per_s
