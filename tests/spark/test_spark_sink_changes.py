"""A stream is scaled or sealed after tasks have written half of their rows (docs/spark-sink.md#exactly-once)."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from pyspark.errors import StreamingQueryException

from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig, StreamName
from tailrace.common import limits
from tailrace.common.errors import StreamSealedError
from tailrace.pipelines.jobs.session import reason_of
from tailrace.pipelines.sink.commit import commit_all
from tailrace.pipelines.sink.query_table import StreamTransactions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KEYS = 7
EVENTS = 1000
ROWS_OF_A_BATCH = 20
"""Of Arrow, so that tasks get their rows in many pieces."""
PIECES_BEFORE = 15
EVENT_BYTES = 1000
"""So that the rows before the gate are more than Spark keeps back in buffers."""
TRANSACTION = "#transaction."
DEADLINE_S = 120
POLL_S = 0.05


@pytest.fixture
def streams(client: BlockingClient, scope: str) -> tuple[str, str]:
    """Two new streams with two segments each: to read, with numbered events, and to write."""
    names = (f"{scope}/from", f"{scope}/to")
    for name in names:
        client.streams.create_stream(name, StreamConfig(ScalingPolicy.fixed(2)))
    write(client, names[0], range(EVENTS))
    return names


@pytest.fixture
def small_pieces(spark: SparkSession) -> Iterator[None]:
    """Tasks get their rows in small pieces."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_OF_A_BATCH)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def write(client: BlockingClient, stream: str, numbers: range) -> None:
    """Write a numbered event for each number; its key is the number modulo KEYS."""
    with client.writer(stream) as writer:
        for number in numbers:
            key = f"k{number % KEYS}"
            event = json.dumps({"key": key, "n": number}).ljust(EVENT_BYTES)
            writer.write_event(event.encode(), routing_key=key)
        writer.flush()


def by_key(client: BlockingClient, stream: str) -> dict[str, list[int]]:
    """Return the numbers of each key in the order of the stream."""
    found = defaultdict(list)
    for piece in client.slices(stream):
        for events in client.read_slice(piece):
            for event in events:
                fields = json.loads(event)
                found[fields["key"]].append(fields["n"])
    return dict(found)


def expected(events: int) -> dict[str, list[int]]:
    """Return what `by_key` returns for events in order."""
    return {f"k{key}": list(range(key, events, KEYS)) for key in range(KEYS)}


class Gate:
    """Holds tasks between their rows until it is opened."""

    def __init__(self, folder: Path) -> None:
        self._open, self._waiting = folder / "open", folder / "waiting"
        self._waiting.mkdir()

    def function(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """Return what passes a task's rows on, for ``mapInArrow``."""
        gate, waiting, before, deadline_s = str(self._open), str(self._waiting), PIECES_BEFORE, DEADLINE_S

        def passed(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pathlib
            import time

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            for number, piece in enumerate(pieces):
                if number == before:
                    (pathlib.Path(waiting) / str(context.partitionId())).touch()
                    ends_at_s = time.monotonic() + deadline_s
                    while not pathlib.Path(gate).exists():
                        assert time.monotonic() < ends_at_s, "the gate stays closed"
                        time.sleep(0.01)
                yield piece

        return passed

    def held(self) -> int:
        """Return how many tasks are at the gate."""
        return len(list(self._waiting.iterdir()))

    def open(self) -> None:
        """Let the tasks go on."""
        self._open.touch()


def start_copy(
    spark: SparkSession, server: Endpoints, streams: tuple[str, str], folder: Path, gate: Gate
) -> StreamingQuery:
    source = spark.readStream.format("tailrace").options(controller=server.controller, stream=streams[0])
    rows = source.load().selectExpr("value", "get_json_object(decode(value, 'UTF-8'), '$.key') as key")
    return (
        rows.mapInArrow(gate.function(), rows.schema)
        .writeStream.format("tailrace")
        .options(controller=server.controller, stream=streams[1], routingKey="key")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def transactions_with_events(server: Endpoints, stream: str) -> int:
    """Return how many open transactions of a stream hold events."""
    listed = httpx.get(f"{server.admin}/v1/segments", params={"limit": 1000}, trust_env=False).raise_for_status().json()
    names = [each["name"] for each in listed if each["name"].startswith(stream) and each["length"]]
    return len({name.rpartition(TRANSACTION)[2] for name in names if TRANSACTION in name})


def wait_until_half_written(server: Endpoints, stream: str, query: StreamingQuery, gate: Gate) -> None:
    """Wait until both tasks of the query are at the gate, and their transactions have events."""
    ends_at_s = time.monotonic() + DEADLINE_S
    while gate.held() < 2 or transactions_with_events(server, stream) < 2:
        assert query.isActive, query.exception()
        assert time.monotonic() < ends_at_s, f"{gate.held()} tasks are at the gate"
        time.sleep(POLL_S)


@pytest.mark.usefixtures("small_pieces")
def test_a_stream_that_is_scaled_under_its_tasks_has_each_event_once(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    query = start_copy(spark, server, streams, tmp_path, gate)
    try:
        wait_until_half_written(server, streams[1], query, gate)
        client.streams.scale_to(streams[1], 3)
        gate.open()
        assert query.awaitTermination(DEADLINE_S)
    finally:
        query.stop()
    assert by_key(client, streams[1]) == expected(EVENTS)
    write(client, streams[0], range(EVENTS, 2 * EVENTS))
    assert start_copy(spark, server, streams, tmp_path, gate).awaitTermination(DEADLINE_S)
    assert by_key(client, streams[1]) == expected(2 * EVENTS)


@pytest.mark.usefixtures("small_pieces")
def test_a_stream_that_is_sealed_under_its_tasks_fails_the_query_and_has_nothing(
    spark: SparkSession, server: Endpoints, client: BlockingClient, streams: tuple[str, str], tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    query = start_copy(spark, server, streams, tmp_path, gate)
    try:
        wait_until_half_written(server, streams[1], query, gate)
        client.streams.seal_stream(streams[1])
        gate.open()
        with pytest.raises(StreamingQueryException) as failed:
            query.awaitTermination(DEADLINE_S)
    finally:
        query.stop()
    assert reason_of(str(failed.value)) == f"stream {streams[1]} is sealed: no more events can be written into it"
    assert by_key(client, streams[1]) == {}


def test_a_stream_that_is_sealed_before_the_commit_is_named(client: BlockingClient, streams: tuple[str, str]) -> None:
    name, lease_ms = StreamName.parse(streams[1]), limits.TRANSACTION_LEASE_MAX_MS
    begun = client.run(client.context.controller.create_transaction(name, lease_ms)).transaction
    transactions = StreamTransactions(client.context, name, lease_ms)
    client.run(transactions.extend(begun))
    client.streams.seal_stream(streams[1])
    with pytest.raises(StreamSealedError, match=f"stream {name} is sealed: no more events"):
        client.run(commit_all(transactions, [begun]))
