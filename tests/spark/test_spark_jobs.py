"""The jobs of `tailrace pipeline` on a real Spark and a real server (docs/spark-jobs.md)."""

from __future__ import annotations

import collections
import datetime
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from tailrace.cli.demo.server import Endpoints
from tailrace.client import BlockingClient
from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.pipelines.jobs.events import Input

SCHEMA = "key string, n long, at timestamp"
COMMAND_DEADLINE_S = 300.0


def event(number: int, day: int) -> dict[str, Any]:
    """An event of January 2013, in UTC."""
    at = datetime.datetime(2013, 1, day, number % 24, tzinfo=datetime.UTC)
    return {"key": f"k{number % 5}", "n": number, "at": at.isoformat()}


def write(client: BlockingClient, stream: str, events: list[dict[str, Any]]) -> None:
    """Write events, each by its key."""
    with client.writer(stream) as writer:
        for each in events:
            writer.write_event(json.dumps(each).encode(), routing_key=each.get("key", ""))
        writer.flush()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All rows of the Parquet files of a job, as any reader finds them: without hidden files and the checkpoint."""
    found = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table()
    return list(found.to_pylist())


def source(server: Endpoints, stream: str, time_field: str = "at", **options: str) -> Input:
    from tailrace.pipelines.jobs.events import Input

    return Input(server.controller, stream, SCHEMA, time_field, options)


def test_an_archive_has_each_event_once_by_day_and_goes_on(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    from tailrace.pipelines.jobs.archive import archive

    first = [event(number, 1 + number % 3) for number in range(300)]
    write(client, stream, [*first, {"key": "k0", "n": -1}])
    progress = archive(spark, source(server, stream), str(tmp_path))
    assert progress.rows == 301
    write(client, stream, second := [event(number, 4) for number in range(300, 400)])
    assert archive(spark, source(server, stream), str(tmp_path)).rows == 100
    assert archive(spark, source(server, stream), str(tmp_path)).rows == 0
    rows = rows_of(tmp_path)
    assert sorted(row["n"] for row in rows) == [-1, *(each["n"] for each in first + second)]
    days = collections.Counter(row["day"] for row in rows)
    assert days == {"2013-01-01": 100, "2013-01-02": 100, "2013-01-03": 100, "2013-01-04": 100, "unknown": 1}


@pytest.mark.parametrize(
    ("kind", "wrong"), [("long", [10**18, -(10**18)]), ("double", [1e300, 1e18, math.nan, -math.inf])]
)
def test_numbers_that_are_no_times_are_events_without_one(spark: SparkSession, kind: str, wrong: list[float]) -> None:
    from tailrace.pipelines.jobs.events import Input

    right = 1_357_000_000_000
    values = [*wrong, float(right) if kind == "double" else right, None]
    events = spark.createDataFrame([(each,) for each in values], f"at {kind}")
    found = events.select(Input("", "", "", "at", {}).time(events).cast("long").alias("at")).collect()
    assert [row["at"] for row in found] == [None] * len(wrong) + [right // 1000, None]


def test_a_batch_that_is_repeated_replaces_its_files(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    """A job that ended between the files of a batch and the mark that the batch is done."""
    from tailrace.pipelines.jobs.archive import archive

    write(client, stream, [event(number, 1) for number in range(200)])
    archive(spark, source(server, stream), str(tmp_path))
    forget_commits(tmp_path)
    write(client, stream, [event(number, 2) for number in range(200, 250)])
    archive(spark, source(server, stream), str(tmp_path))
    assert sorted(row["n"] for row in rows_of(tmp_path)) == list(range(250))


def test_a_repeated_first_batch_never_replaces_files_by_fewer_events(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    """Retention has moved the head since the files were written, so it is not where the batch began."""
    from pyspark.errors import PySparkException

    from tailrace.pipelines.jobs.archive import archive

    write(client, stream, [event(number, 1) for number in range(100)])
    middle = client.streams.tail(stream)
    write(client, stream, [event(number, 1) for number in range(100, 200)])
    archive(spark, source(server, stream), str(tmp_path))
    forget_commits(tmp_path)
    client.streams.truncate_stream(stream, middle)
    with pytest.raises(PySparkException, match=r"bytes from 0 on were truncated"):
        archive(spark, source(server, stream), str(tmp_path))
    assert sorted(row["n"] for row in rows_of(tmp_path)) == list(range(200))
    write(client, stream, [event(number, 2) for number in range(200, 250)])
    assert archive(spark, source(server, stream, failOnDataLoss="false"), str(tmp_path)).rows == 50
    assert sorted(row["n"] for row in rows_of(tmp_path)) == list(range(250))


def test_the_files_of_another_query_are_not_replaced_by_fewer_events(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    """As of a checkpoint that does not say where its first batch began."""
    from pyspark.errors import PySparkException

    from tailrace.pipelines.jobs.archive import archive

    write(client, stream, [event(number, 1) for number in range(100)])
    archive(spark, source(server, stream), str(tmp_path))
    shutil.rmtree(tmp_path / "_checkpoint")
    client.streams.truncate_stream(stream, client.streams.tail(stream))
    write(client, stream, [event(number, 2) for number in range(100, 150)])
    with pytest.raises(PySparkException, match=r"batch=00000000 has 100 rows of this batch, which now has only 50"):
        archive(spark, source(server, stream), str(tmp_path))
    assert sorted(row["n"] for row in rows_of(tmp_path)) == list(range(100))


def forget_commits(folder: Path) -> None:
    """Remove the marks that batches are done, as if the job had ended before it wrote them."""
    commits = sorted((folder / "_checkpoint" / "commits").iterdir())
    marks = [path for path in commits if path.name.isdigit() or path.name.endswith(".crc")]
    assert any(path.name.isdigit() for path in marks)
    for mark in marks:
        mark.unlink()


def test_windows_are_counted_once_and_the_last_one_stays_open(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    from tailrace.pipelines.jobs.aggregate import Windows, aggregate

    write(client, stream, [event(number, 1 + number // 100) for number in range(300)])
    windows = Windows("1 day", "1 hour", ("key",), ("n",))
    aggregate(spark, source(server, stream), windows, str(tmp_path))
    write(client, stream, [event(number, 9) for number in range(300, 310)])
    aggregate(spark, source(server, stream), windows, str(tmp_path))
    counted = {(row["start"].day, row["key"]): (row["count"], row["sum_n"]) for row in rows_of(tmp_path)}
    expected = {
        (day, f"k{key}"): (20, sum(range(100 * (day - 1) + key, 100 * day, 5))) for day in (1, 2, 3) for key in range(5)
    }
    assert counted == expected
    assert len(rows_of(tmp_path)) == len(expected)


def test_a_missing_column_is_named(spark: SparkSession, server: Endpoints, stream: str, tmp_path: Path) -> None:
    from tailrace.pipelines.jobs.aggregate import Windows, aggregate
    from tailrace.pipelines.jobs.archive import archive

    with pytest.raises(BadRequestError, match=r"time field when: the events have the columns key, n, at"):
        archive(spark, source(server, stream, "when"), str(tmp_path))
    with pytest.raises(BadRequestError, match=r"sum weight: the events have the columns key, n, at"):
        aggregate(spark, source(server, stream), Windows("1 day", sums=("weight",)), str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_command_archives_and_names_what_is_wrong(
    server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    write(client, stream, [event(number, 1) for number in range(50)])
    done = _command(server, "archive", stream, str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["rows"], shown["batches"]) == (50, 1)
    values = [json.loads(row["value"])["n"] for row in rows_of(tmp_path / "out")]
    assert sorted(values) == list(range(50))
    failed = _command(server, "archive", f"{stream}-missing", str(tmp_path / "none"))
    assert failed.returncode == 1
    assert f"{stream}-missing" in failed.stderr.splitlines()[-1]
    assert "Traceback" not in failed.stderr


def _command(server: Endpoints, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "--controller", server.controller, "pipeline", *arguments],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=COMMAND_DEADLINE_S,
        check=False,
    )
