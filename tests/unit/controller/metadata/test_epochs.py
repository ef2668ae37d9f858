"""The algebra of epochs and cuts, over random histories of scales."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.epoch_histories import EpochHistory, histories, histories_with_cuts, offsets_by_range, precedes
from tailrace.common.errors import BadRequestError
from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange, covers_exactly, split_range
from tailrace.common.stream_cut import without_future
from tailrace.controller.metadata import epochs as algebra


@given(histories())
def test_every_epoch_covers_the_key_space_exactly(history: EpochHistory) -> None:
    for epoch in history.epochs:
        assert covers_exactly([segment.key_range for segment in epoch.segments])
        assert [segment.low for segment in epoch.segments] == sorted(segment.low for segment in epoch.segments)
    numbers = [segment.number for segment in history.segments.values()]
    assert len(set(numbers)) == len(numbers)


@given(histories())
def test_successors_cover_what_they_replace_and_know_all_predecessors(history: EpochHistory) -> None:
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
                assert precedes(segment, successor)
                assert predecessors == [
                    other.identifier for other in before.segments if other.key_range.overlaps(successor.key_range)
                ]


@given(histories_with_cuts())
def test_cuts_that_readers_can_be_at_are_valid(drawn: tuple[EpochHistory, list[dict[int, int]]]) -> None:
    history, (cut,) = drawn
    algebra.check_cut(cut, history.segments)
    edges = {edge for segment in history.segments.values() for edge in segment.key_range}
    assert len(offsets_by_range(cut, history)) == len(edges) - 1


@given(histories_with_cuts(), st.data())
def test_cuts_with_a_gap_or_an_overlap_are_refused(
    drawn: tuple[EpochHistory, list[dict[int, int]]], data: st.DataObject
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
def test_order_of_cuts_is_that_of_every_key(drawn: tuple[EpochHistory, list[dict[int, int]]]) -> None:
    history, (first, second) = drawn
    mine, theirs = offsets_by_range(first, history), offsets_by_range(second, history)
    assert algebra.is_behind(first, second, history.segments) == any(mine[part] < theirs[part] for part in mine)


@given(histories_with_cuts())
def test_truncation_keeps_exactly_what_lies_at_or_after_the_cut(
    drawn: tuple[EpochHistory, list[dict[int, int]]],
) -> None:
    history, (cut,) = drawn
    gone = {segment.identifier for segment in algebra.wholly_before(cut, history.segments)}
    at = offsets_by_range(cut, history)
    for identifier, segment in history.segments.items():
        own = [epoch for part, (epoch, _) in at.items() if segment.low <= part[0] and part[1] <= segment.high]
        before = all(segment.epoch < epoch for epoch in own) and identifier not in cut
        assert (identifier in gone) == before


@given(histories_with_cuts(count=2))
def test_between_is_what_a_reader_touches(drawn: tuple[EpochHistory, list[dict[int, int]]]) -> None:
    history, (first, second) = drawn
    if algebra.is_behind(second, first, history.segments):
        with pytest.raises(BadRequestError, match="after"):
            algebra.between(first, second, history.segments)
        return
    touched = {segment.identifier for segment in algebra.between(first, second, history.segments)}
    start, end = offsets_by_range(first, history), offsets_by_range(second, history)
    for identifier, segment in history.segments.items():
        parts = [part for part in start if segment.low <= part[0] and part[1] <= segment.high]
        assert (identifier in touched) == all(start[part][0] <= segment.epoch <= end[part][0] for part in parts)


@given(histories(), st.data())
def test_only_ranges_that_cover_the_same_keys_may_replace(history: EpochHistory, data: st.DataObject) -> None:
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
    history = EpochHistory([algebra.first_epoch(2, 0, 0)], 2)
    history.scale(0, 1, 3)
    assert (history.last.splits, history.last.merges) == (1, 0)
    history.scale(0, 2, 1)
    assert (history.last.splits, history.last.merges) == (0, 1)


def test_future_segments_must_follow_reached_ones() -> None:
    history = EpochHistory([algebra.first_epoch(1, 0, 0)], 1)
    history.scale(0, 1, 2)
    one, two = segment_id(1, 1), segment_id(2, 1)
    algebra.check_cut({0: 5, one: -1, two: -1}, history.segments)
    with pytest.raises(BadRequestError, match="future"):
        algebra.check_cut({0: -1, one: 0, two: 0}, history.segments)
    assert without_future({0: 5, one: -1}) == {0: 5}


def test_a_cut_before_and_after_the_same_segment_is_no_position() -> None:
    history = EpochHistory([algebra.first_epoch(2, 0, 0)], 2)
    history.scale(0, 2, 1)
    history.scale(0, 1, 2)
    with pytest.raises(BadRequestError, match="both before and after"):
        algebra.check_cut({0: 3, segment_id(4, 2): 0}, history.segments)


def test_transaction_segments_are_in_order_of_number_with_the_epoch_of_the_transaction() -> None:
    history = EpochHistory([algebra.first_epoch(2, 0, 0)], 2)
    history.scale(0, 1, 1)
    pairs = algebra.transaction_segments(history.last, 1)
    assert [(segment.identifier, shown) for segment, shown in pairs] == [
        (1, segment_id(1, 1)),
        (segment_id(2, 1), segment_id(2, 1)),
    ]
