"""A program of the user, as the driver of a Pipeline runs it through spark-submit (docs/pipelines.md#applications)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from harness.ports import free_ports
from tailrace.cli.demo.server import Endpoints
from tailrace.cli.pod import application
from tailrace.client import BlockingClient, StreamConfig

DEADLINE_S = 300.0
EVENTS = 300
PROGRAM = """
import pathlib, sys
from pyspark.sql import SparkSession

stream, output = sys.argv[1:]
spark = SparkSession.builder.appName("count").getOrCreate()
values = spark.read.format("tailrace").option("stream", stream).load().select("value")
pathlib.Path(output).write_text(str(values.distinct().count()))
spark.stop()
"""


def submitted(
    folder: Path, server: Endpoints, file: str, *arguments: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a program with one core, and return how it ended and what it left for Kubernetes."""
    message, (port,) = folder / "message", free_ports(1)
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TAILRACE_CONTROLLER": server.controller,
        "TAILRACE_STATUS_PORT": str(port),
        "TERMINATION_MESSAGE": str(message),
    }
    submit = Path(pyspark.__file__).parent / "bin/spark-submit"
    settings = {"spark.ui.enabled": "false", "spark.local.dir": str(folder), "spark.sql.shuffle.partitions": "1"}
    conf = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [str(submit), "--master", "local[1]", *conf, application.__file__, file, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done, message.read_text()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "count.py"
    file.write_text(PROGRAM)
    return file


def test_a_program_reads_streams_and_its_end_is_said(
    server: Endpoints, client: BlockingClient, scope: str, program: Path, tmp_path: Path
) -> None:
    """It names no controller, and ends its session by itself; it is read through a file system of Hadoop's."""
    stream, output = f"{scope}/events", tmp_path / "count"
    client.streams.create_stream(stream, StreamConfig())
    with client.writer(stream) as writer:
        for number in range(EVENTS):
            writer.write_event(str(number).encode(), routing_key=str(number))
        writer.flush()
    done, message = submitted(tmp_path, server, program.as_uri(), stream, str(output))
    assert done.returncode == 0, done.stderr
    assert output.read_text() == str(EVENTS)
    assert message == ""

    failed, message = submitted(tmp_path, server, str(program), f"{scope}/missing", str(output))
    assert failed.returncode == 1
    assert message.endswith(f"stream {scope}/missing does not exist")
    assert "Traceback" in failed.stdout + failed.stderr, "the log has all of it"


def test_a_program_that_is_not_there_is_named(server: Endpoints, tmp_path: Path) -> None:
    missing = (tmp_path / "none.py").as_uri()
    done, message = submitted(tmp_path, server, missing)
    assert done.returncode == 1
    assert message == f"tailrace: spec.application.file: there is no object {missing}"
