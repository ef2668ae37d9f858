"""Count latencies in logarithmic buckets like an HDR histogram (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

_BUCKETS_PER_DOUBLING: Final = 64  # a bucket is 1.1 % wide


class LatencyHistogram:
    """Counts of latencies from 1 µs on with an error below 1.1 %, in constant memory."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.maximum_s = 0.0

    def record(self, latency_s: float, count: int = 1) -> None:
        """Add a latency, `count` times. Less than 1 µs counts as 1 µs."""
        bucket = math.ceil(math.log2(max(latency_s, 1e-6) * 1e6) * _BUCKETS_PER_DOUBLING)
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.count += count
        self.maximum_s = max(self.maximum_s, latency_s)

    def percentile_s(self, share: float) -> float:
        """Return a percentile (nearest rank), `share` in (0, 1]; NaN when empty."""
        if not self.count:
            return math.nan
        rank = max(1, math.ceil(share * self.count))
        for upper_s, through in self._cumulative():
            if through >= rank:
                return min(upper_s, self.maximum_s)
        raise AssertionError("the last bucket holds the last rank")

    def merge(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram."""
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.count += other.count
        self.maximum_s = max(self.maximum_s, other.maximum_s)

    def _cumulative(self) -> Iterator[tuple[float, int]]:
        through = 0
        for bucket in sorted(self._counts):
            through += self._counts[bucket]
            yield 2 ** (bucket / _BUCKETS_PER_DOUBLING) / 1e6, through
