"""An application for PySpark: writes a stream's events to Parquet files, and counts what it wrote.

usage: count_events.py SCOPE/STREAM FOLDER EXPECTED
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    """Write, read, count."""
    stream, folder, expected = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    spark.read.format("tailrace").option("stream", stream).load().write.mode("overwrite").parquet(folder)
    count = spark.read.parquet(folder).select("segment", "offset").distinct().count()
    if count != int(expected):
        raise ValueError(f"{count} events, not {expected}")


if __name__ == "__main__":
    main()
