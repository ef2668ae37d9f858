"""What a driver of a Pipeline reports of its batches and of its lag (docs/pipelines.md#progress)."""

from __future__ import annotations

import datetime
import json
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.ports import free_ports
from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 120.0
COMMIT_REPORTED_S = 60.0
"""Spark reports a batch at once; this is for a machine that is slow."""
EVENT = b"0123456789"
FRAME_BYTES = 8 + len(EVENT)


def until(port: int, **wanted: int) -> dict[str, Any]:
    """Wait until the driver reports these numbers."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        if all(found.get(name) == value for name, value in wanted.items()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def write(client: BlockingClient, stream: str, count: int) -> None:
    with client.writer(stream) as writer:
        for number in range(count):
            writer.write_event(EVENT, routing_key=str(number))
        writer.flush()


def test_batches_are_counted_and_the_lag_follows_the_stream_over_a_scale(
    spark: SparkSession,
    server: Endpoints,
    client: BlockingClient,
    scope: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tailrace.common import limits
    from tailrace.pipelines.jobs.archive import archive
    from tailrace.pipelines.jobs.events import Input
    from tailrace.pipelines.pod.status_server import served_progress

    monkeypatch.setattr(limits, "PIPELINE_LAG_PERIOD_S", 0.2)
    stream = f"{scope}/events"
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))
    (port,) = free_ports(1)
    with served_progress(spark, server.controller, port):
        assert until(port, batches=0)["rows"] == 0
        write(client, stream, 100)
        archive(spark, Input(server.controller, stream), str(tmp_path))
        found = until(port, rows=100, lagBytes=0, lagSeconds=0)
        assert found["batches"] >= 1
        first_bytes = found["bytes"]
        committed = max(each.stat().st_mtime for each in tmp_path.rglob("commits/[0-9]*"))
        last = datetime.datetime.fromisoformat(found["lastBatchTime"]).timestamp()
        assert int(committed) <= last <= committed + COMMIT_REPORTED_S, "the time of the last commit"
        write(client, stream, 30)
        client.streams.scale_to(stream, 3)
        write(client, stream, 20)
        until(port, rows=100, lagBytes=50 * FRAME_BYTES)
        archive(spark, Input(server.controller, stream), str(tmp_path))
        found = until(port, rows=150, lagBytes=0, lagSeconds=0)
        assert found["bytes"] == first_bytes + 50 * FRAME_BYTES
