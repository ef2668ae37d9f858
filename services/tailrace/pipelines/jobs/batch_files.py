"""Write a streaming query's batches as Parquet files, each row exactly once (docs/spark-jobs.md#files)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_FOLDER: Final = "batch={:08d}"
CHECKPOINT_FOLDER: Final = "_checkpoint"
DAY: Final = "day"
"""Column by which files are parted, if the rows have it."""


@dataclass
class Progress:
    """What a run of a job wrote: batches, rows, and the position behind them (the data source's offsets)."""

    batches: int = 0
    rows: int = 0
    position: Any = None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def write_batches(rows: DataFrame, output: str, every_s: float | None) -> Progress:
    """Write what there is now to files below `output`; with `every_s` go on until the process ends.

    The folder ``_checkpoint`` in the output keeps the position, where the next run goes on. Each batch has a folder of
    its own. One that is repeated after a failure replaces it, so any reader of the files finds each row once.

    Raises:
        StreamingQueryException: the query failed.
    """
    progress = Progress()
    query = _start(rows, output.rstrip("/"), every_s, progress)
    try:
        query.awaitTermination()
    finally:
        query.stop()
    last = query.lastProgress
    if last is not None and last["sources"]:
        offset = last["sources"][0]["endOffset"]
        progress.position = json.loads(offset) if isinstance(offset, str) else offset
    return progress


def _start(rows: DataFrame, output: str, every_s: float | None, progress: Progress) -> StreamingQuery:
    def write(batch: DataFrame, number: int) -> None:
        batch.persist()  # it is counted and written, and read once
        try:
            count = batch.count()
            _write(batch, f"{output}/{BATCH_FOLDER.format(number)}")
        finally:
            batch.unpersist()
        progress.batches += 1
        progress.rows += count

    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{output}/{CHECKPOINT_FOLDER}")
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s:g} seconds").start()


def _write(batch: DataFrame, folder: str) -> None:
    """Write a batch, with one file for each day: many small files would be slow to read."""
    if DAY in batch.columns:
        batch.repartition(DAY).write.mode("overwrite").partitionBy(DAY).parquet(folder)
    else:
        batch.coalesce(1).write.mode("overwrite").parquet(folder)
