"""Strict bounds on how long clients wait: a fault that takes too long is repeated a few times, and the best counts.

A virtual machine gets less than the processor time it asks for while its host is busy, and a single measurement may
show the host instead of the product. Repeating excuses one bad moment; it does not move the bound. Every figure is
printed, with the processor time that the host withheld meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

TRIES_MAX: Final = 3

REPORT: Final[list[str]] = []
"""A line for each measurement of this run; `tests/conftest.py` prints them at the end."""

_STAT = Path("/proc/stat")
_STOLEN = 7


class StolenTime:
    """Processor time of all processors together that the host withheld since this was made."""

    def __init__(self) -> None:
        self._before_s = _stolen_s()

    def seconds(self) -> float:
        """Return how much until now."""
        return _stolen_s() - self._before_s


@dataclass
class Try:
    """One run of a fault; `note` its figures before the next one begins."""

    number: int
    figures_s: dict[str, float] = field(default_factory=dict)
    stolen: StolenTime = field(default_factory=StolenTime)

    def note(self, of: str, seconds: float) -> None:
        """Record how long something waited: a client, or what the test names."""
        self.figures_s[of] = seconds


@dataclass
class Tries:
    """Runs of one fault until the best figure of each name is below its bound, `TRIES_MAX` at most.

    ``for attempt in Tries("pod killed", {"gap": 10.0}):`` The loop ends when every bound is held. It raises
    AssertionError with all figures when the last try did not hold them. Nothing but latency belongs in here: what must
    never be lost, doubled or reordered is asserted in each try by itself.
    """

    what: str
    bounds_s: Mapping[str, float]
    tries_max: int = TRIES_MAX
    done: list[Try] = field(default_factory=list)

    def __iter__(self) -> Iterator[Try]:
        assert self.bounds_s, f"{self.what} has no bound"
        for number in range(1, self.tries_max + 1):
            attempt = Try(number)
            yield attempt
            stolen_s = attempt.stolen.seconds()
            missing = self.bounds_s.keys() - attempt.figures_s.keys()
            assert not missing, f"{self.what}: not measured: {sorted(missing)}"
            self.done.append(attempt)
            self._report(attempt, stolen_s)
            if self.holds:
                return
        raise AssertionError("clients waited too long:\n" + "\n".join(REPORT[-len(self.done) :]))

    def best_s(self, of: str) -> float:
        """Return the shortest wait of all tries."""
        return min(attempt.figures_s[of] for attempt in self.done)

    @property
    def holds(self) -> bool:
        """Whether the best figure of each name is below its bound."""
        return bool(self.done) and all(self.best_s(of) < bound_s for of, bound_s in self.bounds_s.items())

    def _report(self, attempt: Try, stolen_s: float) -> None:
        figures = ", ".join(
            f"{of} {seconds:.2f} s" + (f" (bound {self.bounds_s[of]:g} s)" if of in self.bounds_s else "")
            for of, seconds in attempt.figures_s.items()
        )
        number = f"try {attempt.number} of {self.tries_max}"
        line = f"{self.what}, {number}: {figures}; {stolen_s:.2f} s of processor time stolen"
        REPORT.append(line)
        print(line)


def _stolen_s() -> float:
    if not _STAT.exists():
        return 0.0
    ticks = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    return ticks[_STOLEN] / os.sysconf("SC_CLK_TCK")
