"""Count the calls of a controller by name and status, and how long they took (docs/operations/observe.md#metrics)."""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tailrace.common import errors

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
"""Upper bounds, inclusive, of the buckets of durations; what took longer is in one more."""
OK: Final = 0
CANCELLED: Final = 1
CODE_NAMES: Final = {
    OK: "OK",
    CANCELLED: "CANCELLED",
    **{code: name.removeprefix("GRPC_") for name, code in vars(errors).items() if name.startswith("GRPC_")},
}
"""Names of the gRPC statuses that calls end with."""


@dataclass(slots=True)
class Durations:
    """A histogram of one call's durations, in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def note(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class CallStatistics:
    """Finished calls since the start. Names are those of the services' methods, so there are not many."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()
        """By name and gRPC status code."""
        self.durations: dict[str, Durations] = {}

    def note(self, rpc: str, code: int, seconds: float) -> None:
        """Count a call that has ended."""
        self.calls[rpc, code] += 1
        self.durations.setdefault(rpc, Durations()).note(seconds)
