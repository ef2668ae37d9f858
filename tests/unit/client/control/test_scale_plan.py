"""Which segments a scale seals and what replaces them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.control.scale_plan import ScalePlan, active_text, plan_changes, plan_count
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
    plan = plan_changes(segments, [(0, 2)], [[3, 2]])
    assert plan.sealed == (0, 3, 2)
    assert plan.ranges == (KeyRange(0.0, 0.125), KeyRange(0.125, 0.25), KeyRange(0.5, 1.0))
    assert plan.resulting_count == 4
    assert covers_exactly(after(segments, plan))


@given(st.data())
def test_splits_and_merges_cover_what_they_seal(data: st.DataObject) -> None:
    segments = segments_of(equal_ranges(data.draw(st.integers(2, 12))))
    first = data.draw(st.integers(0, len(segments) - 2))
    last = data.draw(st.integers(first + 1, len(segments) - 1))
    others = [number for number in range(len(segments)) if not first <= number <= last]
    splits = [(number, data.draw(st.integers(2, 5))) for number in others if data.draw(st.booleans())]
    merged = data.draw(st.permutations(range(first, last + 1)))
    plan = plan_changes(segments, splits, [merged])
    assert covers_exactly(after(segments, plan))
    assert len(after(segments, plan)) == plan.resulting_count


@pytest.mark.parametrize(
    ("splits", "merges", "message"),
    [
        ([(0, 1)], [], "into 1 parts, 2 to 10000 are allowed"),
        ([(0, 0)], [], "into 0 parts, 2 to 10000 are allowed"),
        ([(9, 2)], [], "segment 9 is not active; active segments: 0, 1, 2, 3"),
        ([], [[9, 0]], "segment 9 is not active"),
        ([], [[0]], "at least two segments"),
        ([], [[]], "at least two segments"),
        ([], [], "no segment is named"),
        ([], [[0, 2]], "are not neighbours"),
        ([], [[0, 0]], "are not neighbours"),
        ([(0, 2)], [[0, 1]], "named twice"),
        ([(0, 10_000)], [], "the scale results in"),
    ],
)
def test_what_cannot_be_done(splits: list[tuple[int, int]], merges: list[list[int]], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        plan_changes(segments_of(equal_ranges(4)), splits, merges)


def test_a_message_does_not_name_thousands_of_segments() -> None:
    assert active_text(segments_of(equal_ranges(2))) == "active segments: 0, 1"
    assert active_text(segments_of(equal_ranges(30))).endswith(", 18, 19, …")


def test_how_many_segments_there_may_be() -> None:
    for count in (0, 10_001):
        with pytest.raises(BadRequestError, match="are allowed"):
            plan_count(segments_of(equal_ranges(1)), count)
