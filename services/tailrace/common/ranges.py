"""Ranges of the routing-key space [0, 1): what a segment owns (docs/protocol/naming.md#routing)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class KeyRange(NamedTuple):
    """Part of the key space: ``low`` inclusive, ``high`` exclusive (inclusive where it is 1.0)."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """Return the share of the key space."""
        return self.high - self.low

    def contains(self, key: float) -> bool:
        """Return whether a hashed key in [0, 1] belongs to the range."""
        return self.low <= key < self.high or (key == 1.0 and self.high == 1.0)

    def overlaps(self, other: KeyRange) -> bool:
        """Return whether the two share more than an edge."""
        return self.low < other.high and other.low < self.high


WHOLE = KeyRange(0.0, 1.0)


def check_range(low: float, high: float) -> KeyRange:
    """Return the range if 0 <= low < high <= 1. Raises BadRequestError that names the key range otherwise."""
    if not 0.0 <= low < high <= 1.0:  # also refuses NaN
        raise BadRequestError(f"key range [{low}, {high}) is not a part of [0, 1)")
    return KeyRange(low, high)


def split_range(key_range: KeyRange, count: int) -> list[KeyRange]:
    """Return `count` equal parts that join without a gap and end exactly where the range ends."""
    if count < 1:
        raise BadRequestError(f"a key range cannot be split into {count} parts")
    low, high = key_range
    edges = [low + (high - low) * i / count for i in range(count)] + [high]
    return [KeyRange(a, b) for a, b in itertools.pairwise(edges)]


def equal_ranges(count: int) -> list[KeyRange]:
    """Return the whole key space in `count` equal parts."""
    return split_range(WHOLE, count)


def is_contiguous(ranges: Iterable[KeyRange]) -> bool:
    """Return whether the ranges, sorted, join without gap or overlap."""
    ordered = sorted(ranges)
    return all(a.high == b.low for a, b in itertools.pairwise(ordered))


def covers_exactly(ranges: Sequence[KeyRange], whole: KeyRange = WHOLE) -> bool:
    """Return whether the ranges partition `whole`: no gap, no overlap, same edges (docs/protocol/naming.md#routing)."""
    if not ranges:
        return False
    ordered = sorted(ranges)
    return ordered[0].low == whole.low and ordered[-1].high == whole.high and is_contiguous(ordered)


def same_cover(first: Sequence[KeyRange], second: Sequence[KeyRange]) -> bool:
    """Return whether two sets of ranges without overlaps cover the same keys (a rule of scaling).

    See docs/protocol/controller.md#calls.
    """
    return _joined(first) == _joined(second)


def _joined(ranges: Sequence[KeyRange]) -> list[KeyRange] | None:
    """Return the maximal joined intervals; None when ranges overlap."""
    result: list[KeyRange] = []
    for item in sorted(ranges):
        if result and item.low < result[-1].high:
            return None
        if result and item.low == result[-1].high:
            result[-1] = KeyRange(result[-1].low, item.high)
        else:
            result.append(item)
    return result
