"""Read and write streams with PySpark: the data source ``tailrace``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.pipelines.data_source import TailraceDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TailraceDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make the format ``tailrace`` known to a Spark session."""
    spark.dataSource.register(TailraceDataSource)
