"""PySpark finds the format ``tailrace`` by itself (docs/spark.md#install)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_reads_a_stream_without_a_registration(
    spark: SparkSession, server: Endpoints, client: BlockingClient, scope: str
) -> None:
    client.streams.create_stream(f"{scope}/events", StreamConfig(ScalingPolicy.fixed(2)))
    with client.writer(f"{scope}/events") as writer:
        for number in range(100):
            writer.write_event(json.dumps({"n": number}).encode(), routing_key=f"k{number % 7}")
        writer.flush()
    session = spark.newSession()  # shares nothing with `spark` that was registered there
    reader = session.read.format("tailrace").option("controller", server.controller)
    rows = reader.option("stream", f"{scope}/events").load().collect()
    assert sorted(json.loads(row["value"])["n"] for row in rows) == list(range(100))
