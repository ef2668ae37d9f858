"""`tailrace pipeline backfill` on a real Spark and a real server (docs/spark-jobs.md#backfill)."""

from __future__ import annotations

import datetime
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.sparkcommands import kill_when_it_writes
from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig, StreamName
from tailrace.common.errors import BadRequestError, NoSuchStreamError, StreamSealedError
from tailrace.pipelines.jobs.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.pipelines.jobs.batch_files import Progress

KEYS = 7
ROWS = 1200
BATCH_BYTES = 12_000  # of files of about 5,000
START = datetime.datetime(2013, 11, 3, tzinfo=datetime.UTC)


@pytest.fixture
def stream(client: BlockingClient, scope: str) -> str:
    """A new stream with two segments."""
    name = f"{scope}/to"
    client.streams.create_stream(name, StreamConfig(ScalingPolicy.fixed(2)))
    return name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows in files that overlap with the next one; neither the files' names nor the rows are in order."""
    numbers = list(range(ROWS))
    random.Random(5).shuffle(numbers)
    for part, name in enumerate("ceadbf"):
        save(tmp_path / "input" / f"{name}.parquet", [each for each in numbers if _part(each) == part])
    return tmp_path / "input"


def _part(number: int) -> int:
    return min(5, 6 * number // ROWS + number % 2)


def save(path: Path, numbers: Iterable[int | None]) -> None:
    """Write a Parquet file with a row for each number; its key is the number modulo KEYS."""
    path.parent.mkdir(exist_ok=True)
    numbers = list(numbers)
    keys = [None if each is None else each % KEYS for each in numbers]
    values = [b"\xff%d" % (each or 0) for each in numbers]
    times = [None if each is None else START + each * datetime.timedelta(minutes=1) for each in numbers]
    columns = {"key": pa.array(keys, pa.int32()), "n": pa.array(numbers, pa.int64()), "bytes": values}
    pq.write_table(pa.table({**columns, "at": pa.array(times, pa.timestamp("us", "UTC"))}), path)


def events(client: BlockingClient, stream: str) -> list[list[bytes]]:
    """Return the events of each segment of a stream, in their order."""
    return [[event for some in client.read_slice(piece) for event in some] for piece in client.slices(stream)]


def check(client: BlockingClient, stream: str) -> None:
    """Check that a stream has each row once as JSON, and those of each key in one segment, in order."""
    found = defaultdict(list)
    for index, some in enumerate(events(client, stream)):
        for each in some:
            fields = json.loads(each)
            assert fields.keys() == {"key", "n", "bytes", "at"}
            found[fields["key"]].append((index, fields["n"]))
    assert {key: [n for _, n in places] for key, places in found.items()} == {
        key: list(range(key, ROWS, KEYS)) for key in range(KEYS)
    }
    assert all(len({index for index, _ in places}) == 1 for places in found.values())


def backfill(
    spark: SparkSession, server: Endpoints, path: Path, stream: str, checkpoint: Path, **changes: Any
) -> Progress:
    from tailrace.pipelines.jobs.backfill import Backfill
    from tailrace.pipelines.jobs.backfill import backfill as run

    job = Backfill(str(path), Target(server.controller, StreamName.parse(stream)), **changes)
    return run(spark, job, str(checkpoint))


ORDERED = {"routing_key": "key", "order_by": "n", "batch_bytes": BATCH_BYTES}


def test_rows_of_a_key_are_in_order_over_files_and_batches_and_come_once(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, folder: Path, tmp_path: Path
) -> None:
    by_time = {**ORDERED, "order_by": "at"}
    progress = backfill(spark, server, folder, stream, tmp_path / "checkpoint", **by_time)
    assert progress.rows == ROWS
    assert progress.batches > 1
    check(client, stream)
    again = backfill(spark, server, folder, stream, tmp_path / "checkpoint", **by_time)
    assert (again.rows, again.batches) == (0, 0)
    check(client, stream)
    with pytest.raises(BadRequestError, match="is of a backfill with value '', not 'bytes'"):
        backfill(spark, server, folder, stream, tmp_path / "checkpoint", value="bytes", routing_key="key")


def test_a_damaged_file_is_an_error_whatever_the_session_says(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, folder: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    shutil.copytree(folder, rows)
    damaged = sorted(rows.rglob("*.parquet"))[-1]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(Exception, match=damaged.name):
            backfill(spark, server, rows, stream, tmp_path / "checkpoint", value="bytes", routing_key="key")
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert not any(events(client, stream))


def test_a_stream_that_was_created_again_needs_another_checkpoint(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    save(tmp_path / "input" / "part.parquet", range(10))
    backfill(spark, server, tmp_path / "input", stream, tmp_path / "a")
    client.streams.seal_stream(stream)
    client.streams.delete_stream(stream)
    client.streams.create_stream(stream)
    with pytest.raises(
        BadRequestError, match=f"stream {stream} was deleted and created again since the backfill began"
    ):
        backfill(spark, server, tmp_path / "input", stream, tmp_path / "a")
    assert backfill(spark, server, tmp_path / "input", stream, tmp_path / "b").rows == 10


def test_a_column_has_the_bytes_of_events_and_folders_are_columns(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    for day in range(3):
        folder = tmp_path / "input" / f"day={day}"
        folder.mkdir(parents=True)
        save(folder / "part.parquet", range(100 * day, 100 * day + 100))
    options = {"value": "bytes", "batch_bytes": 1}
    assert backfill(spark, server, tmp_path / "input", stream, tmp_path / "c", **options).batches == 3
    expected = sorted(b"\xff%d" % number for number in range(300))
    assert sorted(each for some in events(client, stream) for each in some) == expected
    save(tmp_path / "input" / "day=2" / "new.parquet", range(5))
    with pytest.raises(BadRequestError, match=r"the input is not that of the checkpoint: .*new.parquet is new"):
        backfill(spark, server, tmp_path / "input", stream, tmp_path / "c", **options)


def test_what_cannot_be_written_is_named(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    from tailrace.pipelines.jobs.session import reason_of

    def run(path: Path, into: str = stream, **changes: Any) -> None:
        backfill(spark, server, path, into, tmp_path / "checkpoint", **changes)

    save(tmp_path / "none.parquet", [])
    save(tmp_path / "null.parquet", [1, None])
    with pytest.raises(BadRequestError, match=r"none.parquet has no rows"):
        run(tmp_path / "none.parquet")
    with pytest.raises(PySparkException, match="PATH_NOT_FOUND"):
        run(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRequestError, match="empty has no Parquet files"):
        run(tmp_path / "empty")
    for column in ("value", "routing_key", "order_by"):
        with pytest.raises(BadRequestError, match="the rows have no column x; they have key, n, bytes, at"):
            run(tmp_path / "null.parquet", **{"routing_key": "key", column: "x"})
    with pytest.raises(BadRequestError, match="column at is of type timestamp, not string or byte or short or integer"):
        run(tmp_path / "null.parquet", routing_key="at")
    with pytest.raises(BadRequestError, match="order by bytes: a column of type binary has no order"):
        run(tmp_path / "null.parquet", routing_key="key", order_by="bytes")
    with pytest.raises(BadRequestError, match="an order needs a routing key"):
        run(tmp_path / "null.parquet", order_by="n")
    assert not (tmp_path / "checkpoint").exists()
    with pytest.raises(PySparkException) as failed:
        run(tmp_path / "null.parquet", routing_key="key")
    assert reason_of(str(failed.value)) == "column key is null in 1 of 2 rows: leave them out"
    assert not any(events(client, stream))
    with pytest.raises(NoSuchStreamError, match=f"stream {stream}-2 does not exist"):
        run(tmp_path / "null.parquet", f"{stream}-2")
    client.streams.seal_stream(stream)
    with pytest.raises(StreamSealedError, match=f"stream {stream} is sealed"):
        run(tmp_path / "null.parquet")


def test_a_killed_command_goes_on(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, folder: Path, tmp_path: Path
) -> None:
    options = ["--checkpoint", str(tmp_path / "check point"), "--controller", server.controller]
    options += ["--routing-key", "key", "--order-by", "n"]
    options += ["--batch-size", "1"]  # byte: a batch for each file, so that the kill comes long before the last one
    before = kill_when_it_writes(client, stream, "backfill", str(folder / "*.parquet"), stream, *options)
    assert 0 < before < ROWS
    progress = backfill(spark, server, folder, stream, tmp_path / "check point", **ORDERED)
    assert ROWS - before <= progress.rows <= ROWS
    check(client, stream)
