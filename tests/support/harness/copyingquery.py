"""A program that copies a stream into another by a streaming query of Spark, until it is killed.

Its argument is JSON with the fields of `Copy`. It prints ``running`` when the query has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

RUNNING = "running"
FAULT = "a fault that a test planted"
ROWS_OF_A_BATCH = 20
"""Of Arrow: so that tasks get their rows in many pieces."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_OF_A_BATCH),
}


@dataclass(frozen=True)
class Copy:
    """What to copy, and where Spark runs.

    Events are JSON with a field ``key``. With `faults_every` (0: never) a task of so many batches fails once between
    its rows. ``repeats`` says whether Spark repeats a task that fails; otherwise the query ends. ``folder`` holds the
    checkpoint, and a file for each fault.
    """

    controller: str
    source: str
    target: str
    folder: str
    repeats: bool = True
    faults_every: int = 0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        """The query's checkpoint."""
        return Path(self.folder) / "checkpoint"

    @property
    def faults(self) -> Path:
        """The folder with a file for each fault."""
        return Path(self.folder) / "faults"


def failing_once(copy: Copy, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on; a task of some batches fails between them, once in all starts of the query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
    planned = batch % copy.faults_every > 0
    for number, rows in enumerate(batches):
        yield rows
        if planned and number > 0:
            with contextlib.suppress(FileExistsError), (copy.faults / str(batch // copy.faults_every)).open("x"):
                raise RuntimeError(FAULT)


def copied_rows(frame: DataFrame, copy: Copy) -> DataFrame:
    """The rows to write: values and keys."""
    rows = frame.selectExpr("value", "get_json_object(decode(value, 'UTF-8'), '$.key') as key")
    if not copy.faults_every:
        return rows
    return rows.mapInArrow(lambda batches: failing_once(copy, batches), rows.schema)


def main() -> None:
    """Run the query."""
    from pyspark.sql import SparkSession

    from tailrace.pipelines import register

    copy = Copy(**json.loads(sys.argv[1]))
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    builder = SparkSession.builder.master("local[2,4]" if copy.repeats else "local[2]").config(
        "spark.local.dir", f"{copy.folder}/local"
    )
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={copy.folder}"  # a killed JVM leaves files there
    for name, value in (SETTINGS | {"spark.driver.extraJavaOptions": java}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    source = session.readStream.format("tailrace").options(controller=copy.controller, stream=copy.source)
    query = (
        copied_rows(source.options(**copy.options).load(), copy)
        .writeStream.format("tailrace")
        .options(controller=copy.controller, stream=copy.target, routingKey="key")
        .option("checkpointLocation", str(copy.checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    print(RUNNING, flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
