"""The job ``aggregate``: counts and sums by time window and key, as Parquet files (docs/spark-jobs.md#aggregate)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.pipelines.jobs.batch_files import FileOptions, Progress, write_batches
from tailrace.pipelines.jobs.events import check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.pipelines.jobs.events import Input

_TIME: Final = "_time"


@dataclass(frozen=True)
class Windows:
    """What to count and to add up.

    ``length`` and ``late`` are durations as Spark writes them (``10 minutes``): the length of a window, and how much
    older than the newest event one may be and still count. ``keys`` are columns to group by, ``sums`` those to add up.
    """

    length: str
    late: str = "0 seconds"
    keys: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()


def aggregate(
    spark: SparkSession,
    source: Input,
    windows: Windows,
    output: str,
    every_s: float | None = None,
    compact_bytes: int | None = None,
) -> Progress:
    """Write a row for each window and key: ``start``, ``end``, keys, ``count``, ``sum_<column>`` (see `write_batches`).

    A window is written once, when an event has come whose time is later than its end by `late`. What comes for it after
    that is dropped. Events without a time are left out.

    Raises:
        BadRequestError: the events lack a column. StreamingQueryException: the query failed.
    """
    events = source.open(spark)
    check_columns(events, "key", windows.keys)
    check_columns(events, "sum", windows.sums)
    counted = _counted(events, source, windows)
    options = FileOptions(every_s, compact_bytes=compact_bytes, fail_on_data_loss=source.fail_on_data_loss)
    return write_batches(counted, output, options)


def _counted(events: DataFrame, source: Input, windows: Windows) -> DataFrame:
    from pyspark.sql import functions as f

    timed = events.withColumn(_TIME, source.time(events)).where(f.col(_TIME).isNotNull())
    grouped = timed.withWatermark(_TIME, windows.late).groupBy(f.window(_TIME, windows.length), *windows.keys)
    sums = (f.sum(name).alias(f"sum_{name}") for name in windows.sums)
    counted = grouped.agg(f.count(f.lit(1)).alias("count"), *sums)
    return counted.select(f.col("window.start").alias("start"), f.col("window.end").alias("end"), *counted.columns[1:])
