"""A real Spark on this machine, and a standalone server as a child process."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import daily
from harness.server import READY_DEADLINE_S as READY_WITHIN_S
from tailrace.cli.demo.server import Endpoints, ServerProcess
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPHEMERAL = {"controller": 0, "rest": 0, "store": 0, "admin": 0}
SHORT_RUNS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of every JVM that the tests start, their commands' too: it ends before a better compilation pays."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


DAILY = (
    ("spark/test_spark_bench.py", "spark/test_spark_memory.py", "spark/test_spark_retention.py"),
    ("spark/test_spark_audit.py", "spark/test_spark_compaction.py", "spark/test_spark_s3.py"),
    ("spark/test_spark_jobs.py", "spark/test_spark_speculation.py"),
    ("spark/test_spark_examples.py", "spark/test_spark_flights.py", "spark/test_spark_application.py"),
    ("spark/test_spark_kills.py",),
    ("spark/test_spark_replay.py", "spark/test_spark_sink_changes.py"),
    ("spark/test_spark_backfill.py", "spark/test_direct_reads.py"),
)
"""Tests with a JVM of their own, or much data: CI runs one of these groups each day, so all of them in a week; all
other runs run all of them."""
DAILY_COUNT = 1


SLOW_START = "Python worker failed to connect back"
"""Spark's own error when a Python process that it starts takes longer than 10 s, as on a machine that is busy. There is
no setting for that."""
SLOW_STARTS_MAX, SLOW_START_PAUSE_S = 8, 30
"""How often a test that this ended begins again, and after how long: clusters and loads beside it take minutes."""
LIMIT_S = 880
"""Of a test, a little less than that of the process. It ends the process: a call of the JVM that a signal breaks off
leaves its answer to the next call, so all tests after it would fail for nothing."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that have their turn on another day; begin one again that Spark has ended for slowness."""
    daily.leave_out(config, items, DAILY, DAILY_COUNT)
    again = pytest.mark.flaky(reruns=SLOW_STARTS_MAX, reruns_delay=SLOW_START_PAUSE_S, only_rerun=SLOW_START)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(again)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LIMIT_S, method="thread"))


@pytest.fixture(scope="session", autouse=True)
def short_runs() -> Iterator[None]:
    """Start every JVM as one that does not run for long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", SHORT_RUNS)
        patch.setenv("SPARK_LAUNCHER_OPTS", SHORT_RUNS)
        yield


def _start(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession  # here: it looks for Java when it is imported

    from tailrace.pipelines import register

    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    builder = SparkSession.builder.master("local[2]").config("spark.local.dir", str(folder))
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


@pytest.fixture(scope="session")
def spark(short_runs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session with two cores that knows the format ``tailrace``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        session = _start(tmp_path_factory.mktemp("spark"))
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """The addresses of a standalone server of this module, started with its SERVER_OPTIONS."""
    options = getattr(request.module, "SERVER_OPTIONS", ())
    folder = tmp_path_factory.mktemp("server")
    process = ServerProcess(folder, ports=EPHEMERAL, options=options, ready_within_s=READY_WITHIN_S)
    with asyncio.Runner() as runner:
        endpoints = runner.run(process.start())
        try:
            yield endpoints
        finally:
            runner.run(process.stop())


@pytest.fixture
def client(server: Endpoints) -> Iterator[BlockingClient]:
    """Our client without asyncio, connected to the server."""
    with BlockingClient(server.controller) as connected:
        yield connected


@pytest.fixture
def scope(client: BlockingClient) -> str:
    """A new scope."""
    name = f"test-{secrets.token_hex(4)}"
    client.streams.create_scope(name)
    return name


@pytest.fixture
def stream(client: BlockingClient, scope: str) -> str:
    """A new stream with two segments."""
    name = f"{scope}/events"
    client.streams.create_stream(name, StreamConfig(ScalingPolicy.fixed(2)))
    return name
