"""Memory of Spark's Python workers: bounded, however large events are (docs/spark.md#memory)."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import fastavro
import psutil
import pyarrow as pa
import pytest

from harness.server import READY_DEADLINE_S as READY_WITHIN_S
from tailrace.cli.demo.server import ServerProcess
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig
from tailrace.common import limits
from tailrace.common.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPHEMERAL = {"controller": 0, "rest": 0, "store": 0, "admin": 0}
BOUND_BYTES = 256 * MIB
"""Of a worker beyond a batch of Arrow."""
LARGE_BYTES = limits.EVENT_MAX_BYTES - 8
AVRO = json.dumps({"type": "record", "name": "Line", "fields": [{"name": "text", "type": "string"}]})


@dataclass(frozen=True)
class Case:
    """Equal events with so much text, the bytes of a batch, and how they are decoded; by default they are text."""

    count: int
    content: bytes
    text_bytes: int
    batch_bytes: int = limits.SPARK_BATCH_BYTES
    options: dict[str, str] = field(default_factory=dict)


def raw(count: int, length: int, batch_bytes: int = limits.SPARK_BATCH_BYTES) -> Case:
    """Events that are not decoded."""
    return Case(count, b"x" * length, length, batch_bytes)


def decoded(value_format: str, count: int, length: int, batch_bytes: int = limits.SPARK_BATCH_BYTES) -> Case:
    """Events with one text, in one of the formats."""
    text = "x" * (length - 1000)  # the rest is for what the format adds
    options = {"valueFormat": value_format}
    match value_format:
        case "json":
            content = json.dumps({"text": text}).encode()
        case "avro":
            options["avroSchema"] = AVRO
            data = io.BytesIO()
            fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(AVRO)), {"text": text})
            content = data.getvalue()
        case "arrow":
            sink = pa.BufferOutputStream()
            table = pa.table({"text": [text]})
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            content = sink.getvalue().to_pybytes()
        case _:
            raise AssertionError(value_format)
    return Case(count, content, len(text), batch_bytes, options)


CASES = {
    # The smallest first: workers keep what they have got.
    "20 B": raw(1_000_000, 20),
    "1 KB": raw(200_000, 1000),
    "JSON of 2 KB": decoded("json", 100_000, 2000),
    "Avro of 2 KB": decoded("avro", 50_000, 2000),
    "Arrow of 2 KB": decoded("arrow", 20_000, 2000),
    "8 MiB": raw(24, LARGE_BYTES, limits.EVENT_MAX_BYTES),
    "JSON of 8 MiB": decoded("json", 24, LARGE_BYTES, limits.EVENT_MAX_BYTES),
    "Avro of 8 MiB": decoded("avro", 24, LARGE_BYTES, limits.EVENT_MAX_BYTES),
    "Arrow of 8 MiB": decoded("arrow", 24, LARGE_BYTES, limits.EVENT_MAX_BYTES),
}
LOOK_INTERVAL_S = 0.05
OF_THIS_MODULE = "TAILRACE_TEST_WORKERS_OF"
"""A variable of the workers that this module's session starts. Others keep what other tests have imported in them."""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session with Python workers of its own: Spark shares them only where the environment is the same."""
    from tailrace.pipelines import register  # here: it imports PySpark, which looks for Java

    new = spark.newSession()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(new.sparkContext.environment, OF_THIS_MODULE, __name__)
        register(new)
    return new


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def streams(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The controller of a server, and a stream of each case; all of it is in Tier 2, with snapshots."""
    process = ServerProcess(folder, ports=EPHEMERAL, ready_within_s=READY_WITHIN_S)
    with asyncio.Runner() as runner:
        endpoints = runner.run(process.start())
        try:
            found = {}
            with BlockingClient(endpoints.controller) as client:
                client.streams.create_scope("memory")
                for number, (name, case) in enumerate(CASES.items()):
                    found[name] = f"memory/s{number}"
                    client.streams.create_stream(found[name], StreamConfig(ScalingPolicy.fixed(1)))
                    _fill(client, found[name], case)
            runner.run(process.stop())  # each container flushes, and writes a snapshot
            yield runner.run(process.start()).controller, found
        finally:
            runner.run(process.stop())


def _fill(client: BlockingClient, stream: str, case: Case) -> None:
    at_once = max(1, min(1000, MIB // len(case.content)))
    with client.writer(stream) as writer:
        for first in range(0, case.count, at_once):
            writer.write_events([case.content] * min(at_once, case.count - first))
        writer.flush()


class _Workers:
    """Looks at the Python workers below this process, and keeps the most memory that one of them has had."""

    def __init__(self) -> None:
        self._most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Workers:
        for pid in _workers():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak of what it did before
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.is_set():
            for pid in _workers():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    self._most = max(self._most, _peak_bytes(pid))
            time.sleep(LOOK_INTERVAL_S)

    def most_bytes(self) -> int:
        assert self._most, "no worker was seen"
        return self._most


def _workers() -> list[int]:
    """The Python processes below this one that Spark started for this module."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            is_worker = any("pyspark.daemon" in word for word in process.cmdline())
            if is_worker and process.environ().get(OF_THIS_MODULE) == __name__:
                found.append(process.pid)
    return found


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["direct", "store"])
def test_a_worker_needs_little_more_than_a_batch(
    session: SparkSession, streams: tuple[str, dict[str, str]], folder: Path, name: str, way: str
) -> None:
    controller, names = streams
    case = CASES[name]
    given = {"controller": controller, "stream": names[name], **case.options}
    if way == "direct":
        given |= {"tier2": str(folder / "tier2"), "direct": "always"}
    reader = session.read.format("tailrace").options(**given)
    if case.options:
        reader = reader.schema("text string")
    frame: DataFrame = reader.load()
    with _Workers() as workers:
        (found,) = frame.selectExpr("count(*)", f"sum(length({frame.columns[0]}))").collect()
    assert tuple(found) == (case.count, case.count * case.text_bytes)
    most = workers.most_bytes()
    print(f"{name}, {way}: {most / MIB:.0f} MiB at most")
    assert most <= BOUND_BYTES + case.batch_bytes
