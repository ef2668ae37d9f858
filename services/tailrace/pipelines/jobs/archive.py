"""The job ``archive``: a stream's events as Parquet files, each event exactly once (docs/spark-jobs.md#archive)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.jobs.batch_files import FileOptions, Progress, write_batches
from tailrace.pipelines.jobs.compaction import DAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.pipelines.jobs.events import Input

UNKNOWN_DAY: Final = "unknown"
"""Day of the events without a time."""


def archive(
    spark: SparkSession,
    source: Input,
    output: str,
    every_s: float | None = None,
    compact_bytes: int | None = None,
) -> Progress:
    """Write the events of a stream to files, parted by day when they have a time field (see `write_batches`).

    Without `every_s` a batch has at most SPARK_JOB_BATCH_BYTES, unless the options of the source say otherwise. With it
    a batch has all that came in that time: Spark begins one each time, so a bound on it would be one on the rate.

    Raises:
        BadRequestError: the events lack the time field, or have a column with the name of the parts.
        StreamingQueryException: the query failed.
    """
    events = (source.with_bounded_batches() if every_s is None else source).open(spark)
    if source.time_field:
        events = _with_day(events, source)
    options = FileOptions(every_s, bool(source.time_field), compact_bytes, source.fail_on_data_loss)
    return write_batches(events, output, options)


def _with_day(events: DataFrame, source: Input) -> DataFrame:
    from pyspark.sql import functions as f

    if DAY in map(str.lower, events.columns):  # Spark finds columns in any case
        raise BadRequestError(f"the events have a column {DAY}, which is the name of the folders by time")
    day = f.date_format(source.time(events), "yyyy-MM-dd")
    return events.withColumn(DAY, f.coalesce(day, f.lit(UNKNOWN_DAY)))
