"""Rows of a real Spark written into streams, each batch exactly once (docs/spark-sink.md)."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig, StreamName
from tailrace.pipelines.jobs.checkpoint import query_with_batches
from tailrace.pipelines.sink.options import parse_options
from tailrace.pipelines.sink.query_table import find_record
from tailrace.pipelines.sink.task import write_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = 7


@pytest.fixture
def streams(client: BlockingClient, scope: str) -> tuple[str, str]:
    """Two new streams with two segments each: to read, and to write."""
    names = (f"{scope}/from", f"{scope}/to")
    for name in names:
        client.streams.create_stream(name, StreamConfig(ScalingPolicy.fixed(2)))
    return names


def write(client: BlockingClient, stream: str, numbers: range) -> None:
    """Write a numbered event for each number; its key is the number modulo KEYS."""
    with client.writer(stream) as writer:
        for number in numbers:
            writer.write_event(_event(number), routing_key=f"k{number % KEYS}")
        writer.flush()


def _event(number: int) -> bytes:
    return json.dumps({"key": f"k{number % KEYS}", "n": number}).encode()


def events(client: BlockingClient, stream: str) -> list[bytes]:
    """Return all events of a stream, segment by segment."""
    return [event for piece in client.slices(stream) for some in client.read_slice(piece) for event in some]


def by_key(client: BlockingClient, stream: str) -> dict[str, list[int]]:
    """Return the numbers of each key in the order of the stream."""
    found = defaultdict(list)
    for event in events(client, stream):
        fields = json.loads(event)
        found[fields["key"]].append(fields["n"])
    return dict(found)


def expected(numbers: range) -> dict[str, list[int]]:
    """Return what `by_key` returns for events in order."""
    found = defaultdict(list)
    for number in numbers:
        found[f"k{number % KEYS}"].append(number)
    return dict(found)


class Copy:
    """A query that copies one stream into another, with a checkpoint."""

    def __init__(
        self, spark: SparkSession, server: Endpoints, streams: tuple[str, str], folder: Path, **options: str
    ) -> None:
        self._spark, self._controller, self._streams, self._folder = spark, server.controller, streams, folder
        self._options = {"routingKey": "key", **options}

    def run(self, max_bytes: int | None = None) -> None:
        """Copy what there is now, in batches of so many bytes."""
        source = self._spark.readStream.format("tailrace")
        source = source.options(controller=self._controller, stream=self._streams[0])
        if max_bytes is not None:
            source = source.option("maxBytesPerTrigger", max_bytes)
        rows = source.load().selectExpr("value", "get_json_object(decode(value, 'UTF-8'), '$.key') as key")
        query = (
            rows.writeStream.format("tailrace")
            .options(controller=self._controller, stream=self._streams[1], **self._options)
            .option("checkpointLocation", str(self._folder))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()


def forget(folder: Path, log: str, batch: int) -> None:
    """Remove a batch from a log of a checkpoint, as if the driver had ended before it wrote that."""
    for name in (str(batch), f".{batch}.crc"):
        (folder / log / name).unlink()


def test_a_query_copies_a_stream_and_a_repeated_batch_is_left_out(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    copy = Copy(spark, server, streams, tmp_path)
    write(client, streams[0], range(2000))
    copy.run(max_bytes=30_000)
    batches = [int(each.name) for each in (tmp_path / "commits").glob("[0-9]*")]
    assert max(batches) >= 1, "there was one batch only"
    assert by_key(client, streams[1]) == expected(range(2000))
    forget(tmp_path, "commits", max(batches))
    write(client, streams[0], range(2000, 3000))
    copy.run()
    assert by_key(client, streams[1]) == expected(range(3000))


def test_an_old_copy_of_a_checkpoint_is_refused(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    old = tmp_path / "old"
    copy = Copy(spark, server, streams, tmp_path / "new")
    write(client, streams[0], range(100))
    copy.run()
    shutil.copytree(tmp_path / "new", old)
    for first in (100, 200):
        write(client, streams[0], range(first, first + 100))
        copy.run()
    with pytest.raises(PySparkException, match="its checkpoint is an old copy"):
        Copy(spark, server, streams, old).run()
    assert by_key(client, streams[1]) == expected(range(300))


def test_at_least_once_writes_every_event(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    write(client, streams[0], range(500))
    Copy(spark, server, streams, tmp_path, delivery="atLeastOnce").run()
    assert by_key(client, streams[1]) == expected(range(500))
    query = query_with_batches(spark, str(tmp_path)) or ""
    record = client.run(find_record(client.context, StreamName.parse(streams[1]), query))
    assert record is None, "only a batch that is written once has a record"


@pytest.mark.parametrize(("delivery", "is_readable"), [("atLeastOnce", True), ("exactlyOnce", False)])
def test_at_least_once_can_be_read_before_the_batch_is_committed(
    server: Endpoints, client: BlockingClient, streams: tuple[str, str], delivery: str, is_readable: bool
) -> None:
    given = {"controller": server.controller, "stream": streams[1], "delivery": delivery}
    rows = pa.record_batch({"value": [_event(number) for number in range(50)]})
    message = write_task(parse_options(given, streaming=True), "", "run", iter([rows]))
    assert (message.transaction is None) == is_readable
    assert len(events(client, streams[1])) == (50 if is_readable else 0)


def test_a_sealed_stream_fails_the_query_and_leaves_nothing(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    write(client, streams[0], range(100))
    client.streams.seal_stream(streams[1])
    with pytest.raises(PySparkException, match=f"tailrace.common.errors.*{streams[1]}"):
        Copy(spark, server, streams, tmp_path).run()
    assert events(client, streams[1]) == []


def save(frame: DataFrame, server: Endpoints, stream: str, mode: str = "append", **options: str) -> None:
    frame.write.format("tailrace").options(controller=server.controller, stream=stream, **options).mode(mode).save()


def test_a_table_is_written_as_json_and_its_batch_once(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str]
) -> None:
    rows = spark.range(1000).selectExpr("concat('k', id % 7) as key", "id as n")
    options = {"valueFormat": "json", "routingKey": "key", "query": "load", "batch": "4"}
    for _ in range(2):
        save(rows.repartition(3, "key").sortWithinPartitions("n"), server, streams[1], **options)
    assert by_key(client, streams[1]) == expected(range(1000))


def create_again(client: BlockingClient, stream: str) -> None:
    """Delete a stream, and create one of its name. The records of queries, in a table of the scope, outlive it."""
    client.streams.seal_stream(stream)
    client.streams.delete_stream(stream)
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))


def test_a_table_is_written_to_a_stream_that_was_created_again(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str]
) -> None:
    rows = spark.range(0, 50, 1, 1).selectExpr("concat('k', id % 7) as key", "id as n")
    options = {"valueFormat": "json", "routingKey": "key", "query": "load", "batch": "4"}
    save(rows, server, streams[1], **options)
    create_again(client, streams[1])
    for _ in range(2):
        save(rows, server, streams[1], **options)
    assert by_key(client, streams[1]) == expected(range(50))


def test_a_batch_of_a_query_is_written_to_a_stream_that_was_created_again(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    """The driver ended before its checkpoint said that the batch is complete."""
    copy = Copy(spark, server, streams, tmp_path)
    write(client, streams[0], range(100))
    copy.run()
    query = query_with_batches(spark, str(tmp_path)) or ""
    record = client.run(find_record(client.context, StreamName.parse(streams[1]), query))
    assert record is not None
    forget(tmp_path, "commits", record.last_batch)
    create_again(client, streams[1])
    assert client.run(find_record(client.context, StreamName.parse(streams[1]), query)) is None, "for jobs of ours"
    copy.run()
    assert by_key(client, streams[1]) == expected(range(100))


def test_a_table_without_a_number_is_written_each_time(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str]
) -> None:
    rows = spark.range(50).selectExpr("cast(id as string) as value")
    for _ in range(2):
        save(rows, server, streams[1])
    assert sorted(events(client, streams[1])) == sorted(2 * [str(each).encode() for each in range(50)])


def test_a_task_that_fails_leaves_nothing(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str]
) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr("if(id = 99, null, cast(id as string)) as value")
    with pytest.raises(PySparkException, match="column value is null in 1 of 50 rows"):
        save(rows, server, streams[1])
    assert events(client, streams[1]) == []


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("overwrite", {}, "a stream is appended to"),
        ("append", {"routingKey": "key"}, "the rows have no column key"),
        ("append", {"group": "s/g"}, "there is no option group"),
    ],
)
def test_wrong_writes_are_refused(
    spark: SparkSession, server: Endpoints, streams: tuple[str, str], mode: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        save(spark.range(1).selectExpr("cast(id as string) as value"), server, streams[1], mode, **options)


def test_a_stream_that_does_not_exist_is_named(spark: SparkSession, server: Endpoints, scope: str) -> None:
    with pytest.raises(PySparkException, match=f"{scope}/nothing"):
        save(spark.range(1).selectExpr("cast(id as string) as value"), server, f"{scope}/nothing")
