"""Between which times the events are that a group reads: by its position and the stream's watermarks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.epoch_histories import EpochHistory, draw_cut, histories, offsets_by_range
from tailrace.client.context import ClientContext
from tailrace.client.group.watermarks import WATERMARK
from tailrace.client.model import StreamName
from tailrace.client.reader.time_windows import TimeWindow, TimeWindows, is_passed
from tailrace.client.revisioned import RevisionedStream
from tailrace.common import limits
from tailrace.common.names import segment_id
from tailrace.common.ranges import WHOLE, KeyRange, equal_ranges
from tailrace.common.watermarks import RangedSegment, Watermark
from tailrace.kernel import pack_events
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
MARKS = "s/_MARKt/0.#epoch.0"
FIRST = STREAM.segment(0)
NOTHING_KNOWN: dict[str, KeyRange | None] = {FIRST: None}


def watermark(time: int, offset: int, upper: int | None = None) -> Watermark:
    return Watermark(time, time if upper is None else upper, {RangedSegment(0, WHOLE): offset})


@pytest.fixture
def marks(store: Any, controller: Any, context: ClientContext) -> RevisionedStream:
    """The mark stream."""
    store.create(MARKS)
    found = pb.SegmentRanges(
        segmentRanges=[
            pb.SegmentRange(
                segmentId=pb.SegmentId(streamInfo=pb.StreamInfo(scope="s", stream="_MARKt"), segmentId=0),
                minKey=0.0,
                maxKey=1.0,
            )
        ]
    )
    controller.answers["getCurrentSegments"] = lambda _: found
    return RevisionedStream(context, MARKS)


async def add(marks: RevisionedStream, *watermarks: Watermark) -> None:
    for each in watermarks:
        assert await marks.write_conditionally(await marks.latest(), WATERMARK.encode(each)) is not None


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATERMARK_READ_S", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_the_window_follows_the_position(context: ClientContext, marks: RevisionedStream) -> None:
    windows = TimeWindows(context)

    async def at(offset: int) -> TimeWindow:
        return await windows.window(STREAM, {FIRST: offset}, NOTHING_KNOWN)

    assert await at(0) == TimeWindow(None, None)
    await add(marks, watermark(10, 100, 15), watermark(20, 200, 22))
    assert await at(99) == TimeWindow(None, 15)
    assert await at(100) == TimeWindow(10, 22)
    assert await at(250) == TimeWindow(20, None)
    await add(marks, watermark(30, 300))
    assert await at(250) == TimeWindow(20, 30)
    assert await at(-1) == TimeWindow(30, None), "it has read a sealed segment to its end"


@pytest.mark.usefixtures("at_once")
async def test_a_reader_begins_at_the_mark(context: ClientContext, marks: RevisionedStream) -> None:
    await add(marks, watermark(10, 100))
    begin = await marks.latest()
    await add(marks, watermark(20, 200))
    assert await marks.compare_and_set_mark(None, begin)
    assert await TimeWindows(context).window(STREAM, {FIRST: 150}, NOTHING_KNOWN) == TimeWindow(None, 20)


@pytest.mark.usefixtures("at_once")
async def test_watermarks_that_were_truncated_are_skipped(context: ClientContext, marks: RevisionedStream) -> None:
    windows = TimeWindows(context)
    await windows.window(STREAM, {FIRST: 0}, NOTHING_KNOWN)
    await add(marks, watermark(10, 100))
    await marks.truncate(await marks.latest())
    await add(marks, watermark(20, 200))
    assert await windows.window(STREAM, {FIRST: 150}, NOTHING_KNOWN) == TimeWindow(None, 20)


@pytest.mark.usefixtures("at_once")
async def test_a_reader_that_is_far_behind_keeps_few_watermarks(
    context: ClientContext, marks: RevisionedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATERMARKS_AHEAD_MAX", 3)
    await add(marks, *(watermark(time, 10 * time) for time in range(1, 11)))
    windows = TimeWindows(context)
    for time in range(10):
        expected = TimeWindow(time or None, time + 1)
        assert await windows.window(STREAM, {FIRST: 10 * time + 5}, NOTHING_KNOWN) == expected
        assert len(windows._followed[STREAM].ahead) <= 3
    assert await windows.window(STREAM, {FIRST: 100}, NOTHING_KNOWN) == TimeWindow(10, None)


@pytest.mark.usefixtures("at_once")
async def test_a_reader_that_is_far_behind_reads_the_watermarks_once(
    store: Any, context: ClientContext, marks: RevisionedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all of them again at each look; a refill may read a request beyond what it keeps."""
    count, ahead_max = 100, 20
    monkeypatch.setattr(limits, "WATERMARKS_AHEAD_MAX", ahead_max)
    ranges = equal_ranges(100)
    payloads = [
        WATERMARK.encode(Watermark(time, time, {RangedSegment(i, each): 10 * time for i, each in enumerate(ranges)}))
        for time in range(1, count + 1)
    ]
    written = pack_events(payloads)
    store.segments[MARKS].data += written
    windows = TimeWindows(context)
    known: dict[str, KeyRange | None] = {STREAM.segment(i): each for i, each in enumerate(ranges)}
    for time in range(count):
        position = dict.fromkeys(known, 10 * time)
        assert await windows.window(STREAM, position, known) == TimeWindow(time or None, time + 1)
    reads = [each for each in store.seen if isinstance(each, c.ReadSegment)]
    assert sum(each.suggested_length for each in reads) <= 3 * len(written)
    assert len(reads) <= 3 * count / ahead_max


async def test_watermarks_are_read_from_time_to_time(
    store: Any, context: ClientContext, marks: RevisionedStream
) -> None:
    windows = TimeWindows(context)
    await add(marks, watermark(10, 100))
    await windows.window(STREAM, {FIRST: 0}, NOTHING_KNOWN)
    requests = len(store.seen)
    assert await windows.window(STREAM, {FIRST: 100}, NOTHING_KNOWN) == TimeWindow(10, None)
    assert len(store.seen) == requests


def test_segments_of_unknown_range_are_before_or_after_the_watermark() -> None:
    left, right = (RangedSegment(segment_id(number, 1), WHOLE) for number in (1, 2))
    split = Watermark(1, 1, {left: 5, right: 7})
    assert not is_passed(split, {0: 10**9}, {})
    assert is_passed(split, {segment_id(3, 2): 0}, {})


@given(histories(), st.data())
def test_a_watermark_is_passed_where_the_position_is_nowhere_before_it(
    history: EpochHistory, data: st.DataObject
) -> None:
    position = data.draw(st.composite(draw_cut)(history))
    epoch = data.draw(st.sampled_from(history.epochs))
    at = {segment.identifier: data.draw(st.integers(0, 5)) for segment in epoch.segments}
    named = {RangedSegment(each.identifier, each.key_range): at[each.identifier] for each in epoch.segments}
    mark = Watermark(1, 1, named)
    theirs = offsets_by_range(at, history)
    expected = all(reached >= theirs[place] for place, reached in offsets_by_range(position, history).items())
    unknown = data.draw(st.sets(st.sampled_from(sorted(position))))
    ranges = {each: history.segments[each].key_range for each in position}
    assert is_passed(mark, position, ranges) == expected
    partly = {each: ranges[each] for each in ranges if each not in unknown}
    assert expected or not is_passed(mark, position, partly)
