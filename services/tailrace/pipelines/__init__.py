"""Read and write streams with PySpark: the data source ``tailrace``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.pipelines.data_source import TailraceDataSource

__all__ = ["TailraceDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make the format ``tailrace`` known to a Spark session."""
    from tailrace.pipelines.data_source import TailraceDataSource

    spark.dataSource.register(TailraceDataSource)


def __getattr__(name: str) -> object:
    """Import PySpark when a class that needs it is used: `direct` works without it."""
    if name == "TailraceDataSource":
        from tailrace.pipelines.data_source import TailraceDataSource

        return TailraceDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
