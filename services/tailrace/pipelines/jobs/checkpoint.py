"""What the checkpoint of a query says about it. Read with Spark, so that it may be wherever Spark writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def query_with_batches(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of the query of a checkpoint; None when it has no complete batch yet.

    Raises:
        BadRequestError: the folder is no checkpoint.
    """
    commits = read_text(spark, f"{checkpoint}/commits")
    if commits is None or not commits.inputFiles():
        return None
    metadata = read_text(spark, f"{checkpoint}/metadata")
    row = None if metadata is None else metadata.first()
    if row is None:
        raise BadRequestError(f"{checkpoint} is no checkpoint of Spark: it has commits and no metadata")
    return str(json.loads(row["value"])["id"])


def read_text(spark: SparkSession, path: str) -> DataFrame | None:
    """Return the lines of a file or folder; None when there is none."""
    from pyspark.errors import AnalysisException

    try:
        return spark.read.text(path)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
