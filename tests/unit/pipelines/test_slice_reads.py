"""Slices of segments that are not as they were when a query was planned (docs/spark.md#errors)."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from tailrace.client.model import StreamName
from tailrace.client.reader.batch import SegmentSlice
from tailrace.client.types import SegmentInfo
from tailrace.common import limits
from tailrace.common.errors import DataLossError, NoSuchSegmentError, SegmentGoneError, SegmentTruncatedError
from tailrace.pipelines.source import rows
from tailrace.pipelines.source.options import SourceOptions, parse_options
from tailrace.pipelines.source.plan import Slice
from tailrace.pipelines.source.rows import Part

STREAM = StreamName("s", "t")
SEGMENT = STREAM.segment(0)
EVENT_BYTES = 10


class Segment:
    """A segment with events of one length; ``truncations`` come one by one before reads, each after one event."""

    def __init__(self) -> None:
        self.lengths = [100]
        self.truncations: list[SegmentTruncatedError] = []
        self.looks = 0
        self.is_there = True

    async def segment_info(self, name: str) -> SegmentInfo:
        self.looks += 1
        if not self.is_there:
            raise NoSuchSegmentError(name)
        length = self.lengths[0] if len(self.lengths) == 1 else self.lengths.pop(0)
        return SegmentInfo(name, length, 0, False, 0)

    def client(self, controller: str) -> Client:
        return Client(self)


class Client:
    """Runs what needs no event loop but pauses of no length."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.context = SimpleNamespace(segments=segment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            while True:
                work.send(None)
        except StopIteration as done:
            return done.value

    def read_slice(self, piece: SegmentSlice) -> Iterator[list[bytes]]:
        assert piece.end <= self._segment.lengths[0], "a reader would wait for it without end"
        for at in range(piece.start, piece.end, EVENT_BYTES):
            if at > piece.start and self._segment.truncations:
                raise self._segment.truncations.pop(0)
            yield [bytes(EVENT_BYTES - 8)]


@pytest.fixture
def segment(monkeypatch: pytest.MonkeyPatch) -> Segment:
    made = Segment()
    monkeypatch.setattr(rows, "BlockingClient", made.client)
    monkeypatch.setattr(limits, "SPARK_END_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(limits, "SPARK_BATCH_EVENTS", 1)
    return made


def options(**given: str) -> SourceOptions:
    return parse_options({"controller": "tcp://c:9090", "stream": "s/t", **given}, streaming=True)


def read(options: SourceOptions, start: int, end: int) -> list[int]:
    """The offsets of the events of a slice."""
    found = rows.read_slice(options, Part(Slice(STREAM, 0, start, end)))
    return [offset for events in found for offset in events.offsets.to_pylist()]


def test_a_slice_is_looked_at_once(segment: Segment) -> None:
    assert read(options(), 60, 100) == [60, 70, 80, 90]
    assert segment.looks == 1


@pytest.mark.parametrize("start", [60, 100, 130])
def test_a_slice_beyond_the_end_of_its_segment_is_an_error(segment: Segment, start: int) -> None:
    """A restore lost the log's tail, and a batch is repeated."""
    with pytest.raises(DataLossError) as failed:
        read(options(), start, 140)
    assert f"{SEGMENT}: the segment ends at 100, the batch ends beyond it, at 140" in str(failed.value)


@pytest.mark.parametrize("start", [60, 100, 130])
def test_what_a_segment_has_of_a_slice_is_read_if_so_asked(segment: Segment, start: int) -> None:
    with capture_logs() as logs:
        assert read(options(failOnDataLoss="false"), start, 140) == list(range(start, 100, EVENT_BYTES))
    assert [(each["event"], each["segment"], each["position"], each["end"]) for each in logs] == [
        ("batch_beyond_end", SEGMENT, 140, 100)
    ]


def test_a_former_owner_may_answer_with_an_older_length(segment: Segment) -> None:
    segment.lengths = [70, 100]
    assert read(options(), 60, 100) == [60, 70, 80, 90]


def test_what_is_truncated_while_a_task_reads_is_left_out_with_a_warning(segment: Segment) -> None:
    segment.truncations = [SegmentTruncatedError(SEGMENT, 30), SegmentTruncatedError(SEGMENT, 200)]
    with capture_logs() as logs:
        assert read(options(failOnDataLoss="false"), 0, 100) == [0, 30]
    assert [(each["event"], each["segment"], each["start"], each["end"]) for each in logs] == [
        ("unread_data_truncated", SEGMENT, 10, 30),
        ("unread_data_truncated", SEGMENT, 40, 100),
    ]


def test_a_segment_that_goes_while_a_task_reads_it_is_left_out_with_a_warning(segment: Segment) -> None:
    segment.truncations = [SegmentGoneError(SEGMENT, 10)]
    with capture_logs() as logs:
        assert read(options(failOnDataLoss="false"), 0, 100) == [0]
    assert [(each["event"], each["start"], each["end"]) for each in logs] == [("unread_data_truncated", 10, 100)]


def test_whether_a_segment_has_gone_is_for_its_reader(segment: Segment) -> None:
    segment.is_there = False
    segment.truncations = [SegmentGoneError(SEGMENT, 10)]
    with pytest.raises(DataLossError, match="bytes from 10 on were truncated while the query read them"):
        read(options(), 0, 100)
