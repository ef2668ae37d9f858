"""An open loop: when each event is due, whatever became of those before (pure; performance §5)."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """`rate_per_s` events from `start_s` on, evenly spaced. Latency counts from when an event was due, not sent."""

    start_s: float
    rate_per_s: float

    def due_by(self, now_s: float) -> int:
        """How many events are due at that time; the first is due at the start."""
        if now_s < self.start_s:
            return 0
        return math.floor((now_s - self.start_s) * self.rate_per_s + 1e-9) + 1

    def due_at_s(self, index: int) -> float:
        """When event `index` (from 0) is due."""
        return self.start_s + index / self.rate_per_s
