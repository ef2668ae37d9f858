"""Retention follows what a query has read, by its group (docs/spark.md#retention-follows-a-query)."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig, StreamName, group_config
from tailrace.common.stream_policies import RetentionPolicy, StreamDataRetention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SERVER_OPTIONS = ("--retention-period", "1s")
MINIMUM_BYTES, MAXIMUM_BYTES = 1_000, 2**40
STEP_DEADLINE_S = 120.0
ROUNDS = 3
"""Of retention: at least two of them begin after the writes, whose round may be going on."""


def some_rounds(server: Endpoints) -> None:
    """Wait until retention has looked twice at what was written before."""
    end, ends_at_s = rounds(server) + ROUNDS, time.monotonic() + STEP_DEADLINE_S
    while rounds(server) < end:
        assert time.monotonic() < ends_at_s, "retention makes no rounds"
        time.sleep(0.2)  # a client has nothing to wait for


def rounds(server: Endpoints) -> int:
    with urllib.request.urlopen(f"{server.rest}/metrics", timeout=STEP_DEADLINE_S) as answer:
        found = re.search(r"^tailrace_controller_retention_rounds_total (\S+)$", answer.read().decode(), re.M)
    assert found is not None, "the controller has no such metric"
    return int(float(found[1]))


def test_what_a_query_has_committed_goes_and_nothing_else(
    spark: SparkSession, server: Endpoints, client: BlockingClient, scope: str, tmp_path: Path
) -> None:
    stream = StreamName(scope, "events")
    retention = RetentionPolicy.by_size_bytes(MINIMUM_BYTES, MAXIMUM_BYTES)
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(1), retention=retention))
    groups = client.reader_groups(scope)
    groups.create("spark", group_config({stream: None}, retention=StreamDataRetention.MANUAL))

    def write(numbers: range) -> int:
        """Write these events; return the position behind them."""
        with client.writer(stream) as writer:
            for number in numbers:
                writer.write_event(json.dumps(number).encode().rjust(100))
            writer.flush()
        return sum(client.streams.tail(stream).positions.values())

    def head() -> int:
        return sum(client.run(client.context.controller.head_segments(stream)).values())

    def read(checkpoint: Path, **options: str) -> list[int]:
        """Read what there is, as a query from its checkpoint on."""
        found: list[int] = []

        def keep(batch: DataFrame, _: int) -> None:
            found.extend(json.loads(row["value"]) for row in batch.collect())

        given = {"controller": server.controller, "stream": str(stream), **options}
        frame = spark.readStream.format("tailrace").options(**given).load()
        query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()
        return sorted(found)

    ends = [write(range(100))]
    group = f"{scope}/spark"
    assert read(tmp_path / "query", group=group) == list(range(100))
    assert head() == 0, "a batch is committed before the next one"
    write(range(100, 150))
    some_rounds(server)
    ends.append(write(range(150, 200)))
    some_rounds(server)
    assert head() == 0, "its first batch is not committed"
    for turn in range(1, 4):
        numbers = range(turn * 100, turn * 100 + 100)
        if turn > 1:
            ends.append(write(numbers))
        assert read(tmp_path / "query", group=group) == list(numbers)
        ends_at_s = time.monotonic() + STEP_DEADLINE_S
        while head() < ends[turn - 1]:
            assert time.monotonic() < ends_at_s, f"the head is at {head()}, the query at {ends[turn - 1]}"
            time.sleep(0.2)  # a client has nothing to wait for
        assert head() == ends[turn - 1], "as far as the query has committed"
    some_rounds(server)
    assert head() == ends[-2]
    assert read(tmp_path / "other") == list(range(300, 400)), "what it has not committed is there"
