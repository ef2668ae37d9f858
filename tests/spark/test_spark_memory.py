"""Memory of Spark's Python workers: bounded, however large events are (docs/spark.md#memory)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
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
CASES = {
    # Events, and the bytes of a batch. The smallest first: workers keep what they have got.
    "20 B": (1_000_000, 20, limits.SPARK_BATCH_BYTES),
    "1 KB": (200_000, 1000, limits.SPARK_BATCH_BYTES),
    "8 MiB": (24, limits.EVENT_MAX_BYTES - 8, limits.EVENT_MAX_BYTES),
}
LOOK_INTERVAL_S = 0.05


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
                for number, (case, (count, length, _)) in enumerate(CASES.items()):
                    found[case] = f"memory/s{number}"
                    client.streams.create_stream(found[case], StreamConfig(ScalingPolicy.fixed(1)))
                    _fill(client, found[case], count, length)
            runner.run(process.stop())  # each container flushes, and writes a snapshot
            yield runner.run(process.start()).controller, found
        finally:
            runner.run(process.stop())


def _fill(client: BlockingClient, stream: str, count: int, length: int) -> None:
    at_once = max(1, min(1000, MIB // length))
    with client.writer(stream) as writer:
        for _ in range(count // at_once):
            writer.write_events([b"x" * length] * at_once)
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
    """The Python processes of Spark below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("pyspark.daemon" in word for word in process.cmdline()):
                found.append(process.pid)
    return found


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["direct", "store"])
def test_a_worker_needs_little_more_than_a_batch(
    spark: SparkSession, streams: tuple[str, dict[str, str]], folder: Path, case: str, way: str
) -> None:
    controller, names = streams
    count, length, batch = CASES[case]
    given = {"controller": controller, "stream": names[case]}
    if way == "direct":
        given |= {"tier2": str(folder / "tier2"), "direct": "always"}
    frame: DataFrame = spark.read.format("tailrace").options(**given).load()
    with _Workers() as workers:
        (found,) = frame.selectExpr("count(*)", "sum(length(value))").collect()
    assert tuple(found) == (count, count * length)
    most = workers.most_bytes()
    print(f"{case}, {way}: {most / MIB:.0f} MiB at most")
    assert most <= BOUND_BYTES + batch
