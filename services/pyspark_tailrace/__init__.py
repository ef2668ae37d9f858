"""Makes the format ``tailrace`` known to PySpark, which looks for packages ``pyspark_*`` (docs/spark.md#install)."""

from tailrace.pipelines.data_source import TailraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
