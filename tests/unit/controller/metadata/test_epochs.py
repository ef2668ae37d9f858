"""The algebra of epochs and cuts, over random histories of scales."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.errors import BadRequestError
from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange, covers_exactly, split_range
from tailrace.controller.metadata import epochs as algebra
from tailrace.controller.metadata.model import Epoch, StreamSegment


@dataclass
class History:
    """A stream's epochs, made by valid scales."""

    epochs: list[Epoch]
    next_number: int
    steps: list[str] = field(default_factory=list)

    @property
    def last(self) -> Epoch:
        return self.epochs[-1]

    @property
    def segments(self) -> dict[int, StreamSegment]:
        return algebra.segments_of(self.epochs)

    def scale(self, first: int, count: int, parts: int) -> None:
        active = self.last.segments
        first %= len(active)
        replaced = active[first : first + count]
        whole = KeyRange(replaced[0].low, replaced[-1].high)
        created = algebra.new_segments(split_range(whole, parts), self.next_number, self.last.epoch + 1)
        self.next_number += parts
        sealed = [segment.identifier for segment in replaced]
        self.epochs.append(algebra.next_epoch(self.last, sealed, created, 0))


@st.composite
def histories(draw: st.DrawFn) -> History:
    count = draw(st.integers(1, 5))
    history = History([algebra.first_epoch(count, draw(st.integers(0, 3)), 0)], 10)
    for _ in range(draw(st.integers(0, 6))):
        history.scale(draw(st.integers(0, 20)), draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    return history


@st.composite
def histories_with_cuts(draw: st.DrawFn, count: int = 1) -> tuple[History, list[dict[int, int]]]:
    """A history with cuts that a reader could be at: it has read some segments to their ends, others in part."""
    history = draw(histories())
    return history, [draw_cut(draw, history) for _ in range(count)]


def draw_cut(draw: st.DrawFn, history: History) -> dict[int, int]:
    reading = {segment.identifier: segment for segment in history.epochs[0].segments}
    for before, after in itertools.pairwise(history.epochs):
        replaced = [segment for segment in before.segments if after.find(segment.identifier) is None]
        if all(segment.identifier in reading for segment in replaced) and draw(st.booleans()):
            for segment in replaced:
                del reading[segment.identifier]
            reading |= {item.identifier: item for item in after.segments if before.find(item.identifier) is None}
    return {identifier: draw(st.integers(0, 5)) for identifier in sorted(reading)}


def offsets(cut: dict[int, int], history: History) -> dict[tuple[float, float], tuple[int, int]]:
    """Where the cut is in every smallest part of the key space: (epoch of the segment, offset)."""
    edges = sorted({edge for segment in history.segments.values() for edge in segment.key_range})
    found = {}
    for low, high in itertools.pairwise(edges):
        for identifier, offset in cut.items():
            segment = history.segments[identifier]
            if segment.low <= low and high <= segment.high:
                found[low, high] = (segment.epoch, offset)
    return found


@given(histories())
def test_every_epoch_covers_the_key_space_exactly(history: History) -> None:
    for epoch in history.epochs:
        assert covers_exactly([segment.key_range for segment in epoch.segments])
        assert [segment.low for segment in epoch.segments] == sorted(segment.low for segment in epoch.segments)
    numbers = [segment.number for segment in history.segments.values()]
    assert len(set(numbers)) == len(numbers)


@given(histories())
def test_successors_cover_what_they_replace_and_know_all_predecessors(history: History) -> None:
    for before, after in itertools.pairwise(history.epochs):
        for segment in before.segments:
            found = algebra.successors(segment, before, after)
            if after.find(segment.identifier) is not None:
                assert found == []
                continue
            ranges = sorted(successor.key_range for successor, _ in found)
            assert ranges[0].low <= segment.low
            assert ranges[-1].high >= segment.high
            assert all(first.high == second.low for first, second in itertools.pairwise(ranges))
            for successor, predecessors in found:
                assert segment.identifier in predecessors
                assert algebra.precedes(segment, successor)
                assert predecessors == [
                    other.identifier for other in before.segments if other.key_range.overlaps(successor.key_range)
                ]


@given(histories_with_cuts())
def test_cuts_that_readers_can_be_at_are_valid(drawn: tuple[History, list[dict[int, int]]]) -> None:
    history, (cut,) = drawn
    algebra.check_cut(cut, history.segments)
    assert len(offsets(cut, history)) == len({edge for s in history.segments.values() for edge in s.key_range}) - 1


@given(histories_with_cuts(), st.data())
def test_cuts_with_a_gap_or_an_overlap_are_refused(
    drawn: tuple[History, list[dict[int, int]]], data: st.DataObject
) -> None:
    history, (cut,) = drawn
    missing = dict(cut)
    del missing[data.draw(st.sampled_from(sorted(cut)))]
    with pytest.raises(BadRequestError, match="cut"):
        algebra.check_cut(missing, history.segments)
    others = [identifier for identifier in history.segments if identifier not in cut]
    if others:
        with pytest.raises(BadRequestError, match="cut"):
            algebra.check_cut({**cut, data.draw(st.sampled_from(others)): 0}, history.segments)


@given(histories_with_cuts(count=2))
def test_order_of_cuts_is_that_of_every_key(drawn: tuple[History, list[dict[int, int]]]) -> None:
    history, (first, second) = drawn
    mine, theirs = offsets(first, history), offsets(second, history)
    assert algebra.is_behind(first, second, history.segments) == any(mine[part] < theirs[part] for part in mine)


@given(histories_with_cuts())
def test_truncation_keeps_exactly_what_lies_at_or_after_the_cut(
    drawn: tuple[History, list[dict[int, int]]],
) -> None:
    history, (cut,) = drawn
    gone = {segment.identifier for segment in algebra.wholly_before(cut, history.segments)}
    at = offsets(cut, history)
    for identifier, segment in history.segments.items():
        own = [epoch for part, (epoch, _) in at.items() if segment.low <= part[0] and part[1] <= segment.high]
        before = all(segment.epoch < epoch for epoch in own) and identifier not in cut
        assert (identifier in gone) == before


@given(histories_with_cuts(count=2))
def test_between_is_what_a_reader_touches(drawn: tuple[History, list[dict[int, int]]]) -> None:
    history, (first, second) = drawn
    if algebra.is_behind(second, first, history.segments):
        with pytest.raises(BadRequestError, match="after"):
            algebra.between(first, second, history.segments)
        return
    touched = {segment.identifier for segment in algebra.between(first, second, history.segments)}
    start, end = offsets(first, history), offsets(second, history)
    for identifier, segment in history.segments.items():
        parts = [part for part in start if segment.low <= part[0] and part[1] <= segment.high]
        assert (identifier in touched) == all(start[part][0] <= segment.epoch <= end[part][0] for part in parts)


@given(histories(), st.data())
def test_only_ranges_that_cover_the_same_keys_may_replace(history: History, data: st.DataObject) -> None:
    active = history.last.segments
    chosen = data.draw(st.lists(st.sampled_from(active), unique=True, min_size=1))
    own = [segment.key_range for segment in chosen]
    assert algebra.scale_keeps_ranges(chosen, own)
    split = [part for item in own for part in split_range(item, 2)]
    assert algebra.scale_keeps_ranges(chosen, split)
    assert not algebra.scale_keeps_ranges(chosen, split[1:])
    assert not algebra.scale_keeps_ranges(chosen, [*split, split[0]])


def test_an_epoch_that_would_not_cover_is_refused() -> None:
    first = algebra.first_epoch(2, 0, 0)
    created = algebra.new_segments([KeyRange(0.0, 0.25)], 2, 1)
    with pytest.raises(BadRequestError, match="cover"):
        algebra.next_epoch(first, [0], created, 0)


def test_splits_and_merges_are_counted() -> None:
    history = History([algebra.first_epoch(2, 0, 0)], 2)
    history.scale(0, 1, 3)
    assert (history.last.splits, history.last.merges) == (1, 0)
    history.scale(0, 2, 1)
    assert (history.last.splits, history.last.merges) == (0, 1)


def test_future_segments_must_follow_reached_ones() -> None:
    history = History([algebra.first_epoch(1, 0, 0)], 1)
    history.scale(0, 1, 2)
    one, two = segment_id(1, 1), segment_id(2, 1)
    algebra.check_cut({0: 5, one: -1, two: -1}, history.segments)
    with pytest.raises(BadRequestError, match="future"):
        algebra.check_cut({0: -1, one: 0, two: 0}, history.segments)
    assert algebra.without_future({0: 5, one: -1}) == {0: 5}


def test_a_cut_before_and_after_the_same_segment_is_no_position() -> None:
    history = History([algebra.first_epoch(2, 0, 0)], 2)
    history.scale(0, 2, 1)
    history.scale(0, 1, 2)
    with pytest.raises(BadRequestError, match="both before and after"):
        algebra.check_cut({0: 3, segment_id(4, 2): 0}, history.segments)


def test_transaction_segments_are_in_order_of_number_with_the_epoch_of_the_transaction() -> None:
    history = History([algebra.first_epoch(2, 0, 0)], 2)
    history.scale(0, 1, 1)
    pairs = algebra.transaction_segments(history.last, 1)
    assert [(segment.identifier, shown) for segment, shown in pairs] == [
        (1, segment_id(1, 1)),
        (segment_id(2, 1), segment_id(2, 1)),
    ]
