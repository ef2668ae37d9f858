"""Sequence numbers per routing key: judged while they are read, and the pauses between acknowledgements. Pure.

Where a load runs for minutes, remembering every event is too much. A key's events are numbered from 0, so a reader
that sees all of them in order needs one number per key; everything else is a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

EXAMPLES_MAX: Final = 20
PAUSES_MAX: Final = 5000
PAUSE_MIN_S: Final = 0.3
"""Shorter ones are the load's own rhythm."""


@dataclass(slots=True)
class Sequences:
    """What was read: the next number that each key is to bring, and everything that was out of line."""

    following: dict[str, int] = field(default_factory=dict)
    events: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def see(self, key: str, number: int) -> None:
        """An event was read. A number that was passed over is lost, one that comes later again is late or twice."""
        self.events += 1
        expected = self.following.get(key, 0)
        if number < expected:
            self.violate("twice or reordered", f"{key}:{number} when {expected} was to come")
            return
        if number > expected:
            self.violate("passed over", f"{key}:{expected} to {number - 1}", number - expected)
        self.following[key] = number + 1

    def violate(self, kind: str, about: str, count: int = 1) -> None:
        """Something is wrong; the first ones are kept word for word."""
        self.violations[kind] += count
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{kind}: {about}")

    def report(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "events": self.events,
            "keys": self.following,
            "violations": dict(self.violations),
            "examples": self.examples,
        }


def differences(written: Mapping[str, int], read: Mapping[str, int]) -> list[str]:
    """Where the number of events of a key that was read is not the one that was written."""
    found = []
    for key in sorted({*written, *read}):
        if written.get(key, 0) != read.get(key, 0):
            found.append(f"{key}: {written.get(key, 0)} written, {read.get(key, 0)} read")
    return found


@dataclass(slots=True)
class Pauses:
    """Times without acknowledgement, per key: from one acknowledgement of a key to its next one.

    A writer over several segments goes on while one of them is away; so a pause is a key's, not the writer's.
    """

    last: dict[str, float] = field(default_factory=dict)
    found: list[tuple[float, float]] = field(default_factory=list)
    """(begin, end) of those of at least `PAUSE_MIN_S`, in seconds of the epoch; the shortest go when there are many."""

    def acknowledged(self, key: str, now_s: float) -> None:
        """An event of the key is durable."""
        before = self.last.get(key)
        self.last[key] = now_s
        if before is None or now_s - before < PAUSE_MIN_S:
            return
        self.found.append((before, now_s))
        if len(self.found) > 2 * PAUSES_MAX:
            self.found.sort(key=lambda pause: pause[0] - pause[1])
            del self.found[PAUSES_MAX:]

    def report(self) -> list[list[float]]:
        """The longest first, as JSON."""
        longest = sorted(self.found, key=lambda pause: pause[0] - pause[1])[:PAUSES_MAX]
        return [[round(begin, 3), round(end, 3)] for begin, end in longest]


def end_of_pause_s(pauses: list[list[float]], at_s: float) -> float:
    """Return how long after a moment the last pause ended that it fell into. Raises AssertionError: into none."""
    ends = [end for begin, end in pauses if begin <= at_s <= end]
    assert ends, f"no key paused at {at_s:.2f}: what was to be away was not"
    return max(ends) - at_s


def longest_pause_s(pauses: list[list[float]], begin_s: float, end_s: float) -> float:
    """The longest pause that touches a span of time."""
    return max((end - begin for begin, end in pauses if end >= begin_s and begin <= end_s), default=0.0)
