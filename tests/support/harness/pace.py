"""How long something may take on this machine at this time: bounds of tests that measure what clients feel.

A virtual machine gets less than the processor time it asks for while its host is busy; everything takes longer then, by
a factor that Linux tells. Bounds of the short form, which runs on machines that others use too, grow by it; the full
form holds to the bounds themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

STRETCH_MAX = 5.0
"""A machine that is slower than this shows nothing."""

_STAT = Path("/proc/stat")
_TICKS = {"user": 0, "nice": 1, "system": 2, "irq": 5, "softirq": 6}
_STOLEN = 7


class Pace:
    """Of this machine, since this was made."""

    def __init__(self) -> None:
        self._is_strict = os.environ.get("TAILRACE_TEST_PROFILE") == "full"
        self._before = _processor_ticks()

    def stretch(self) -> float:
        """By which factor what runs here took longer, because the host did not let it run; 1: not at all."""
        busy, stolen = (now - before for now, before in zip(_processor_ticks(), self._before, strict=True))
        return min(1 + stolen / max(busy, 1), STRETCH_MAX)

    def bound_s(self, bound_s: float) -> float:
        """What a bound, in seconds, is here and since this was made."""
        return bound_s if self._is_strict else bound_s * self.stretch()


def _processor_ticks() -> tuple[int, int]:
    """Of all processors together: what they worked, and what they were to work and the host did not let them."""
    if not _STAT.exists():
        return 0, 0
    ticks = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    return sum(ticks[place] for place in _TICKS.values()), ticks[_STOLEN]
