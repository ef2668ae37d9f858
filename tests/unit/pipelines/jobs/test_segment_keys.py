"""Routing keys for the segments of a stream (docs/spark-jobs.md#replay)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.hashing import key_position
from tailrace.common.ranges import KeyRange, equal_ranges, split_range
from tailrace.pipelines.jobs.segment_keys import segment_keys


@given(st.integers(1, 40), st.integers(1, 5))
def test_a_key_lies_in_the_range_of_its_segment(count: int, parts: int) -> None:
    """Also in those of its predecessors: so its segment in a stream with the same ranges has the same events."""
    first = equal_ranges(count)
    ranges = dict(enumerate(first + [part for each in first for part in split_range(each, parts)]))
    keys = segment_keys(ranges)
    assert keys.keys() == ranges.keys()
    assert all(ranges[each].contains(key_position(key)) for each, key in keys.items())
    assert segment_keys(ranges) == keys


def test_a_range_narrower_than_all_keys_gets_the_nearest() -> None:
    narrow = KeyRange(0.5, 0.5 + 2**-50)
    keys = segment_keys({0: KeyRange(0.0, 0.5), 1: narrow})
    assert abs(key_position(keys[1]) - 0.5) < 0.001


def test_a_segment_keeps_its_key_when_the_stream_is_scaled() -> None:
    """A run that goes on after a scale writes its events where the run before wrote those before them."""
    ranges = dict(enumerate(equal_ranges(3)))
    narrower = {3 + each: part for each, part in enumerate(split_range(ranges[1], 200))}
    keys = segment_keys(ranges | narrower)
    assert {each: keys[each] for each in ranges} == segment_keys(ranges)


def test_no_segments_need_no_keys() -> None:
    assert segment_keys({}) == {}
