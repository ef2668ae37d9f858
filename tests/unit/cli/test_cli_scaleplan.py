"""Which segments a scale seals and what replaces them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.scaleplan import ScalePlan, find_segment, plan_changes, plan_count
from tailrace.client.model import SegmentRange
from tailrace.common.errors import BadRequestError
from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange, covers_exactly, equal_ranges, same_cover


def segments_of(ranges: list[KeyRange], epoch: int = 0) -> list[SegmentRange]:
    return [SegmentRange(segment_id(number, epoch), key_range) for number, key_range in enumerate(ranges)]


def after(segments: list[SegmentRange], plan: ScalePlan) -> list[KeyRange]:
    kept = [segment.key_range for segment in segments if segment.identifier not in plan.sealed]
    return sorted([*kept, *plan.ranges])


@given(st.integers(1, 40), st.integers(1, 40))
def test_to_a_number_of_segments(present: int, wanted: int) -> None:
    segments = segments_of(equal_ranges(present))
    plan = plan_count(segments, wanted)
    assert after(segments, plan) == equal_ranges(wanted)
    assert plan.resulting_count == wanted
    assert plan.changes_nothing == (present == wanted)
    if not plan.changes_nothing:
        sealed = [segment.key_range for segment in segments if segment.identifier in plan.sealed]
        assert same_cover(sealed, plan.ranges)


@given(st.lists(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=12, unique=True), st.integers(1, 12))
def test_to_a_number_of_segments_from_uneven_ones(edges: list[float], wanted: int) -> None:
    bounds = [0.0, *sorted(edges), 1.0]
    segments = segments_of([KeyRange(low, high) for low, high in itertools.pairwise(bounds)])
    assert after(segments, plan_count(segments, wanted)) == equal_ranges(wanted)


def test_halving_the_segments_of_a_stream_keeps_the_edges() -> None:
    segments = segments_of(equal_ranges(4))
    plan = plan_count(segments, 2)
    assert plan == ScalePlan((0, 1, 2, 3), (KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)), 2)


def test_segments_that_are_right_already_stay() -> None:
    segments = segments_of([KeyRange(0.0, 0.5), KeyRange(0.5, 0.75), KeyRange(0.75, 1.0)])
    assert plan_count(segments, 2) == ScalePlan((1, 2), (KeyRange(0.5, 1.0),), 2)


def test_splits_and_merges_together() -> None:
    segments = segments_of(equal_ranges(4))
    plan = plan_changes(segments, ["0:2"], ["3,2"])
    assert plan.sealed == (0, 2, 3)
    assert plan.ranges == (KeyRange(0.0, 0.125), KeyRange(0.125, 0.25), KeyRange(0.5, 1.0))
    assert plan.resulting_count == 4
    assert covers_exactly(after(segments, plan))


def test_a_segment_is_found_by_id_number_and_name() -> None:
    segments = [SegmentRange(segment_id(7, 3), KeyRange(0.0, 1.0))]
    for text in (str(segment_id(7, 3)), "7", "7.#epoch.3", " 7 "):
        assert find_segment(segments, text) is segments[0]
    for text in ("8", "7.#epoch.2", "-7", "", "seven", "7.0"):
        with pytest.raises(BadRequestError):
            find_segment(segments, text)


@pytest.mark.parametrize(
    ("splits", "merges", "message"),
    [
        (["0"], [], "of the form ID:N"),
        (["0:1"], [], "of the form ID:N"),
        (["0:x"], [], "of the form ID:N"),
        (["9:2"], [], "segment 9 is not active; active are 0, 1, 2, 3"),
        ([], ["0"], "of the form ID,ID"),
        ([], ["0,2"], "are not neighbours"),
        ([], ["0,0"], "are not neighbours"),
        (["0:2"], ["0,1"], "named twice"),
        (["0:10000"], [], "segments would be left"),
    ],
)
def test_what_cannot_be_done(splits: list[str], merges: list[str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        plan_changes(segments_of(equal_ranges(4)), splits, merges)


def test_how_many_segments_there_may_be() -> None:
    for count in (0, 10_001):
        with pytest.raises(BadRequestError, match="are possible"):
            plan_count(segments_of(equal_ranges(1)), count)
