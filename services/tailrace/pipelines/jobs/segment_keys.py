"""Choose a routing key for each segment of a stream (docs/spark-jobs.md#replay). Pure."""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, Final

from tailrace.client.hashing import key_position
from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.common.ranges import KeyRange

_KEYS_FOR_EACH_RANGE: Final = 64
"""Numbers tried for a range, in proportion to its width: with as many, one lies in it but for one case of e⁶⁴."""


def segment_keys(ranges: Mapping[int, KeyRange]) -> dict[int, str]:
    """Return a routing key for each segment, by its id: of the keys that were tried the nearest to the range's middle.

    So a stream with the same segments gets them as the source has them, and a segment's successors go where it goes
    as long as their ranges are in the range of one segment there. A segment's key depends on its range alone, so it
    stays the same however the stream is scaled later.
    """
    counts = {identifier: _count(each) for identifier, each in ranges.items()}
    placed = [(key_position(str(number)), str(number)) for number in range(max(counts.values(), default=0))]
    tried = {count: sorted(placed[:count]) for count in set(counts.values())}
    return {identifier: _nearest(tried[counts[identifier]], sum(each) / 2) for identifier, each in ranges.items()}


def _count(key_range: KeyRange) -> int:
    """Return how many numbers are tried for a range: a power of two, so that ranges have few different counts."""
    wanted = math.ceil(_KEYS_FOR_EACH_RANGE / key_range.width)
    return int(min(limits.SPARK_ROUTING_KEYS_MAX, 1 << (wanted - 1).bit_length()))


def _nearest(tried: list[tuple[float, str]], middle: float) -> str:
    at = bisect.bisect(tried, (middle, ""))
    return min(tried[max(0, at - 1) : at + 1], key=lambda each: abs(each[0] - middle))[1]
