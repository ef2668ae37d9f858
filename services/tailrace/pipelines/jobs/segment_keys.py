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
"""Numbers tried for the narrowest range: with as many, one lies in it but for one case of e⁶⁴."""


def segment_keys(ranges: Mapping[int, KeyRange]) -> dict[int, str]:
    """Return a routing key for each segment, by its id: of the keys that were tried the nearest to the range's middle.

    So a stream with the same segments gets them as the source has them, and a segment's successors go where it goes
    as long as their ranges are in the range of one segment there. The same ranges give the same keys.
    """
    if not ranges:
        return {}
    narrowest = min(each.width for each in ranges.values())
    count = min(limits.SPARK_ROUTING_KEYS_MAX, math.ceil(_KEYS_FOR_EACH_RANGE / narrowest))
    tried = sorted((key_position(str(number)), str(number)) for number in range(count))
    return {identifier: _nearest(tried, (each.low + each.high) / 2) for identifier, each in ranges.items()}


def _nearest(tried: list[tuple[float, str]], middle: float) -> str:
    at = bisect.bisect(tried, (middle, ""))
    return min(tried[max(0, at - 1) : at + 1], key=lambda each: abs(each[0] - middle))[1]
