"""What is decided about cuts is what a comparison of all pairs of segments decides, without the time that it takes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.epoch_histories import EpochHistory, draw_cut, histories, precedes
from tailrace.common.errors import BadRequestError
from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange, covers_exactly, equal_ranges
from tailrace.common.stream_cut import FUTURE_OFFSET, without_future
from tailrace.controller.metadata import epochs as algebra
from tailrace.controller.metadata.model import Epoch, StreamSegment

Cut = Mapping[int, int]
Segments = Mapping[int, StreamSegment]

# -- every pair of segments


def slow_check(cut: Cut, segments: Segments) -> None:
    for identifier, offset in cut.items():
        if identifier not in segments:
            raise BadRequestError(f"cut names segment {identifier}, which the stream does not have")
        if offset < FUTURE_OFFSET:
            raise BadRequestError(f"cut has offset {offset} for segment {identifier}")
    reached = [segments[identifier] for identifier in without_future(cut)]
    if not covers_exactly([segment.key_range for segment in reached]):
        raise BadRequestError("cut does not cover the key space exactly")
    future = [segments[identifier] for identifier, offset in cut.items() if offset == FUTURE_OFFSET]
    for segment in future:
        if not all(precedes(other, segment) for other in algebra.overlapping(reached, segment)):
            raise BadRequestError(f"cut has offset -1 for segment {segment.identifier}, which is not in its future")
    for segment in segments.values():
        before = any(precedes(segment, other) for other in reached)
        after = any(precedes(other, segment) for other in reached)
        if before and after:
            raise BadRequestError(f"cut lies both before and after segment {segment.identifier}")


def slow_wholly_before(cut: Cut, segments: Segments) -> list[StreamSegment]:
    reached = [segments[identifier] for identifier in without_future(cut)]
    return [
        segment
        for segment in segments.values()
        if segment.identifier not in cut and any(precedes(segment, other) for other in reached)
    ]


def slow_between(start: Cut, end: Cut, segments: Segments) -> list[StreamSegment]:
    if algebra.is_behind(end, start, segments):
        raise BadRequestError("cut `from` lies after cut `to`")
    first = [segments[identifier] for identifier in without_future(start)]
    last = [segments[identifier] for identifier in without_future(end)]
    return [
        segment
        for segment in segments.values()
        if not any(precedes(segment, other) for other in first) and not any(precedes(other, segment) for other in last)
    ]


def outcome(decide: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns, or the message of its error."""
    try:
        return decide(*arguments)
    except BadRequestError as error:
        return str(error)


# -- cuts


@st.composite
def wide_histories(draw: st.DrawFn) -> EpochHistory:
    """Scales that split and merge many segments, and commit passes that roll over them."""
    history = draw(histories())
    for _ in range(draw(st.integers(0, 4))):
        count = len(history.last.segments)
        if draw(st.booleans()):
            history.scale(draw(st.integers(0, 20)), draw(st.integers(1, count)), draw(st.integers(1, 12)))
        else:
            number = history.last.epoch + 1
            history.epochs.append(algebra.duplicate(draw(st.sampled_from(history.epochs)), number, 0))
            history.epochs.append(algebra.duplicate(history.epochs[-2], number + 1, 0))
    return history


@st.composite
def reached_cuts(draw: st.DrawFn, history: EpochHistory) -> dict[int, int]:
    """Positions that a reader could be at."""
    return draw_cut(draw, history)


@st.composite
def covers(draw: st.DrawFn, segments: Segments) -> dict[int, int]:
    """Segments of any epochs that cover the key space, but for a gap where none goes on."""
    cut, edge = dict[int, int](), 0.0
    while edge < 1.0:
        following = [segment for segment in segments.values() if segment.low == edge and segment.high > edge]
        if not following:
            break
        chosen = draw(st.sampled_from(following))
        cut[chosen.identifier] = draw(st.integers(0, 5))
        edge = chosen.high
    return cut


@st.composite
def any_cuts(draw: st.DrawFn, segments: Segments) -> dict[int, int]:
    """Any segments, also some that the stream does not have, at any offsets."""
    unknown = [segment_id(1000, 0), segment_id(1000, 2)]
    chosen = draw(st.lists(st.sampled_from([*segments, *unknown]), unique=True))
    return {identifier: draw(st.integers(-3, 5)) for identifier in chosen}


@given(wide_histories(), st.data())
def test_cuts_are_valid_as_all_pairs_say(history: EpochHistory, data: st.DataObject) -> None:
    segments = history.segments
    kind = data.draw(st.sampled_from(["reached", "covering", "any"]))
    cuts = {"reached": reached_cuts(history), "covering": covers(segments), "any": any_cuts(segments)}
    cut = data.draw(cuts[kind])
    changed = data.draw(st.sampled_from(["", "", "", "missing", "more", "offset"]))
    if changed == "missing" and cut:
        del cut[data.draw(st.sampled_from(sorted(cut)))]
    elif changed:
        offset = data.draw(st.integers(-2, 0)) if changed == "offset" else 0
        cut[data.draw(st.sampled_from(list(segments)))] = offset
    for identifier in data.draw(st.lists(st.sampled_from(list(segments)), max_size=4)):
        cut.setdefault(identifier, FUTURE_OFFSET)
    assert outcome(algebra.check_cut, cut, segments) == outcome(slow_check, cut, segments)


@given(wide_histories(), st.data())
def test_what_lies_before_and_between_cuts_is_what_all_pairs_say(history: EpochHistory, data: st.DataObject) -> None:
    segments = history.segments
    cuts = [data.draw(reached_cuts(history) | covers(segments)) for _ in range(2)]
    for cut in cuts:
        for identifier in data.draw(st.lists(st.sampled_from(list(segments)), max_size=2)):
            cut.setdefault(identifier, FUTURE_OFFSET)
        part = {each: segments[each] for each in {*cut, *data.draw(st.lists(st.sampled_from(list(segments))))}}
        assert outcome(algebra.wholly_before, cut, segments) == outcome(slow_wholly_before, cut, segments)
        assert outcome(algebra.wholly_before, cut, part) == outcome(slow_wholly_before, cut, part)
    assert outcome(algebra.between, *cuts, segments) == outcome(slow_between, *cuts, segments)


@given(wide_histories())
def test_splits_and_merges_are_those_that_all_pairs_say(history: EpochHistory) -> None:
    for before, after in itertools.pairwise(history.epochs):
        sealed = [segment for segment in before.segments if segment not in after.segments]
        created = [segment for segment in after.segments if segment not in before.segments]
        splits = sum(sum(old.key_range.overlaps(new.key_range) for new in created) > 1 for old in sealed)
        merges = sum(sum(old.key_range.overlaps(new.key_range) for old in sealed) > 1 for new in created)
        assert algebra.count_splits_and_merges(sealed, created) == (splits, merges)


@st.composite
def mixed_epochs(draw: st.DrawFn) -> Segments:
    """Epochs of new segments alone, so that wide ones share keys with many of a cut, older and newer."""
    found = []
    for epoch in range(draw(st.integers(2, 4))):
        edges = [0, *sorted(draw(st.sets(st.integers(1, 11)))), 12]
        ranges = [KeyRange(low / 12, high / 12) for low, high in itertools.pairwise(edges)]
        found.append(Epoch(epoch, 0, algebra.new_segments(ranges, 12 * epoch, epoch)))
    return algebra.segments_of(found)


@given(mixed_epochs(), st.data())
def test_cuts_through_mixed_epochs_are_as_all_pairs_say(segments: Segments, data: st.DataObject) -> None:
    cuts = [data.draw(covers(segments)) for _ in range(2)]
    for cut in cuts:
        assert outcome(algebra.check_cut, cut, segments) == outcome(slow_check, cut, segments)
        assert outcome(algebra.wholly_before, cut, segments) == outcome(slow_wholly_before, cut, segments)
        for identifier in segments:
            ahead = {**cut, identifier: cut.get(identifier, FUTURE_OFFSET)}
            assert outcome(algebra.check_cut, ahead, segments) == outcome(slow_check, ahead, segments)
    assert outcome(algebra.between, *cuts, segments) == outcome(slow_between, *cuts, segments)


def test_a_future_segment_follows_all_reached_ones_with_common_keys() -> None:
    history = EpochHistory([algebra.first_epoch(2, 0, 0)], 2)
    history.scale(0, 2, 1)
    history.scale(0, 1, 2)
    merged, right = segment_id(2, 1), segment_id(4, 2)
    for cut in ({0: 3, right: 0, merged: -1}, {0: 3, 1: 3, merged: -1}, {merged: 0, 1: -1}, {merged: 0, right: -1}):
        assert outcome(algebra.check_cut, cut, history.segments) == outcome(slow_check, cut, history.segments)
    with pytest.raises(BadRequestError, match="not in its future"):
        algebra.check_cut({0: 3, right: 0, merged: -1}, history.segments)


# -- time

FEW, TIMES, TIMES_MAX = 500, 16, 64
"""Of all pairs, so many times the segments take 256 times the time."""
DECISIONS: dict[str, Callable[[Cut, Cut, Segments], object]] = {
    "check": lambda before, after, segments: algebra.check_cut(after, segments),
    "check of the future": lambda before, after, segments: algebra.check_cut(
        {**before, **dict.fromkeys(after, FUTURE_OFFSET)}, segments
    ),
    "wholly before": lambda before, after, segments: algebra.wholly_before(after, segments),
    "between": lambda before, after, segments: algebra.between(before, after, segments),
    "position of a writer": lambda before, after, segments: algebra.goes_back({**before, **after}, before, segments),
    "positions of a writer joined": lambda before, after, segments: algebra.joined(after, before, segments),
}


def wide(count: int, shape: str) -> tuple[Cut, Cut, Segments]:
    """Two epochs of so many segments, between them as many of all keys if `shape` says so; a cut of each."""
    ranges = equal_ranges(count)
    first = Epoch(0, 0, algebra.new_segments(ranges, 0, 0))
    whole = [Epoch(number, 0, algebra.new_segments(equal_ranges(1), 0, number)) for number in range(1, count)]
    last = Epoch(count, 0, algebra.new_segments(ranges, count, count))
    segments = algebra.segments_of([first, *(whole if shape == "merged" else []), last])
    before, after = ({segment.identifier: 0 for segment in epoch.segments} for epoch in (first, last))
    return before, after, segments


def least_s(decide: Callable[[Cut, Cut, Segments], object], count: int, shape: str) -> float:
    """The least processor time of three."""
    made, times = wide(count, shape), []
    for _ in range(3):
        began_s = time.process_time()
        decide(*made)
        times.append(time.process_time() - began_s)
    return min(times)


@pytest.mark.parametrize("shape", ["scaled", "merged"])
@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
def test_the_time_grows_with_the_segments(decide: Callable[[Cut, Cut, Segments], object], shape: str) -> None:
    assert least_s(decide, TIMES * FEW, shape) < TIMES_MAX * least_s(decide, FEW, shape)
