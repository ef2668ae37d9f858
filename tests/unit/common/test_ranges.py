"""Key ranges (docs/protocol/naming.md#routing) and what must hold of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.errors import BadRequestError
from tailrace.common.ranges import (
    KeyRange,
    check_range,
    covers_exactly,
    equal_ranges,
    is_contiguous,
    same_cover,
    split_range,
)


@given(st.integers(1, 200))
def test_equal_ranges_partition_the_key_space(count: int) -> None:
    ranges = equal_ranges(count)
    assert len(ranges) == count
    assert covers_exactly(ranges)
    assert ranges[0].low == 0.0
    assert ranges[-1].high == 1.0


@given(st.floats(0, 0.4), st.floats(0.5, 1.0), st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_every_key_of_a_split_range_has_exactly_one_owner(low: float, high: float, count: int, share: float) -> None:
    parts = split_range(KeyRange(low, high), count)
    key = min(low + (high - low) * share, high)
    owners = [part for part in parts if part.contains(key)]
    assert len(owners) == (1 if key < high or high == 1.0 else 0)
    assert covers_exactly(parts, KeyRange(low, high))


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0.5, 1.1), (float("nan"), 1.0)])
def test_impossible_ranges_are_refused(low: float, high: float) -> None:
    with pytest.raises(BadRequestError, match="key range"):
        check_range(low, high)


def test_gaps_and_overlaps_are_seen() -> None:
    assert not covers_exactly([KeyRange(0, 0.5), KeyRange(0.6, 1)])
    assert not covers_exactly([KeyRange(0, 0.5), KeyRange(0.4, 1)])
    assert not covers_exactly([])
    assert is_contiguous([KeyRange(0.5, 0.75), KeyRange(0.25, 0.5)])


def test_same_cover_ignores_where_the_cuts_are() -> None:
    assert same_cover([KeyRange(0, 0.5), KeyRange(0.5, 0.8)], [KeyRange(0, 0.8)])
    assert not same_cover([KeyRange(0, 0.5)], [KeyRange(0, 0.6)])
    halves = [KeyRange(0, 0.1), KeyRange(0.1, 0.2)]
    assert same_cover([KeyRange(0, 0.2), KeyRange(0.7, 0.9)], [KeyRange(0.7, 0.9), *halves])
