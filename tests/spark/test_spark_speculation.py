"""A task that Spark runs twice at once is written once (docs/spark-sink.md#exactly-once).

Spark runs no second attempt on the host of the first one, so the two workers of a cluster have addresses of their own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from harness.ports import free_ports
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from tailrace.cli.demo.server import Endpoints

PROGRAM = Path(__file__).parent / "programs" / "speculation.py"
SPARK = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.2", "127.0.0.3")
REGISTERED_DEADLINE_S = 120.0
DEADLINE_S = 300.0
END_DEADLINE_S = 120.0
ROWS = 900


@contextlib.contextmanager
def _running(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """A process of Spark's own cluster; yields its log."""
    log = folder / f"{name}.log"
    environment = {**os.environ, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    with log.open("wb") as output:
        command = [str(SPARK / "bin" / "spark-class"), *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master and two workers of one core each."""
    port, page, *worker_ports = free_ports(6)
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    ports = ("--port", str(port), "--webui-port", str(page))
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(
            _running(tmp_path, "master", f"{deploy}.master.Master", "--host", "127.0.0.1", *ports)
        )
        for number, host in enumerate(HOSTS):
            own = ("--host", host, "--port", str(worker_ports[number]), "--webui-port", str(worker_ports[number + 2]))
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / host))
            stack.enter_context(_running(tmp_path, host, f"{deploy}.worker.Worker", *own, *size, address))
        ends_s = time.monotonic() + REGISTERED_DEADLINE_S
        while log.read_text().count("Registering worker") < len(HOSTS):
            assert time.monotonic() < ends_s, log.read_text()[-2000:]
            time.sleep(0.2)  # between looks
        yield address


def test_two_attempts_of_a_task_at_once_are_written_once(
    server: Endpoints, client: BlockingClient, scope: str, tmp_path: Path, master: str
) -> None:
    stream = f"{scope}/to"
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))
    folder = tmp_path / "attempts"
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), master, server.controller, stream, str(folder)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    attempts = {path.name for path in folder.iterdir() if path.is_file()}
    assert {"2-0", "2-1"} <= attempts, "the slow task and a second attempt had both written half of their rows"
    events = [event for piece in client.slices(stream) for some in client.read_slice(piece) for event in some]
    assert sorted(map(int, events)) == list(range(ROWS))
