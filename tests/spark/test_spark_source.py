"""Streams as tables and as streaming queries of a real Spark (docs/spark.md)."""

from __future__ import annotations

import json
import re
import uuid
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig, group_config
from tailrace.common.errors import DataLossError
from tailrace.common.stream_policies import StreamDataRetention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = 7


def write(client: BlockingClient, stream: str, numbers: range) -> None:
    """Write a numbered event for each number; its key is the number modulo KEYS."""
    with client.writer(stream) as writer:
        for number in numbers:
            writer.write_event(
                json.dumps({"key": number % KEYS, "n": number}).encode(), routing_key=f"k{number % KEYS}"
            )
        writer.flush()


def table(spark: SparkSession, server: Endpoints, stream: str, **options: str) -> DataFrame:
    return spark.read.format("tailrace").options(controller=server.controller, stream=stream, **options).load()


class Query:
    """A streaming query that keeps its batches, with a checkpoint."""

    def __init__(self, spark: SparkSession, server: Endpoints, stream: str, checkpoint: Path, **options: str) -> None:
        names = {"stream": stream} if stream else {}
        self._frame = spark.readStream.format("tailrace").options(controller=server.controller, **names, **options)
        self._checkpoint = checkpoint
        self.batches: dict[int, list[dict[str, Any]]] = {}

    def run(self) -> list[int]:
        """Read what there is now; return the numbers of the events of this run."""
        before = set(self.batches)

        def keep(batch: DataFrame, number: int) -> None:
            self.batches[number] = [row.asDict() for row in batch.collect()]

        query = (
            self._frame.load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        new = [row for number in sorted(set(self.batches) - before) for row in self.batches[number]]
        return [json.loads(row["value"])["n"] for row in new]

    def check_order(self) -> None:
        """In each key the events are in order: from batch to batch, and by segment and offset within a batch."""
        seen: dict[int, int] = defaultdict(lambda: -1)
        for number in sorted(self.batches):
            segments: dict[int, set[tuple[int, int]]] = defaultdict(set)
            for row in sorted(self.batches[number], key=lambda row: (row["epoch"], row["segment"], row["offset"])):
                event = json.loads(row["value"])
                segments[event["key"]].add((row["epoch"], row["segment"]))
                assert event["n"] > seen[event["key"]], (number, row)
                seen[event["key"]] = event["n"]
            assert all(len(each) == 1 for each in segments.values()), "a key in two segments of one batch"


def test_a_table_has_each_event_once_with_its_place(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str
) -> None:
    write(client, stream, range(2000))
    rows = table(spark, server, stream).collect()
    assert sorted(json.loads(row["value"])["n"] for row in rows) == list(range(2000))
    assert {(row["scope"], row["stream"]) for row in rows} == {tuple(stream.split("/"))}
    for segment in {row["segment"] for row in rows}:
        places = [(row["offset"], len(row["value"]) + 8) for row in rows if row["segment"] == segment]
        places.sort()
        assert [offset for offset, _ in places] == [sum(size for _, size in places[:at]) for at in range(len(places))]
    only = spark.read.format("tailrace").options(controller=server.controller, stream=stream).schema("offset bigint")
    assert only.load().count() == 2000


def test_a_table_of_an_empty_stream_has_no_rows(spark: SparkSession, server: Endpoints, stream: str) -> None:
    assert table(spark, server, stream).collect() == []


def test_a_table_between_two_cuts_and_over_a_scale(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str
) -> None:
    write(client, stream, range(100))
    first = client.streams.tail(stream).to_text()
    write(client, stream, range(100, 200))
    client.streams.scale_to(stream, 4)
    write(client, stream, range(200, 300))
    second = client.streams.tail(stream).to_text()
    write(client, stream, range(300, 400))
    found = table(spark, server, stream, start=first, end=second).collect()
    assert sorted(json.loads(row["value"])["n"] for row in found) == list(range(100, 300))
    with pytest.raises(PySparkException, match="cut `from` lies after cut `to`"):
        table(spark, server, stream, start=second, end=first).collect()


def test_a_query_goes_on_at_its_checkpoint_in_order_over_scales(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    query = Query(spark, server, stream, tmp_path, maxBytesPerTrigger="8000")
    write(client, stream, range(700))
    assert sorted(query.run()) == list(range(700))
    assert len(query.batches) > 1, "the bound divides what there is into several batches"
    client.streams.scale_to(stream, 3)
    write(client, stream, range(700, 1000))
    client.streams.scale_to(stream, 2)
    write(client, stream, range(1000, 1200))
    again = Query(spark, server, stream, tmp_path, maxBytesPerTrigger="8000")
    again.batches.update(query.batches)
    assert sorted(again.run()) == list(range(700, 1200))
    again.check_order()
    assert again.run() == []


def test_a_bound_of_events_holds(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    query = Query(spark, server, stream, tmp_path, maxEventsPerTrigger="50")
    write(client, stream, range(170))
    assert sorted(query.run()) == list(range(170))
    assert all(len(batch) <= 50 for batch in query.batches.values())
    assert len(query.batches) >= 4


def test_truncated_data_are_an_error_or_are_left_out(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    write(client, stream, range(100))
    query = Query(spark, server, stream, tmp_path)
    assert len(query.run()) == 100
    write(client, stream, range(100, 200))
    client.streams.scale_to(stream, 3)
    write(client, stream, range(200, 300))
    client.streams.truncate_stream(stream, client.streams.tail(stream))
    write(client, stream, range(300, 400))
    with pytest.raises(PySparkException, match=r"bytes \d+ to \d+ were truncated .* failOnDataLoss=false"):
        query.run()
    lenient = Query(spark, server, stream, tmp_path, failOnDataLoss="false")
    assert sorted(lenient.run()) == list(range(300, 400))


def test_a_table_from_a_truncated_cut_is_an_error_or_begins_behind_it(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str
) -> None:
    write(client, stream, range(100))
    cut = client.streams.tail(stream).to_text()
    write(client, stream, range(100, 200))
    client.streams.scale_to(stream, 3)
    write(client, stream, range(200, 300))
    client.streams.truncate_stream(stream, client.streams.tail(stream))
    write(client, stream, range(300, 400))
    with pytest.raises(PySparkException, match=r"bytes \d+ to \d+ were truncated, which are behind the start"):
        table(spark, server, stream, start=cut).collect()
    found = table(spark, server, stream, start=cut, failOnDataLoss="false").collect()
    assert sorted(json.loads(row["value"])["n"] for row in found) == list(range(300, 400))


def test_a_read_and_truncated_segment_is_no_loss(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    query = Query(spark, server, stream, tmp_path)
    write(client, stream, range(100))
    assert len(query.run()) == 100
    client.streams.scale_to(stream, 3)
    client.streams.truncate_stream(stream, client.streams.tail(stream))
    write(client, stream, range(100, 150))
    assert sorted(query.run()) == list(range(100, 150))


def test_a_segment_that_a_client_deleted_is_a_loss(client: BlockingClient, stream: str) -> None:
    """No controller knows how much was in it."""
    from tailrace.pipelines.source.positions import Navigator, ReadLimits

    write(client, stream, range(100))
    name = _name(stream)
    positions = {name: dict(client.streams.tail(stream).positions)}
    gone = min(positions[name])
    client.run(client.context.segments.delete_segment(name.segment(gone)))
    strict, lenient = (Navigator(client.context, fail_on_data_loss) for fail_on_data_loss in (True, False))
    with pytest.raises(DataLossError, match=r"it was deleted, read up to \d+, before the query read them"):
        client.run(strict.advance(positions, ReadLimits(), None))
    assert client.run(lenient.advance(positions, ReadLimits(), None)) == positions


def test_the_position_of_a_query_is_published_as_its_group(
    spark: SparkSession, server: Endpoints, client: BlockingClient, scope: str, stream: str, tmp_path: Path
) -> None:
    config = group_config({_name(stream): None}, retention=StreamDataRetention.MANUAL)
    client.reader_groups(scope).create("spark", config)
    write(client, stream, range(100))
    query = Query(spark, server, stream, tmp_path, group=f"{scope}/spark")
    assert len(query.run()) == 100
    write(client, stream, range(100, 110))
    assert sorted(query.run()) == list(range(100, 110))  # a batch is committed before the next one
    published = client.run(client.context.controller.stream_history(_name(stream))).subscribers[f"{scope}/spark"]
    tail = client.streams.tail(stream).positions
    assert published.keys() == tail.keys()
    assert 0 < sum(published.values()) <= sum(tail.values())


def _name(stream: str) -> Any:
    from tailrace.client import StreamName

    return StreamName.parse(stream)


def _published_bytes(client: BlockingClient, stream: str, group: str) -> int:
    """How much of a stream lies before the position that a group has published."""
    history = client.run(client.context.controller.stream_history(_name(stream)))
    return sum(history.subscribers[group].values())


def test_json_is_decoded_and_what_is_no_json_is_kept_or_named(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str
) -> None:
    texts = ['{"a": 1, "b": "x", "at": "2013-01-01T05:00:00+02:00"}', '{"a": 2, "c": 5, "at": "2013-01-01 05:00:00"}']
    texts += ["no json", '{"a": "text"}', "", '{"a": 3}\n{"a": 4}', '{\n"a": 5}']
    with client.writer(stream) as writer:
        for text in texts:
            writer.write_event(text.encode(), routing_key="one")
        writer.flush()
    reader = spark.read.format("tailrace").options(controller=server.controller, stream=stream, valueFormat="json")
    schema = "a bigint, b string, at timestamp"
    rows = reader.schema(f"{schema}, _corrupt string").load().collect()
    assert [(row["a"], row["b"]) for row in rows if row["_corrupt"] is None] == [(1, "x"), (2, None), (5, None)]
    assert [row["_corrupt"] for row in rows if row["_corrupt"] is not None] == texts[2:6]
    frame = reader.schema(schema).load()
    seconds = [row[0] for row in frame.selectExpr("unix_timestamp(at)").where("a <= 2").collect()]
    assert seconds == [1357009200, 1357016400]
    with pytest.raises(PySparkException, match=r"events/\d.* at \d+: the event cannot be decoded"):
        reader.option("mode", "failfast").schema(schema).load().collect()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": "none/such"}, "stream none/such does not exist"),
        ({"stram": "x"}, "there is no option stram"),
        ({"start": "yesterday"}, "neither head, tail, a time nor a stream cut"),
        ({"start": "tail"}, "has no events"),
        ({"maxBytesPerTrigger": "10"}, "is an option of streaming queries"),
        ({"valueFormat": "xml"}, "none of binary, json, avro, arrow"),
        ({"valueFormat": "json"}, "needs a schema"),
    ],
)
def test_wrong_options_are_named(
    spark: SparkSession, server: Endpoints, stream: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=re.escape(words)):
        table(spark, server, **{"stream": stream, **options}).collect()


def test_a_query_follows_the_streams_of_a_tag(
    spark: SparkSession, server: Endpoints, client: BlockingClient, scope: str, tmp_path: Path
) -> None:
    """Streams get the tag, lose it, have it again, and are deleted; each event is read once."""
    tagged, plain = (StreamConfig(ScalingPolicy.fixed(2), tags=tags) for tags in (("red",), ("blue",)))
    first, second, third = (f"{scope}/{name}" for name in ("first", "second", "third"))
    for name, config in ((first, tagged), (second, plain), (third, tagged)):
        client.streams.create_stream(name, config)
    write(client, first, range(10))
    write(client, second, range(10, 20))
    write(client, third, range(20, 30))
    options = {"controller": server.controller, "tag": f"{scope}/red"}
    rows = spark.read.format("tailrace").options(**options).load().select("stream", "value").collect()
    assert sorted(json.loads(row["value"])["n"] for row in rows) == [*range(10), *range(20, 30)]
    query = Query(spark, server, "", tmp_path, tag=f"{scope}/red")
    assert sorted(query.run()) == [*range(10), *range(20, 30)]

    client.streams.update_stream(second, tagged)
    client.streams.update_stream(first, plain)
    write(client, first, range(30, 40))
    assert sorted(query.run()) == [*range(10, 20)], "from the head of the new one, and nothing of the other"
    client.streams.seal_stream(third)
    client.streams.delete_stream(third)
    client.streams.update_stream(first, tagged)
    write(client, second, range(40, 50))
    assert sorted(query.run()) == [*range(30, 50)], "from where it was left"
    assert query.run() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tag": "SCOPE/green"}, "no stream of scope SCOPE has the tag green"),
        ({"tag": "red"}, "is not of the form SCOPE/TAG"),
        ({"tag": "none-such/red"}, "scope none-such: the scope does not exist"),
        ({"tag": "SCOPE/red", "streams": "a/b"}, "give the option stream, or streams"),
        ({"tag": "SCOPE/red", "group": "SCOPE/group"}, "group publishes positions in streams that the options name"),
    ],
)
def test_wrong_tags_are_named(
    spark: SparkSession, server: Endpoints, scope: str, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    given = {name: value.replace("SCOPE", scope) for name, value in options.items()}
    with pytest.raises(PySparkException, match=re.escape(words.replace("scope SCOPE", f"scope {scope}"))):
        Query(spark, server, "", tmp_path, **given).run()


def test_two_queries_with_groups_of_their_own_read_everything_and_publish_their_own_positions(
    spark: SparkSession, server: Endpoints, client: BlockingClient, scope: str, stream: str, tmp_path: Path
) -> None:
    config = group_config({_name(stream): None}, retention=StreamDataRetention.MANUAL)
    queries = {}
    for name in ("fast", "slow"):
        client.reader_groups(scope).create(name, config)
        queries[name] = Query(spark, server, stream, tmp_path / name, group=f"{scope}/{name}")
    read: dict[str, list[int]] = {"fast": [], "slow": []}
    for turn, names in enumerate((("fast", "slow"), ("fast",), ("fast",), ("slow", "fast"))):
        write(client, stream, range(turn * 100, turn * 100 + 100))
        for name in names:
            read[name] += queries[name].run()
    assert {name: sorted(numbers) for name, numbers in read.items()} == {name: list(range(400)) for name in read}
    for query in queries.values():
        query.check_order()
    published = {name: _published_bytes(client, stream, f"{scope}/{name}") for name in read}
    assert 0 < published["slow"] < published["fast"], "each one's last batch but one"


def test_a_checkpoint_of_another_stream_and_a_missing_group_are_refused(
    spark: SparkSession, server: Endpoints, client: BlockingClient, scope: str, stream: str, tmp_path: Path
) -> None:
    other = f"{scope}/other"
    client.streams.create_stream(other)
    write(client, stream, range(10))
    assert len(Query(spark, server, stream, tmp_path).run()) == 10
    with pytest.raises(PySparkException, match=f"the checkpoint is of {stream}, the query reads {other}"):
        Query(spark, server, other, tmp_path).run()
    group = f"{scope}/missing-{uuid.uuid4().hex[:4]}"
    with pytest.raises(PySparkException, match=f"reader group {group} does not exist"):
        Query(spark, server, stream, tmp_path / "new", group=group).run()
    cut = client.streams.tail(stream).to_text()
    with pytest.raises(PySparkException, match=f"the cut is of the stream {stream}"):
        table(spark, server, other, start=cut).collect()


def test_a_stream_that_was_created_again_is_an_error(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    write(client, stream, range(10))
    query = Query(spark, server, stream, tmp_path)
    assert len(query.run()) == 10
    client.streams.seal_stream(stream)
    client.streams.delete_stream(stream)
    with pytest.raises(PySparkException, match=f"stream {stream} does not exist"):
        query.run()
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))
    with pytest.raises(PySparkException, match="deleted and created again since the checkpoint"):
        query.run()
