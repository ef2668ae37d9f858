"""Jobs on S3, outside of the image: with the libraries that `install-s3` downloads (docs/spark-jobs.md#s3)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pyarrow.fs
import pytest

from harness.minio import ACCESS_KEY, MinioProcess
from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig
from tailrace.pipelines.s3.install import install
from tailrace.pipelines.s3.libraries import folder_of, locked

COMMAND_DEADLINE_S = 300.0


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """The libraries in the user's cache, where jobs find them."""
    asyncio.run(install(locked(), folder_of(locked(), os.environ)))


def write(client: BlockingClient, stream: str, numbers: range) -> None:
    """Write numbers as events, each by its own key."""
    with client.writer(stream) as writer:
        for number in numbers:
            writer.write_event(b"%d" % number, routing_key=str(number))
        writer.flush()


def command(server: Endpoints, minio: MinioProcess, *arguments: str) -> dict[str, int]:
    """Run a job on an object store, in a process of its own, and return what it printed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tailrace.cli", "--controller", server.controller, "pipeline", *arguments),
            *("--s3-endpoint", minio.endpoint, "--json", "--master", "local[2]"),
            *("--conf", "spark.sql.shuffle.partitions=2"),
        ],
        env=os.environ | minio.credentials,
        capture_output=True,
        text=True,
        timeout=COMMAND_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert minio.secret_key not in done.stdout + done.stderr
    found = json.loads(done.stdout)
    return {name: found[name] for name in ("rows", "batches", "joined")}


def numbers_in(minio: MinioProcess, folder: str) -> list[int]:
    """The events in the files of a job, as any reader finds them."""
    store = pyarrow.fs.S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=minio.secret_key,
        endpoint_override=minio.endpoint,
        scheme="http",
        region="us-east-1",
    )
    table = pyarrow.dataset.dataset(folder, filesystem=store, format="parquet", partitioning="hive").to_table(["value"])
    return sorted(int(value) for value in table["value"].to_pylist())


def test_an_archive_goes_on_in_a_bucket_and_is_written_into_a_stream(
    server: Endpoints, client: BlockingClient, stream: str, minio_server: MinioProcess, tmp_path: Path
) -> None:
    bucket, copy = minio_server.new_bucket(), f"{stream}-copy"
    lake = f"{bucket}/lake/events"
    write(client, stream, range(300))
    assert command(server, minio_server, "archive", stream, f"s3a://{lake}") == {"rows": 300, "batches": 1, "joined": 0}
    write(client, stream, range(300, 400))
    small = ("--option=maxEventsPerTrigger=20", "--compact=8KiB")
    again = command(server, minio_server, "archive", stream, f"s3://{lake}/", *small)
    assert again["rows"] == 100
    assert again["joined"] >= 2
    assert numbers_in(minio_server, lake) == list(range(400))
    client.streams.create_stream(copy, StreamConfig(ScalingPolicy.fixed(1)))
    backfill = ("backfill", f"s3a://{lake}", copy, f"--checkpoint=s3a://{bucket}/position", "--value=value")
    assert command(server, minio_server, *backfill)["rows"] == 400
    assert command(server, minio_server, *backfill) == {"rows": 0, "batches": 0, "joined": 0}
