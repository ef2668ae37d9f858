"""Jobs join the folders of their batches (docs/spark-jobs.md#compaction)."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pyarrow.parquet
import pytest

from tailrace.client import BlockingClient
from tailrace.common import limits
from tailrace.common.errors import CorruptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.cli.demo.server import Endpoints
    from tailrace.pipelines.jobs.events import Input

SCHEMA = "n long, at timestamp, tags array<string>, at_place struct<x: int>"
KIB = 1024
DEADLINE_S = 300.0


class BreakOffError(Exception):
    """The process ends here."""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins of few folders."""
    monkeypatch.setattr(limits, "SPARK_COMPACTION_FOLDERS_MIN", 3)


def write(client: BlockingClient, stream: str, first: int, last: int) -> None:
    with client.writer(stream) as writer:
        for n in range(first, last):
            at = f"2013-01-{1 + n % 3:02}T00:00:00Z"
            row = {"n": n, "at": at, "tags": [str(n)], "at_place": {"x": n}}
            writer.write_event(json.dumps(row).encode(), routing_key=str(n))
        writer.flush()


def source(server: Endpoints, stream: str, time_field: str = "at", schema: str = SCHEMA, **options: str) -> Input:
    from tailrace.pipelines.jobs.events import Input

    return Input(server.controller, stream, schema, time_field, options)


def folders_of(output: Path) -> list[str]:
    return sorted(path.name for path in output.iterdir() if path.name.startswith("batch="))


def numbers_of(output: Path, without: range = range(0)) -> list[int]:
    """The field ``n`` of all rows, as a reader of Parquet finds them; some are `without` the other fields."""
    table = pyarrow.dataset.dataset(output, format="parquet", partitioning="hive").to_table()
    for row in table.to_pylist():
        assert row["n"] in without or (row["tags"], row["at_place"]) == ([str(row["n"])], {"x": row["n"]})
        assert row.get("day", "") in ("", f"2013-01-{1 + row['n'] % 3:02}")
    return sorted(table["n"].to_pylist())


def rows_of(output: Path) -> list[int]:
    """The field ``n`` of the rows in complete folders, beside a job that runs."""
    complete = [str(mark.parent) for mark in output.glob("batch=*/_SUCCESS")]
    tables = [pyarrow.dataset.dataset(folder, format="parquet").to_table(["n"]) for folder in complete]
    return [n for table in tables for n in table["n"].to_pylist()]


def until(condition: Callable[[], bool], job: concurrent.futures.Future[Any]) -> None:
    """Wait for a condition while a job runs."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come about"
        assert not job.done(), job.result()
        time.sleep(0.2)


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


@pytest.mark.parametrize("time_field", ["at", ""])
def test_many_small_batches_become_few_and_each_row_is_there_once(
    spark: SparkSession,
    server: Endpoints,
    client: BlockingClient,
    stream: str,
    tmp_path: Path,
    few: None,
    time_field: str,
) -> None:
    """Also with an empty batch between them, and when what was joined is joined again."""
    from tailrace.pipelines.jobs.archive import archive

    write(client, stream, 0, 300)
    events = source(server, stream, time_field, maxEventsPerTrigger="30")
    progress = archive(spark, events, str(tmp_path), compact_bytes=1 << 30)
    assert progress.rows == 300
    assert numbers_of(tmp_path) == list(range(300))
    folders = folders_of(tmp_path)
    assert len(folders) == progress.batches - progress.joined <= 7
    assert progress.joined >= 5
    write(client, stream, 300, 330)
    assert archive(spark, events, str(tmp_path), compact_bytes=1 << 30).rows == 30
    assert numbers_of(tmp_path) == list(range(330))
    largest = max(files_of(tmp_path), key=lambda each: each.stat().st_size)
    assert pyarrow.parquet.read_metadata(largest).num_rows > 30 // (3 if time_field else 1)
    assert not (tmp_path / "_compaction").exists()


def test_folders_of_the_wanted_size_stay(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    """Two batches have the bytes together, so each folder is written again once."""
    from tailrace.pipelines.jobs.archive import archive

    write(client, stream, 0, 100)
    events = source(server, stream, "")
    archive(spark, events, str(tmp_path), compact_bytes=4 * KIB)
    size = sum(each.stat().st_size for each in files_of(tmp_path))
    for first in (100, 200, 300):
        write(client, stream, first, first + 100)
        archive(spark, events, str(tmp_path), compact_bytes=size + 1)
    assert folders_of(tmp_path) == ["batch=00000001", "batch=00000002", "batch=00000003"]
    joined = files_of(tmp_path / "batch=00000001")
    write(client, stream, 400, 500)
    archive(spark, events, str(tmp_path), compact_bytes=size + 1)
    assert folders_of(tmp_path) == ["batch=00000001", "batch=00000003", "batch=00000004"]
    assert files_of(tmp_path / "batch=00000001") == joined
    assert numbers_of(tmp_path) == list(range(500))


def test_a_join_that_breaks_off_anywhere_is_finished_by_the_next_run(
    spark: SparkSession,
    server: Endpoints,
    client: BlockingClient,
    stream: str,
    tmp_path: Path,
    few: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tailrace.pipelines.jobs.archive import archive
    from tailrace.pipelines.jobs.compaction import Compaction, batch_numbers, finish_join
    from tailrace.pipelines.jobs.job_files import SparkFiles

    write(client, stream, 0, 120)
    start = tmp_path / "start"
    archive(spark, source(server, stream, maxEventsPerTrigger="30"), str(start))
    count = len(folders_of(start))
    assert count >= 4
    steps = 0

    def breaks_off(name: str) -> Any:
        whole = getattr(SparkFiles, name)

        def step(files: SparkFiles, *given: Any) -> Any:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise BreakOffError
            return whole(files, *given)

        return step

    def join(output: Path) -> None:
        files = SparkFiles(spark)
        numbers = batch_numbers(files, str(output))
        assert Compaction(spark, files, str(output), 1 << 30).join_due(numbers)

    broken = 0
    for after in range(100):
        output = tmp_path / f"after-{after}"
        shutil.copytree(start, output)
        steps = after
        with monkeypatch.context() as patch:
            for name in ("write", "move", "delete", "sync"):
                patch.setattr(SparkFiles, name, breaks_off(name))
            try:
                join(output)
                break
            except BreakOffError:
                broken += 1
        finish_join(SparkFiles(spark), str(output))
        assert numbers_of(output) == list(range(120)), after
        assert not (output / "_compaction").exists()
        assert all((output / name / "_SUCCESS").exists() for name in folders_of(output))
        shutil.rmtree(output)
    assert broken >= 12
    assert len(folders_of(output)) < count


def test_files_with_other_columns_are_not_joined(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path, few: None
) -> None:
    """A later run with fewer columns must not take them from the earlier files."""
    from tailrace.pipelines.jobs.archive import archive

    for first, schema in ((0, SCHEMA), (10, SCHEMA), (20, "n long, at timestamp"), (30, "n long, at timestamp")):
        write(client, stream, first, first + 10)
        archive(spark, source(server, stream, schema=schema), str(tmp_path))
    (tmp_path / "batch=00000003" / "_SUCCESS").unlink()  # the last one may be repeated
    write(client, stream, 40, 50)
    archive(spark, source(server, stream, schema="n long, at timestamp"), str(tmp_path), compact_bytes=1 << 30)
    assert folders_of(tmp_path) == ["batch=00000001", *(f"batch=0000000{n}" for n in (2, 3, 4))]
    of_first = files_of(tmp_path / "batch=00000001")
    assert all("tags" in pyarrow.parquet.read_schema(each).names for each in of_first)
    assert numbers_of(tmp_path, without=range(20, 50)) == list(range(50))


def test_a_folder_of_another_checkpoint_is_refused(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    """Its first batch may have the rows of all that were joined."""
    from pyspark.errors import PySparkException

    from tailrace.pipelines.jobs.archive import archive

    events = source(server, stream, maxEventsPerTrigger="30")
    write(client, stream, 0, 60)
    archive(spark, events, str(tmp_path))
    assert len(folders_of(tmp_path)) >= 2
    shutil.rmtree(tmp_path / "_checkpoint")
    with pytest.raises(PySparkException, match=r"and now comes batch 0: the checkpoint is another one"):
        archive(spark, events, str(tmp_path))
    assert numbers_of(tmp_path) == list(range(60))


def test_a_damaged_record_of_a_join_is_an_error_and_changes_nothing(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path
) -> None:
    from tailrace.pipelines.jobs.archive import archive

    write(client, stream, 0, 10)
    archive(spark, source(server, stream), str(tmp_path))
    (tmp_path / "_compaction").mkdir()
    (tmp_path / "_compaction" / "join").write_bytes(b"TRSJ")
    with pytest.raises(CorruptionError, match=r"_compaction/join: a record of 4 bytes"):
        archive(spark, source(server, stream), str(tmp_path))
    assert numbers_of(tmp_path) == list(range(10))


def test_a_damaged_file_keeps_no_new_event_from_being_archived(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path, few: None
) -> None:
    """The folders stay as they are, also where the session would leave out files that it cannot read."""
    from tailrace.pipelines.jobs.archive import archive

    write(client, stream, 0, 90)
    archive(spark, source(server, stream, "", maxEventsPerTrigger="30"), str(tmp_path))
    folders = folders_of(tmp_path)
    assert len(folders) >= 3
    (damaged,) = files_of(tmp_path / folders[1])
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-4] + b"none")  # its last four bytes say that it is Parquet
    (damaged.parent / f".{damaged.name}.crc").unlink()
    write(client, stream, 90, 120)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        progress = archive(spark, source(server, stream, ""), str(tmp_path), compact_bytes=1 << 30)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert (progress.rows, progress.joined) == (30, 0)
    damaged.write_bytes(content)
    assert numbers_of(tmp_path) == list(range(120))


def test_windows_are_joined_too(
    spark: SparkSession, server: Endpoints, client: BlockingClient, stream: str, tmp_path: Path, few: None
) -> None:
    """Batches in which no window ends have no rows."""
    from tailrace.pipelines.jobs.aggregate import Windows, aggregate

    windows, joined = Windows("1 day", sums=("n",)), 0
    for day in range(1, 6):
        with client.writer(stream) as writer:
            writer.write_event(json.dumps({"n": day, "at": f"2013-01-{day:02}T00:00:00Z"}).encode(), routing_key="k")
            writer.flush()
        joined += aggregate(spark, source(server, stream), windows, str(tmp_path), compact_bytes=1 << 30).joined
    rows = pyarrow.dataset.dataset(tmp_path, format="parquet", partitioning="hive").to_table().to_pylist()
    assert sorted((row["start"].day, row["sum_n"]) for row in rows) == [(day, day) for day in range(1, 5)]
    assert joined >= 2
    newest = max(int(name.removeprefix("batch=")) for name in folders_of(tmp_path))
    assert len(folders_of(tmp_path)) == newest + 1 - joined


def test_bytes_of_a_batch_are_bounded_without_an_option(server: Endpoints, stream: str) -> None:
    bounded = source(server, stream).with_bounded_batches()
    assert bounded.options == {"maxBytesPerTrigger": str(limits.SPARK_JOB_BATCH_BYTES)}
    given = source(server, stream, MAXeventsPERtrigger="7")
    assert given.with_bounded_batches() == given


def test_a_job_without_end_has_no_bound_on_its_batches(
    spark: SparkSession,
    server: Endpoints,
    client: BlockingClient,
    stream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be one on its rate. A run that ends has one."""
    from tailrace.pipelines.jobs.archive import archive

    monkeypatch.setattr(limits, "SPARK_JOB_BATCH_BYTES", 2 * KIB)
    write(client, stream, 0, 200)
    assert archive(spark, source(server, stream, ""), str(tmp_path / "once")).batches >= 4
    output = tmp_path / "on"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(archive, spark, source(server, stream, ""), str(output), 0.5)
        until(lambda: len(rows_of(output)) == 200, job)
        for query in spark.streams.active:
            query.stop()
        progress = job.result(DEADLINE_S)
    assert (progress.rows, progress.batches) == (200, 1)
