"""Which writers count for the next watermark, and what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.epoch_histories import EpochHistory, draw_cut, histories, offsets_by_range
from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange, covers_exactly
from tailrace.common.watermarks import RangedSegment, Watermark
from tailrace.controller.metadata.epochs import first_epoch
from tailrace.controller.metadata.records import WriterMark
from tailrace.controller.watermarks.decision import Decision, decide, next_watermark, position_epoch

NOW_MS = 1_000_000
TIMEOUT_MS = 30_000
LAST = Watermark(100, 130, {RangedSegment(0, KeyRange(0.0, 1.0)): 5})


def mark(
    time: int, *, noted_ms: int = NOW_MS, alive: bool = True, position: dict[int, int] | None = None
) -> WriterMark:
    return WriterMark(time, {0: time} if position is None else position, noted_ms, alive)


AHEAD = mark(101)
LATE = mark(100, noted_ms=NOW_MS - TIMEOUT_MS + 1)
TIMED_OUT = mark(100, noted_ms=NOW_MS - TIMEOUT_MS)
FUTURE = mark(100, noted_ms=NOW_MS + TIMEOUT_MS - 1)
FAR_FUTURE = mark(100, noted_ms=NOW_MS + TIMEOUT_MS)
REMOVED = mark(100, alive=False)
REMOVED_AHEAD = mark(110, alive=False, noted_ms=0)


@pytest.mark.parametrize(
    ("marks", "gone", "counted"),
    [
        ({}, "", ()),
        ({"a": AHEAD}, "", (AHEAD,)),
        ({"a": AHEAD, "b": mark(102)}, "", (AHEAD, mark(102))),
        ({"a": AHEAD, "b": LATE}, "", ()),
        ({"a": AHEAD, "b": TIMED_OUT}, "b", (AHEAD,)),
        ({"a": AHEAD, "b": FUTURE}, "", ()),
        ({"a": AHEAD, "b": FAR_FUTURE}, "b", (AHEAD,)),
        ({"a": AHEAD, "b": REMOVED}, "b", (AHEAD,)),
        ({"a": AHEAD, "b": REMOVED_AHEAD}, "", (AHEAD, REMOVED_AHEAD)),
        ({"a": LATE, "b": TIMED_OUT}, "b", ()),
        ({"a": REMOVED, "b": TIMED_OUT}, "ab", ()),
        ({"a": mark(-5, noted_ms=0)}, "a", ()),
    ],
)
def test_writers_that_count(marks: dict[str, WriterMark], gone: str, counted: tuple[WriterMark, ...]) -> None:
    assert decide(marks, LAST, TIMEOUT_MS, NOW_MS) == Decision(frozenset(gone), counted)


def test_without_a_watermark_every_writer_counts() -> None:
    marks = {"a": mark(-7, noted_ms=0), "b": REMOVED}
    assert decide(marks, None, 0, NOW_MS) == Decision(frozenset(), (marks["a"], REMOVED))


def test_without_a_timeout_a_writer_that_does_not_advance_no_longer_counts() -> None:
    assert decide({"a": mark(100), "b": AHEAD}, LAST, 0, NOW_MS) == Decision(frozenset("a"), (AHEAD,))


def test_without_a_timeout_a_writer_whose_time_was_noted_by_a_clock_ahead_no_longer_counts() -> None:
    ahead = mark(100, noted_ms=NOW_MS + 3_600_000)
    assert decide({"a": ahead, "b": AHEAD}, LAST, 0, NOW_MS) == Decision(frozenset("a"), (AHEAD,))


def test_bounds_are_the_least_and_the_greatest_time() -> None:
    marks = [mark(120, position={0: 30}), mark(101, position={0: 70})]
    found = next_watermark(marks, LAST, first_epoch(1, 0, 0).segments)
    assert found == Watermark(101, 120, {RangedSegment(0, KeyRange(0.0, 1.0)): 70})


def test_the_position_does_not_go_back() -> None:
    found = next_watermark([mark(101, position={0: 3})], LAST, first_epoch(1, 0, 0).segments)
    assert dict(found.positions) == {RangedSegment(0, KeyRange(0.0, 1.0)): 5}


def test_a_segment_that_no_writer_names_begins_the_position() -> None:
    """A writer knows the offset of segments that it has written to, and no others."""
    history = EpochHistory([first_epoch(1, 0, 0)], 1)
    history.scale(0, 1, 2)
    left, right = segment_id(1, 1), segment_id(2, 1)
    marks = [mark(101, position={0: 900}), mark(102, position={left: 7})]
    assert position_epoch(marks, LAST) == 1
    found = next_watermark(marks, LAST, history.last.segments)
    assert {segment.identifier: offset for segment, offset in found.positions.items()} == {left: 7, right: 0}


def test_without_any_position_there_is_no_epoch() -> None:
    assert position_epoch([mark(101, position={})], None) == -1


@given(histories(), st.data())
def test_the_position_lies_behind_all_others(history: EpochHistory, data: st.DataObject) -> None:
    last, marks = None, []
    for _ in range(data.draw(st.integers(1, 3))):
        for _ in range(data.draw(st.integers(1, 3))):
            cut = data.draw(st.composite(draw_cut)(history))
            named = data.draw(st.sets(st.sampled_from(sorted(cut)), min_size=1))
            marks.append(mark(101, position={each: cut[each] for each in named}))
        epoch = history.epochs[position_epoch(marks, last)]
        last = next_watermark(marks, last, epoch.segments)
        position = {segment.identifier: offset for segment, offset in last.positions.items()}
        assert covers_exactly([segment.key_range for segment in last.positions])
        at = offsets_by_range(position, history)
        for each in marks:
            for key_range, reached in offsets_by_range(dict(each.position), history).items():
                assert reached <= at[key_range]
