"""The job ``archive``: a stream's events as Parquet files, each event exactly once (docs/spark-jobs.md#archive)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.jobs.batch_files import DAY, Progress, write_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.pipelines.jobs.events import Input

UNKNOWN_DAY: Final = "unknown"
"""Day of the events without a time."""


def archive(spark: SparkSession, source: Input, output: str, every_s: float | None = None) -> Progress:
    """Write the events of a stream to files, parted by day when they have a time field (see `write_batches`).

    Raises:
        BadRequestError: the events lack the time field, or have a column with the name of the parts.
        StreamingQueryException: the query failed.
    """
    events = source.open(spark)
    if source.time_field:
        events = _with_day(events, source)
    return write_batches(
        events, output, every_s, fail_on_data_loss=source.fail_on_data_loss, by_day=bool(source.time_field)
    )


def _with_day(events: DataFrame, source: Input) -> DataFrame:
    from pyspark.sql import functions as f

    if DAY in map(str.lower, events.columns):  # Spark finds columns in any case
        raise BadRequestError(f"the events have a column {DAY}, which is the name of the folders by time")
    day = f.date_format(source.time(events), "yyyy-MM-dd")
    return events.withColumn(DAY, f.coalesce(day, f.lit(UNKNOWN_DAY)))
