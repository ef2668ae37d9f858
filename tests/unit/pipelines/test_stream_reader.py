"""Where a query's batches begin, and what its group publishes (docs/spark.md#offsets, #retention-follows-a-query)."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, cast

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from tailrace.client.control.history import TimedCut
from tailrace.client.model import StreamName
from tailrace.common.errors import BadRequestError, NoSuchSegmentError
from tailrace.common.stream_cut import StreamCut
from tailrace.pipelines.source.ingest_times import RecordedCuts, TimeBound
from tailrace.pipelines.source.offsets import Positions, to_offset
from tailrace.pipelines.source.options import SourceOptions, parse_options
from tailrace.pipelines.source.plan import Slice
from tailrace.pipelines.source.rows import COLUMNS, INGESTED_BEFORE, SlicePartition
from tailrace.pipelines.source.streaming import StreamReader
from tailrace.pipelines.source.tagged import Division, divide

A, B = StreamName("s", "a"), StreamName("s", "b")


class Client:
    """Runs what needs no event loop."""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        with pytest.raises(StopIteration) as done:
            work.send(None)
        return done.value.value


class Navigator:
    """Streams with a position where queries begin, and one behind all data."""

    def __init__(self, starts: Positions, ends: Positions) -> None:
        self.starts, self.ends = starts, ends
        self.beyond = False

    async def start(self, stream: StreamName, where: object) -> dict[int, int]:
        return self.starts[stream]

    async def advance(self, positions: Positions, bounds: object, ends: object) -> Positions:
        return {stream: self.ends[stream] for stream in positions}

    async def check_cut(self, stream: StreamName, cut: StreamCut) -> None:
        """Every cut is valid."""

    async def is_beyond(self, stream: StreamName, positions: dict[int, int], cut: object) -> bool:
        return self.beyond

    async def tail(self, stream: StreamName) -> dict[int, int]:
        if stream not in self.ends:
            raise NoSuchSegmentError("0")
        return self.ends[stream]


class Tagged:
    """The streams of a tag."""

    def __init__(self, streams: Sequence[StreamName]) -> None:
        self.streams = tuple(streams)

    async def some(self) -> tuple[StreamName, ...]:
        return self.streams

    async def now(self, *, fresh: bool = False) -> tuple[StreamName, ...]:
        return self.streams

    async def divide(self, positions: Positions, tagged: Sequence[StreamName]) -> Division:
        return divide(positions, tagged, [])


def options(**given: str) -> SourceOptions:
    return parse_options({"controller": "tcp://c:9090", **given}, streaming=True)


def reader(given: SourceOptions, navigator: Navigator, tagged: Sequence[StreamName] = ()) -> StreamReader:
    """The reader of a driver that has just started."""
    made = StreamReader(given, COLUMNS)
    made._client, made._navigator = cast("Any", Client()), cast("Any", navigator)
    made._tagged = cast("Any", Tagged(tagged)) if tagged else None
    return made


def logged(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset as Spark's log has it."""
    return cast("dict[str, Any]", json.loads(json.dumps(offset)))


def pieces(partitions: Sequence[InputPartition]) -> list[Slice]:
    return [part.piece for each in partitions for part in cast("SlicePartition", each).parts]


def first_batch(query: StreamReader) -> dict[str, Any]:
    """The end of the first batch, which alone is in Spark's log."""
    return logged(query.latestOffset(logged(query.initialOffset()), ReadAllAvailable()))


@pytest.mark.parametrize(
    ("starts", "what"),
    [
        ({A: {0: 50, 1: 0}}, "the head has moved"),
        ({A: {0: 80, 1: 90}}, "the tail has moved"),
        ({A: {2: 0}}, "the stream was scaled"),
    ],
)
def test_a_repeated_first_batch_begins_where_it_began(starts: Positions, what: str) -> None:
    end = first_batch(reader(options(stream="s/a"), Navigator({A: {0: 10, 1: 0}}, {A: {0: 70, 1: 40}})))
    again = reader(options(stream="s/a"), Navigator(starts, {A: {0: 100, 1: 100}}))
    found = pieces(again.partitions(logged(again.initialOffset()), end))
    assert found == [Slice(A, 0, 10, 70), Slice(A, 1, 0, 40)], what


def test_a_repeated_first_batch_has_a_stream_that_has_lost_the_tag() -> None:
    navigator = Navigator({A: {0: 0}, B: {0: 5}}, {A: {0: 70}, B: {0: 40}})
    end = first_batch(reader(options(tag="s/red"), navigator, [A, B]))
    again = reader(options(tag="s/red"), navigator, [A])
    assert pieces(again.partitions(logged(again.initialOffset()), end)) == [Slice(A, 0, 0, 70), Slice(B, 0, 5, 40)]


def test_a_deletion_that_is_under_way_ends_no_query_by_a_tag() -> None:
    query = reader(options(tag="s/red"), navigator := Navigator({}, {A: {0: 70}}), [A, B])
    assert query.reportLatestOffset() == {"s/a": {"0": 70}}
    query.prepareForTriggerAvailableNow()
    assert query._ends == {A: {0: 70}}
    named = reader(options(stream="s/b"), navigator)
    with pytest.raises(NoSuchSegmentError):
        named.reportLatestOffset()


def test_only_the_first_batch_says_where_it_began() -> None:
    query = reader(options(stream="s/a"), navigator := Navigator({A: {0: 10}}, {A: {0: 70}}))
    first = first_batch(query)
    navigator.ends = {A: {0: 90}}
    second = logged(query.latestOffset(first, ReadAllAvailable()))
    assert second == {"s/a": {"0": 90}}
    assert pieces(query.partitions(first, second)) == [Slice(A, 0, 70, 90)]
    assert query.latestOffset(second, ReadAllAvailable()) == second, "there is no new batch"


def test_nothing_new_after_the_first_batch_is_no_second_batch() -> None:
    query = reader(options(stream="s/a"), Navigator({A: {0: 10}}, {A: {0: 70}}))
    first = first_batch(query)
    assert json.dumps(query.latestOffset(first, ReadAllAvailable())) == json.dumps(first)
    assert pieces(query.partitions(first, first)) == [], "Spark may make a batch without data"


def test_a_first_batch_without_events_is_no_reason_for_another_one() -> None:
    query = reader(options(stream="s/a", start="tail"), navigator := Navigator({A: {0: 10}}, {A: {0: 10}}))
    first = first_batch(query)
    assert json.dumps(query.latestOffset(first, ReadAllAvailable())) == json.dumps(first)
    assert pieces(query.partitions(logged(query.initialOffset()), first)) == []
    navigator.ends = {A: {0: 30}}
    second = logged(query.latestOffset(first, ReadAllAvailable()))
    assert pieces(query.partitions(first, second)) == [Slice(A, 0, 10, 30)]


def test_a_first_batch_of_an_older_checkpoint_begins_where_the_query_begins_now() -> None:
    query = reader(options(stream="s/a"), Navigator({A: {0: 10}}, {A: {0: 70}}))
    assert pieces(query.partitions(logged(query.initialOffset()), {"s/a": {"0": 70}})) == [Slice(A, 0, 10, 70)]


def test_a_first_batch_of_other_streams_is_refused() -> None:
    query = reader(options(stream="s/a"), Navigator({A: {0: 10}}, {A: {0: 70}}))
    with pytest.raises(BadRequestError, match="the checkpoint is of s/b, the query reads s/a"):
        query.partitions(query.initialOffset(), {"s/a": {"0": 70}, "from": {"s/b": {"0": 10}}})


class Group:
    """A reader group that refuses positions before those that it has."""

    def __init__(self, published: dict[StreamName, dict[int, int]]) -> None:
        self.published = published
        self.calls = 0

    async def publish_cuts(self, cuts: Mapping[StreamName, StreamCut]) -> None:
        self.calls += 1
        for stream, cut in cuts.items():
            before = self.published.get(stream, {})
            if any(offset < before.get(segment, 0) for segment, offset in cut.positions.items()):
                raise BadRequestError("the cut is not valid")
            self.published[stream] = dict(cut.positions)


def held(
    group: Group, starts: Positions, ends: Positions, streams: str = "s/a", more: Mapping[str, str] | None = None
) -> StreamReader:
    made = reader(options(streams=streams, group="s/g", **(more or {})), Navigator(starts, ends))
    made._group = cast("Any", group)
    return made


def test_a_query_holds_its_beginning_before_it_has_read_anything() -> None:
    group = Group({})
    query = held(group, {A: {0: 10}}, {A: {0: 70}})
    end = first_batch(query)
    assert group.published == {A: {0: 10}}
    query.partitions(query.initialOffset(), end)
    query.latestOffset(end, ReadAllAvailable())
    assert (group.published, group.calls) == ({A: {0: 10}}, 1), "only Spark says what is committed"
    query.commit(end)
    assert group.published == {A: {0: 70}}


def test_a_query_that_goes_on_holds_what_its_checkpoint_has() -> None:
    group = Group({A: {0: 10}})
    held(group, {A: {0: 10}}, {A: {0: 90}}).latestOffset({"s/a": {"0": 70}}, ReadAllAvailable())
    assert group.published == {A: {0: 70}}


@pytest.mark.parametrize("initial", [True, False])
def test_a_query_that_repeats_a_batch_holds_where_that_begins(initial: bool) -> None:
    group, starts = Group({}), {A: {0: 10}}
    end = first_batch(held(Group({}), starts, {A: {0: 70}}))
    query = held(group, {A: {0: 80}}, {A: {0: 90}})
    start = logged(query.initialOffset()) if initial else {"s/a": {"0": 30}}
    query.partitions(start, end if initial else {"s/a": {"0": 70}})
    query.latestOffset(end, ReadAllAvailable())
    assert group.published == {A: {0: 10 if initial else 30}}, "not where it ends, which may not be committed yet"


def test_a_query_that_is_refused_publishes_nothing() -> None:
    group = Group({})
    query = held(group, {A: {0: 80}}, {A: {0: 90}}, more={"end": StreamCut("s", "a", {0: 50}).to_text()})
    query._navigator.beyond = True  # type: ignore[union-attr]
    with pytest.raises(BadRequestError, match="beyond the cut of the option end"):
        first_batch(query)
    assert group.published == {}


def test_a_query_leaves_later_positions_of_its_group_and_holds_its_other_streams() -> None:
    group = Group({A: {0: 50}})
    first_batch(held(group, {A: {0: 10}, B: {0: 5}}, {A: {0: 70}, B: {0: 40}}, "s/a,s/b"))
    assert group.published == {A: {0: 50}, B: {0: 5}}


class Cuts:
    """A context whose controller has recorded a cut of stream A, behind byte 10, each second."""

    def __init__(self) -> None:
        self.controller = self
        self.recorded = 0
        self.returned = 0

    async def stream_cuts(self, stream: StreamName, from_ms: int = 0) -> list[TimedCut]:
        first = max(1, -(-from_ms // 1000))
        found = [TimedCut(each * 1000, {0: each * 10}) for each in range(first, self.recorded + 1)]
        self.returned += len(found)
        return found


def test_a_query_that_runs_for_long_remembers_few_cuts() -> None:
    """What its batches have passed: a driver that runs for months would remember all that were ever recorded."""
    cuts, navigator = Cuts(), Navigator({A: {0: 0}, B: {0: 0}}, {A: {0: 0}, B: {0: 0}})
    query = StreamReader(options(tag="s/red"), StructType([*COLUMNS.fields, INGESTED_BEFORE]))
    query._client, query._navigator = cast("Any", Client()), cast("Any", navigator)
    query._cuts = RecordedCuts(cast("Any", cuts))
    before: Positions = {A: {0: 0}, B: {0: 0}}
    for batch in range(1, 500):
        cuts.recorded = batch + 3
        after: Positions = {A: {0: batch * 10}, **({B: {0: batch}} if batch < 5 else {})}
        partitions = query.partitions(to_offset(before), to_offset(after))
        parts = [part for each in partitions for part in cast("SlicePartition", each).parts]
        found = {part.piece.stream: part.times for part in parts}
        assert found[A] == (TimeBound(batch * 10, batch * 1000),)
        before = after
        assert sum(map(len, query._cuts._known.values())) <= 20
    assert query._cuts._known.keys() == {A}, "a stream that has lost the tag goes"
    assert cuts.returned < 10 * 500, "none of them is asked for again and again"
