"""Positions in streams of which parts are truncated (docs/spark.md#errors)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from structlog.testing import capture_logs

from tailrace.client.control.history import HistoryEpoch, StreamHistory, TimedCut
from tailrace.client.model import SegmentRange, StreamName, Successor
from tailrace.client.reader.batch import SegmentSlice
from tailrace.client.types import SegmentInfo
from tailrace.common import limits
from tailrace.common.errors import (
    DataLossError,
    NoSuchSegmentError,
    NoSuchStreamError,
    SegmentGoneError,
    SegmentTruncatedError,
    TailraceError,
)
from tailrace.common.ranges import KeyRange
from tailrace.common.stream_cut import StreamCut
from tailrace.pipelines.source import positions
from tailrace.pipelines.source.offsets import from_offset, to_offset
from tailrace.pipelines.source.options import Moment
from tailrace.pipelines.source.plan import Slice
from tailrace.pipelines.source.plan import slices as slices_of_batch
from tailrace.pipelines.source.positions import Extent, Navigator, ReadLimits

STREAM = StreamName("s", "t")
LOW, HIGH, AFTER = 0, 1, 1 << 32 | 2
"""Segment LOW is followed by AFTER, which has the same keys."""
RANGES = {LOW: KeyRange(0.0, 0.5), HIGH: KeyRange(0.5, 1.0)}
EVENT_BYTES = 10


class Stream:
    """A stream after a scale: its controller and its segment stores. A segment has its start and its length."""

    def __init__(self) -> None:
        self.kept = {LOW: (0, 50), HIGH: (0, 60), AFTER: (0, 70)}
        self.sealed_sizes = {LOW: 50}
        self.head = {LOW: 0, HIGH: 0}
        self.state = "active"
        self.cuts: list[TimedCut] = []

    async def stream_exists(self, stream: StreamName) -> bool:
        return True

    async def stream_history(self, stream: StreamName) -> StreamHistory:
        epochs = (RANGES, {AFTER: RANGES[LOW], HIGH: RANGES[HIGH]})
        made = tuple(HistoryEpoch(number, 0, number, 0, 0, segments) for number, segments in enumerate(epochs))
        return StreamHistory(self.state, made, self.sealed_sizes, self.head, {}, None)

    async def segments_between(self, stream: StreamName, start: Any, end: Any) -> list[int]:
        """As the controller: neither what is before the start nor what is after the end."""
        first = self.head if start is None else start
        left_out = {LOW} if LOW not in first else set()
        left_out |= {AFTER} if end is not None and LOW in end else set()
        return [each for each in (LOW, HIGH, AFTER) if each not in left_out]

    async def head_segments(self, stream: StreamName) -> dict[int, int]:
        return self.head

    async def stream_cuts(self, stream: StreamName, *_: int) -> list[TimedCut]:
        return self.cuts

    async def is_cut_valid(self, stream: StreamName, cut: object) -> bool:
        return True

    async def successors(self, stream: StreamName, identifier: int) -> list[Successor]:
        return [Successor(SegmentRange(AFTER, RANGES[LOW]), [LOW])] if identifier == LOW else []

    async def segment_info(self, name: str) -> SegmentInfo:
        for each, (start, length) in self.kept.items():
            if STREAM.segment(each) == name:
                return SegmentInfo(name, length, start, each in self.sealed_sizes, 0)
        raise NoSuchSegmentError(name)

    def navigator(self, *, fail_on_data_loss: bool) -> Navigator:
        context = SimpleNamespace(controller=self, segments=self)
        return Navigator(cast("Any", context), fail_on_data_loss)


@pytest.fixture
def stream() -> Stream:
    return Stream()


def pieces(found: list[SegmentSlice]) -> dict[str, tuple[int, int]]:
    return {each.segment: (each.start, each.end) for each in found}


def named(expected: dict[int, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {STREAM.segment(each): bounds for each, bounds in expected.items()}


@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_table_from_a_truncated_cut_is_an_error_or_begins_behind_it(stream: Stream, is_whole: bool) -> None:
    start = {LOW: 10, HIGH: 20}
    stream.head = {AFTER: 0, HIGH: 20} if is_whole else {LOW: 30, HIGH: 20}
    if is_whole:
        del stream.kept[LOW]
    else:
        stream.kept[LOW] = (30, 50)
    lost_to = 50 if is_whole else 30
    cut = StreamCut("s", "t", start).to_text()
    with pytest.raises(DataLossError) as failed:
        await stream.navigator(fail_on_data_loss=True).slices(STREAM, start, None, may_begin_later=False)
    assert f"bytes 10 to {lost_to} were truncated, which are behind the start {cut};" in str(failed.value)
    expected = {HIGH: (20, 60), AFTER: (0, 70)} | ({} if is_whole else {LOW: (30, 50)})
    lenient = stream.navigator(fail_on_data_loss=False)
    assert pieces(await lenient.slices(STREAM, start, None, may_begin_later=False)) == named(expected)
    strict = stream.navigator(fail_on_data_loss=True)
    assert pieces(await strict.slices(STREAM, start, None, may_begin_later=True)) == named(expected), "for a time"


async def test_what_a_table_does_not_have_may_be_truncated(stream: Stream) -> None:
    """Of the head nothing is missing; nor where the cuts have nothing of the segment."""
    strict = stream.navigator(fail_on_data_loss=True)
    stream.kept[LOW] = (30, 50)
    stream.head = {LOW: 30, HIGH: 0}
    found = await strict.slices(STREAM, None, None, may_begin_later=False)
    assert pieces(found) == named({LOW: (30, 50), HIGH: (0, 60), AFTER: (0, 70)})
    found = await strict.slices(STREAM, {LOW: 10, HIGH: 0}, {LOW: 10, HIGH: 5}, may_begin_later=False)
    assert STREAM.segment(LOW) not in pieces(found)
    del stream.kept[LOW]
    found = await strict.slices(STREAM, {LOW: 50, HIGH: 0}, None, may_begin_later=False)
    assert pieces(found) == named({HIGH: (0, 60), AFTER: (0, 70)})


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
async def test_what_a_deletion_has_deleted_already_is_no_truncation(stream: Stream, fail_on_data_loss: bool) -> None:
    """Unread data or not: the stream goes."""
    stream.state = "deleting"
    del stream.kept[LOW]
    navigator = stream.navigator(fail_on_data_loss=fail_on_data_loss)
    for read in (10, 50):
        with pytest.raises(NoSuchStreamError, match="stream s/t is being deleted"):
            await navigator.advance({STREAM: {LOW: read, HIGH: 0}}, ReadLimits(), None)


NOT_REACHED = {LOW: 30, HIGH: 60, AFTER: -1}
"""A cut that names the successor of a segment that it has not left (docs/protocol/naming.md#stream-cuts)."""


async def test_a_table_has_all_of_a_segment_that_its_start_has_not_reached(stream: Stream) -> None:
    strict = stream.navigator(fail_on_data_loss=True)
    found = await strict.slices(STREAM, NOT_REACHED, None, may_begin_later=False)
    assert pieces(found) == named({LOW: (30, 50), AFTER: (0, 70)})
    found = await strict.slices(STREAM, None, NOT_REACHED, may_begin_later=False)
    assert pieces(found) == named({LOW: (0, 30), HIGH: (0, 60)}), "nothing of it before an end"


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_query_reads_a_segment_that_its_start_has_not_reached_after_the_one_before_it(
    stream: Stream, fail_on_data_loss: bool, is_stored: bool
) -> None:
    """Also from a first offset of an older version, which had the cut of the option unchanged."""
    navigator = stream.navigator(fail_on_data_loss=fail_on_data_loss)
    if is_stored:
        begin = from_offset(to_offset({STREAM: NOT_REACHED}), [STREAM])
    else:
        begin = {STREAM: await navigator.start(STREAM, StreamCut("s", "t", NOT_REACHED))}
    first = await navigator.advance(begin, ReadLimits(), None)
    assert slices_of_batch(begin, first) == [Slice(STREAM, LOW, 30, 50)]
    second = await navigator.advance(first, ReadLimits(), None)
    assert slices_of_batch(first, second) == [Slice(STREAM, AFTER, 0, 70)]


async def test_a_query_ends_before_a_segment_that_its_end_has_not_reached(stream: Stream) -> None:
    navigator = stream.navigator(fail_on_data_loss=True)
    ends = {STREAM: await navigator.start(STREAM, StreamCut("s", "t", NOT_REACHED))}
    last = await navigator.advance({STREAM: {LOW: 0, HIGH: 0}}, ReadLimits(), ends)
    assert last == {STREAM: {LOW: 30, HIGH: 60}}
    assert await navigator.advance(last, ReadLimits(), ends) == last
    assert not await navigator.is_beyond(STREAM, last[STREAM], ends[STREAM])
    assert await navigator.is_beyond(STREAM, {AFTER: 0, HIGH: 60}, ends[STREAM])


async def test_a_segment_of_unknown_size_is_a_loss_for_a_table(stream: Stream) -> None:
    """A client deleted it while it was active."""
    del stream.kept[HIGH]
    with pytest.raises(DataLossError, match="bytes 20 to its end were truncated"):
        await stream.navigator(fail_on_data_loss=True).slices(STREAM, {LOW: 0, HIGH: 20}, None, may_begin_later=False)


async def test_there_is_something_between_two_cuts_also_when_it_is_truncated(stream: Stream) -> None:
    """A replay that has read it may go on."""
    start, end = {LOW: 10, HIGH: 60}, {LOW: 50, HIGH: 60}
    del stream.kept[LOW]
    navigator = stream.navigator(fail_on_data_loss=True)
    found = {each.identifier: each for each in await navigator.between(STREAM, start, end)}
    assert found[LOW] == Extent(LOW, 10, 50, 50)
    assert HIGH not in found


@pytest.mark.parametrize(
    ("head", "is_usable"),
    [
        ({LOW: 0, HIGH: 0}, True),
        ({LOW: 10, HIGH: 20}, True),
        ({LOW: 11, HIGH: 20}, False),
        ({AFTER: 0, HIGH: 0}, False),
    ],
)
async def test_a_time_begins_at_no_recorded_cut_that_is_truncated(
    stream: Stream, head: dict[int, int], is_usable: bool
) -> None:
    cut = {LOW: 10, HIGH: 20}
    stream.cuts, stream.head = [TimedCut(5, cut)], head
    navigator = stream.navigator(fail_on_data_loss=True)
    assert await navigator.cut_before(STREAM, Moment(7)) == (cut if is_usable else None)
    assert await navigator.start(STREAM, Moment(7)) == (cut if is_usable else head)


class Reader:
    """Reads events of one length; a truncation comes first, where ``error`` says that it begins."""

    error: TailraceError | None = None

    def __init__(self, context: object, segment: str, start: int, end: int) -> None:
        self._left = range(start, end, EVENT_BYTES)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing."""

    async def read(self) -> list[bytes]:
        error, Reader.error = Reader.error, None
        if error is not None:
            raise error
        found, self._left = self._left[:1], self._left[1:]
        return [bytes(2) for _ in found]


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (SegmentTruncatedError(STREAM.segment(HIGH), 30), 50),
        (SegmentTruncatedError(STREAM.segment(HIGH), 90), 60),
        (SegmentGoneError(STREAM.segment(HIGH), 0), 60),
    ],
)
async def test_a_truncation_while_the_end_of_a_batch_is_sought(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, error: TailraceError, end: int
) -> None:
    monkeypatch.setattr(positions, "SegmentReader", Reader)
    begin = {STREAM: {AFTER: 70, HIGH: 0}}
    monkeypatch.setattr(Reader, "error", error)
    lenient = stream.navigator(fail_on_data_loss=False)
    assert await lenient.advance(begin, ReadLimits(max_bytes=2 * EVENT_BYTES), None) == {STREAM: {AFTER: 70, HIGH: end}}
    monkeypatch.setattr(Reader, "error", error)
    with pytest.raises(DataLossError, match="before the query read them"):
        await stream.navigator(fail_on_data_loss=True).advance(begin, ReadLimits(max_bytes=2 * EVENT_BYTES), None)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at a segment that is too short are repeated at once."""
    monkeypatch.setattr(limits, "SPARK_END_PAUSES_S", (0.0, 0.0))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("identifier", [LOW, HIGH])
async def test_a_checkpoint_beyond_the_end_of_a_segment_is_an_error(
    stream: Stream, identifier: int, is_deleted: bool
) -> None:
    """A restore lost the log's tail: what is written later would be skipped. LOW is sealed."""
    end = stream.kept[identifier][1]
    if is_deleted and identifier == LOW:
        del stream.kept[LOW]
    begin = {STREAM: {LOW: 50, HIGH: 60} | {identifier: end + 1}}
    with pytest.raises(DataLossError) as failed:
        await stream.navigator(fail_on_data_loss=True).advance(begin, ReadLimits(), None)
    assert f"{STREAM.segment(identifier)}: the segment ends at {end}, the checkpoint is beyond it, at {end + 1}" in str(
        failed.value
    )


@pytest.mark.usefixtures("patient")
async def test_a_query_goes_on_from_the_end_of_a_segment_if_so_asked(stream: Stream) -> None:
    navigator = stream.navigator(fail_on_data_loss=False)
    with capture_logs() as logs:
        first = await navigator.advance({STREAM: {AFTER: 70, HIGH: 90}}, ReadLimits(), None)
    assert first == {STREAM: {AFTER: 70, HIGH: 60}}
    assert [(each["event"], each["segment"], each["position"], each["end"]) for each in logs] == [
        ("checkpoint_beyond_end", STREAM.segment(HIGH), 90, 60)
    ]
    stream.kept[HIGH] = (0, 80)
    second = await navigator.advance(first, ReadLimits(), None)
    assert slices_of_batch(first, second) == [Slice(STREAM, HIGH, 60, 80)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
async def test_a_former_owner_may_answer_with_an_older_length(stream: Stream, fail_on_data_loss: bool) -> None:
    answer = stream.segment_info
    old = [SegmentInfo(STREAM.segment(HIGH), 40, 0, False, 0)]

    async def segment_info(name: str) -> SegmentInfo:
        return old.pop() if old and name == STREAM.segment(HIGH) else await answer(name)

    stream.segment_info = segment_info  # type: ignore[method-assign]
    begin = {STREAM: {AFTER: 70, HIGH: 55}}
    end = await stream.navigator(fail_on_data_loss=fail_on_data_loss).advance(begin, ReadLimits(), None)
    assert slices_of_batch(begin, end) == [Slice(STREAM, HIGH, 55, 60)]
    assert not old
