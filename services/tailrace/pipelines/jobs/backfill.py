"""The job ``backfill``: write the rows of Parquet files into a stream, each once (docs/spark-jobs.md#backfill)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.client import BlockingClient
from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.common.ports import new_uuid
from tailrace.common.real_ports import SystemEntropy
from tailrace.pipelines.jobs.backfill_plan import (
    INCARNATION,
    Batch,
    InputFile,
    Plan,
    batches_of_files,
    batches_of_ranges,
)
from tailrace.pipelines.jobs.batch_files import Progress
from tailrace.pipelines.jobs.checkpoint import read_plan, write_plan
from tailrace.pipelines.jobs.compaction_record import COMPACTION_FOLDER
from tailrace.pipelines.jobs.job_files import WHOLE, SparkFiles
from tailrace.pipelines.sink.event_values import check_columns
from tailrace.pipelines.sink.options import parse_options
from tailrace.pipelines.sink.query_record import NO_BATCH
from tailrace.pipelines.sink.query_table import find_record

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tailrace.pipelines.jobs.target import Target

_FILE: Final = "_metadata.file_path"
_NUMBERS: Final = ("byte", "short", "integer", "long", "float", "double", "decimal")
_ORDERED: Final = (*_NUMBERS, "string", "date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True)
class Backfill:
    """What to write where.

    ``path`` is a file, a folder or a pattern, as Spark reads it. ``value`` is the column of the events; empty: each
    event is a JSON object of all columns. ``routing_key`` is the column of their keys, and ``order_by`` the one that
    orders the rows of a key; empty for none. ``batch_bytes`` is the size of the files that make up a batch.
    """

    path: str
    target: Target
    value: str = ""
    routing_key: str = ""
    order_by: str = ""
    batch_bytes: int = limits.SPARK_JOB_BATCH_BYTES

    def check_options(self) -> None:
        """Raise BadRequestError for options that do not fit together."""
        if self.order_by and not self.routing_key:
            raise BadRequestError("an order needs a routing key: events without one have no order in a stream")

    def sink_options(self) -> dict[str, str]:
        """Return the options of the sink, without query and batch. Raises BadRequestError for a wrong one."""
        options = self.target.all_options()
        if self.routing_key:
            options["routingKey"] = self.routing_key
        return options | ({"value": self.value} if self.value else {"valueFormat": "json"})


def backfill(spark: SparkSession, job: Backfill, checkpoint: str) -> Progress:
    """Write the rows, each once, also when a run was killed: the next one with the same checkpoint goes on.

    Return what this run has written: batches and rows.

    Raises:
        NoSuchStreamError, StreamSealedError. BadRequestError: there are no rows, they lack a column, or files and
            options are not those of the checkpoint. PySparkException: reading or writing failed.
    """
    job.check_options()
    incarnation = job.target.connect_and_check()
    rows = _read(spark, job)
    plan = _plan(spark, job, rows, checkpoint, incarnation)
    with BlockingClient(job.target.controller) as client:
        record = client.run(find_record(client.context, job.target.stream, plan.query))
    done = NO_BATCH if record is None else record.last_batch
    progress = Progress()
    for number in range(done + 1, len(plan.batches)):
        progress.rows += _write(job, plan, rows, number)
        progress.batches += 1
        progress.position = {"batch": number, "batches": len(plan.batches)}
    return progress


def _read(spark: SparkSession, job: Backfill) -> DataFrame:
    """Return the rows. Raises BadRequestError for a column that they lack, or one that cannot be ordered by."""
    from pyspark.errors import AnalysisException

    if SparkFiles(spark).files(f"{job.path.rstrip('/')}/{COMPACTION_FOLDER}"):
        raise BadRequestError(
            f"{job.path} has a join of files that is not finished: run its job again, or wait until it has ended"
        )
    try:
        rows = spark.read.options(**WHOLE).parquet(job.path)
    except AnalysisException as error:
        if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
            raise
        raise BadRequestError(f"{job.path} has no Parquet files") from error
    check_columns(rows.schema, parse_options(job.sink_options(), streaming=False))
    if job.order_by and job.order_by not in rows.columns:
        raise BadRequestError(f"the rows have no column {job.order_by}; they have {', '.join(rows.columns)}")
    if job.order_by:
        kind = _kind(rows, job.order_by)
        if kind not in _ORDERED:
            raise BadRequestError(f"order by {job.order_by}: a column of type {kind} has no order")
    return rows


def _plan(spark: SparkSession, job: Backfill, rows: DataFrame, checkpoint: str, incarnation: int) -> Plan:
    """Return the plan of the checkpoint, or make one. Raises BadRequestError: it is of another input or stream."""
    files = _files(job, rows)
    if not files:
        raise BadRequestError(f"{job.path} has no rows")
    settings = {
        "stream": str(job.target.stream),
        INCARNATION: str(incarnation),
        "value": job.value,
        "routing key": job.routing_key,
        "order by": job.order_by,
    }
    plan = read_plan(spark, checkpoint)
    if plan is None:
        divide = batches_of_ranges if job.order_by else batches_of_files
        batches = divide(files, job.batch_bytes)
        plan = Plan(str(new_uuid(SystemEntropy())), settings, {each.path: each.state for each in files}, batches)
        write_plan(spark, checkpoint, plan)
    plan.check(settings, files)
    return plan


def _files(job: Backfill, rows: DataFrame) -> list[InputFile]:
    """Return the files that have rows, in the order of their lowest values; nulls first."""
    from pyspark.sql import functions as f

    modified = f.unix_micros("_metadata.file_modification_time")
    lowest = f.min(job.order_by) if job.order_by else f.lit(None).cast("string")
    text = _as_text(f.col("lowest"), _kind(rows, job.order_by)) if job.order_by else f.col("lowest")
    found = (
        rows.groupBy(f.col(_FILE).alias("path"))
        .agg(f.first("_metadata.file_size").alias("size"), f.first(modified).alias("modified"), lowest.alias("lowest"))
        .orderBy(f.col("lowest").asc_nulls_first(), "path")
        .select("path", "size", "modified", text)
    )
    return [
        InputFile(path, size, f"{size} bytes of {modified}", value) for path, size, modified, value in found.collect()
    ]


def _kind(rows: DataFrame, column: str) -> str:
    """Return the name of a column's type."""
    return rows.schema[column].dataType.typeName()


def _as_text(column: Column, kind: str) -> Column:
    """Return values to order by as texts, equal ones as equal texts, which `_from_text` makes the same values again."""
    from pyspark.sql import functions as f

    if kind == "timestamp":  # a text in a time zone may stand for two times
        column = f.unix_micros(column)
    elif kind in ("float", "double"):
        column = column + f.lit(0)  # -0.0 becomes 0.0
    return column.cast("string")


def _from_text(text: str, rows: DataFrame, column: str) -> Column:
    """Return a value to order by, from its text."""
    from pyspark.sql import functions as f

    if _kind(rows, column) == "timestamp":
        return f.timestamp_micros(f.lit(int(text)))
    return f.lit(text).cast(rows.schema[column].dataType)


def _write(job: Backfill, plan: Plan, rows: DataFrame, number: int) -> int:
    """Write a batch, and return the number of its rows. All rows of a key are in one task, in their order."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observed = Observation()
    batch = rows.where(_condition(job, rows, plan.batches[number])).observe(observed, f.count(f.lit(1)).alias("rows"))
    if job.order_by:
        batch = batch.repartition(f.col(job.routing_key)).sortWithinPartitions(job.order_by)
    if job.value:
        batch = batch.select(*dict.fromkeys(name for name in (job.value, job.routing_key) if name))
    options = job.sink_options() | {"query": plan.query, "batch": str(number)}
    batch.write.format("tailrace").options(**options).mode("append").save()
    return int(observed.get["rows"])


def _condition(job: Backfill, rows: DataFrame, batch: Batch) -> Column:
    """Return which rows are in a batch: each row is in exactly one."""
    from pyspark.sql import functions as f

    if batch.files:
        return f.col(_FILE).isin(list(batch.files))
    column = f.col(job.order_by)
    condition = f.lit(True)
    if batch.start is not None:
        condition &= column >= _from_text(batch.start, rows, job.order_by)
    if batch.end is not None:
        below = column < _from_text(batch.end, rows, job.order_by)
        condition &= below if batch.start is not None else below | column.isNull()
    return condition
