"""Writes rows into a stream on a Spark of two executors, of which one is so slow that Spark runs its task twice.

Arguments: MASTER CONTROLLER STREAM FOLDER. Each attempt of a task leaves a file PARTITION-ATTEMPT in the folder when it
has made half of its rows; the first attempt of the last partition then waits until Spark ends it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

PARTITIONS, ROWS = 3, 900
SLOW_S = 120.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.executor.memory": "700m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
}


def main(master: str, controller: str, stream: str, folder: str) -> None:
    """Write the numbers below ROWS, in so many partitions."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    builder = SparkSession.builder.master(master).config("spark.local.dir", folder)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    from tailrace.pipelines import register

    register(session)

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        count = 0
        for batch in batches:
            yield batch
            count += batch.num_rows
            if count == ROWS // PARTITIONS // 2:
                attempt = context.attemptNumber()
                (Path(folder) / f"{context.partitionId()}-{attempt}").touch()
                if context.partitionId() == PARTITIONS - 1 and attempt == 0:
                    time.sleep(SLOW_S)

    rows = session.range(0, ROWS, 1, PARTITIONS).selectExpr("cast(id as string) value", "cast(id as string) key")
    written = rows.mapInArrow(made, "value string, key string")
    options = {"controller": controller, "stream": stream, "query": "speculation", "batch": "1", "routingKey": "key"}
    written.write.format("tailrace").options(**options).mode("append").save()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
