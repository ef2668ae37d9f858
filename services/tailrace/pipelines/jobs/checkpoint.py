"""What the checkpoint folder of a job says. Read and written with Spark, so that it may be wherever Spark writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tailrace.common.errors import BadRequestError, FormatVersionError
from tailrace.pipelines.jobs.backfill_plan import Batch, Plan
from tailrace.pipelines.jobs.session import file_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLAN_FOLDER: Final = "plan"
_PLAN_VERSION: Final = 1
_PLAN_COLUMNS: Final = (
    "version int, query string, settings map<string, string>, files map<string, string>, "
    "batches array<struct<files: array<string>, start: string, end: string>>"
)


def query_with_batches(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of the query of a checkpoint; None when it has no complete batch yet.

    Raises:
        BadRequestError: the folder is no checkpoint.
    """
    if not _has_files(spark, f"{checkpoint}/commits"):
        return None
    if not _has_files(spark, f"{checkpoint}/metadata"):
        raise BadRequestError(f"{checkpoint} is no checkpoint of Spark: it has commits and no metadata")
    (row,) = spark.read.text(f"{checkpoint}/metadata").collect()
    return str(json.loads(row["value"])["id"])


def read_plan(spark: SparkSession, checkpoint: str) -> Plan | None:
    """Return the plan of a backfill that a checkpoint has; None when it has none.

    Raises:
        FormatVersionError: a newer program made it.
    """
    folder = f"{checkpoint}/{_PLAN_FOLDER}"
    if not _has_files(spark, folder):
        return None
    row = spark.read.schema(_PLAN_COLUMNS).parquet(folder).first()
    if row is None:  # a run ended before it had written the file
        return None
    if row["version"] != _PLAN_VERSION:
        raise FormatVersionError(f"the plan in {checkpoint} has version {row['version']}, not {_PLAN_VERSION}")
    batches = (Batch(tuple(each["files"]), each["start"], each["end"]) for each in row["batches"])
    return Plan(row["query"], dict(row["settings"]), dict(row["files"]), tuple(batches))


def write_plan(spark: SparkSession, checkpoint: str, plan: Plan) -> None:
    """Keep a plan in a checkpoint folder: a Parquet file of one row."""
    batches = [(list(each.files), each.start, each.end) for each in plan.batches]
    row = (_PLAN_VERSION, plan.query, dict(plan.settings), dict(plan.files), batches)
    table = spark.createDataFrame([row], _PLAN_COLUMNS).coalesce(1)
    table.write.mode("overwrite").parquet(f"{checkpoint}/{_PLAN_FOLDER}")


def _has_files(spark: SparkSession, path: str) -> bool:
    """Return whether there is such a file, or a folder with something in it. Spark's reader would log an error."""
    files, place = file_of(spark, path)
    return bool(files.exists(place)) and len(files.listStatus(place)) > 0
