"""Times in the source: where a table begins and ends, and before when events were written; few or many tasks.

See docs/spark.md#times.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from harness.server import READY_DEADLINE_S as READY_WITHIN_S
from tailrace.cli.demo.server import Endpoints, ServerProcess
from tailrace.client import BlockingClient, RetentionPolicy, ScalingPolicy, StreamConfig
from tailrace.client.model import StreamName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEADLINE_S = 120.0
EPHEMERAL = {"controller": 0, "rest": 0, "store": 0, "admin": 0}
FOR_EVER = RetentionPolicy.by_time_ms(30 * 86_400_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of the server of this module."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Endpoints]:
    """A server that records a cut of a stream that has grown each second."""
    options = ("--retention-period", "1s")
    process = ServerProcess(folder, ports=EPHEMERAL, ready_within_s=READY_WITHIN_S, options=options)
    with asyncio.Runner() as runner:
        endpoints = runner.run(process.start())
        try:
            yield endpoints
        finally:
            runner.run(process.stop())


class Written:
    """A stream of numbered events in parts, and the time of a recorded cut behind each part."""

    def __init__(self, client: BlockingClient, stream: str) -> None:
        self._client = client
        self._name = StreamName.parse(stream)
        self._count = 0
        self.behind_ms: list[int] = []

    def write(self) -> None:
        """Write 100 events, and wait until retention has recorded a cut behind them."""
        with self._client.writer(self._name) as writer:
            for number in range(self._count, self._count + 100):
                writer.write_event(str(number).encode(), routing_key=str(number))
            writer.flush()
        self._count += 100
        tail = dict(self._client.streams.tail(self._name).positions)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            cuts = self._client.run(self._client.context.controller.stream_cuts(self._name))
            if cuts and dict(cuts[-1].positions) == tail:
                break
            assert time.monotonic() < deadline, cuts
            time.sleep(0.05)
        self.behind_ms.append(cuts[-1].recorded_ms)


@pytest.fixture
def stream(client: BlockingClient, scope: str) -> str:
    name = f"{scope}/events"
    client.streams.create_stream(name, StreamConfig(ScalingPolicy.fixed(2), retention=FOR_EVER))
    return name


def reader(spark: SparkSession, server: Endpoints, stream: str, **options: str) -> Any:
    return spark.read.format("tailrace").options(controller=server.controller, stream=stream, **options)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in frame.select("value").collect())


def flush(server: Endpoints) -> None:
    """Move everything to Tier 2, with snapshots that say so."""
    with httpx.Client(base_url=server.admin, timeout=DEADLINE_S) as admin:
        for container in admin.get("/v1/containers").json():
            admin.post(f"/v1/containers/{container['container_id']}/flush").raise_for_status()


def text(time_ms: int) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat()


def test_a_table_from_a_time_to_a_time(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str
) -> None:
    """A table has all that was written between two times, and no more than the recorded cuts say."""
    written = Written(client, stream)
    written.write()
    written.write()
    client.streams.scale_to(stream, 3)
    written.write()
    first, second, third = written.behind_ms
    assert numbers(reader(spark, server, stream, start=text(first)).load()) == list(range(100, 300))
    assert numbers(reader(spark, server, stream, end=text(first)).load()) == list(range(100))
    both = reader(spark, server, stream, start=text(first), end=text(second)).load()
    assert numbers(both) == list(range(100, 200))
    assert numbers(reader(spark, server, stream, start="1970-01-01", end=text(third + 1)).load()) == list(range(300))
    assert numbers(reader(spark, server, stream, start=text(third)).load()) == []


def test_events_say_before_when_they_were_written(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    written = Written(client, stream)
    written.write()
    written.write()
    client.streams.scale_to(stream, 3)
    schema = "value binary, ingested_before timestamp, offset bigint"
    rows = reader(spark, server, stream).schema(schema).load().collect()
    first, second = written.behind_ms
    assert len(rows) == 200
    for row in rows:
        found = round(row["ingested_before"].timestamp() * 1000)
        assert found <= first if int(row["value"]) < 100 else first < found <= second

    collected: list[Any] = []
    frame = spark.readStream.format("tailrace").options(controller=server.controller, stream=stream, start=text(first))
    query = (
        frame.schema(schema)
        .load()
        .writeStream.foreachBatch(lambda batch, _: collected.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(int(row["value"]) for row in collected) == list(range(100, 200))
    assert all(first < row["ingested_before"].timestamp() * 1000 <= second for row in collected)


def test_a_task_reads_as_many_segments_as_wanted(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str
) -> None:
    Written(client, stream).write()
    alone = reader(spark, server, stream).load()
    together = reader(spark, server, stream, minPartitionBytes="1000000").load()
    assert (alone.rdd.getNumPartitions(), together.rdd.getNumPartitions()) == (2, 1)
    assert numbers(alone) == numbers(together) == list(range(100))


def test_several_tasks_read_a_long_segment(
    spark: SparkSession, server: Endpoints, client: BlockingClient, scope: str, folder: Path
) -> None:
    """Divided at recorded cuts, from the segment store and from Tier 2; each event is read once, in its order."""
    stream = f"{scope}/long"
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(1), retention=FOR_EVER))
    written = Written(client, stream)
    for _ in range(4):
        written.write()
    length = sum(client.streams.tail(StreamName.parse(stream)).positions.values())
    flush(server)
    tier2 = {"tier2": str(folder / "tier2"), "direct": "always", "end": client.streams.tail(stream).to_text()}
    for place in ({}, tier2):
        whole = reader(spark, server, stream, **place).load()
        parts = reader(spark, server, stream, maxPartitionBytes=str(length * 6 // 10), **place).load()
        assert whole.rdd.getNumPartitions() == 1
        assert parts.rdd.getNumPartitions() == 2
        offsets = [[row["offset"] for row in part] for part in parts.select("offset").rdd.glom().collect()]
        assert all(part == sorted(part) for part in offsets)
        assert max(offsets[0]) < min(offsets[1])
        assert numbers(parts) == numbers(whole) == list(range(400))


def test_several_tasks_read_a_long_segment_that_no_cut_was_recorded_of(
    spark: SparkSession, server: Endpoints, client: BlockingClient, scope: str, folder: Path
) -> None:
    """Divided where chunks of Tier 2 say that an event begins; the segment stores cannot say it."""
    stream = f"{scope}/long"
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(1)))
    for part in range(4):
        with client.writer(StreamName.parse(stream)) as writer:
            for number in range(100 * part, 100 * part + 100):
                writer.write_event(str(number).encode(), routing_key="key")
        flush(server)
    tail = client.streams.tail(stream)
    most = str(sum(tail.positions.values()) * 6 // 10)
    tier2 = {"tier2": str(folder / "tier2"), "direct": "always", "end": tail.to_text()}
    assert reader(spark, server, stream, maxPartitionBytes=most).load().rdd.getNumPartitions() == 1
    parts = reader(spark, server, stream, maxPartitionBytes=most, **tier2).load()
    found = [[int(row["value"]) for row in part] for part in parts.select("value").rdd.glom().collect()]
    assert found == [list(range(200)), list(range(200, 400))]


def test_decoded_rows_have_the_times_of_their_events(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str
) -> None:
    """The events are numbers, so all are corrupt as objects of JSON: they have their places and times nevertheless."""
    Written(client, stream).write()
    schema = "_offset bigint, _segment int, _corrupt string, _ingested_before timestamp"
    decoded = reader(spark, server, stream, valueFormat="json").schema(schema).load().collect()
    schema = "value binary, segment int, offset bigint, ingested_before timestamp"
    raw = reader(spark, server, stream).schema(schema).load().collect()
    places = {(row["_segment"], row["_offset"]): (row["_corrupt"], row["_ingested_before"]) for row in decoded}
    assert places == {
        (row["segment"], row["offset"]): (bytes(row["value"]).decode(), row["ingested_before"]) for row in raw
    }
    assert len(places) == 100
