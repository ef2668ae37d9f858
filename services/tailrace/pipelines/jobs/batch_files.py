"""Write a streaming query's batches as Parquet files, each row exactly once (docs/spark-jobs.md#files)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from tailrace.common.errors import DataLossError
from tailrace.pipelines.jobs.session import file_of
from tailrace.pipelines.source.offsets import from_offset, to_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = structlog.get_logger(__name__)
BATCH_FOLDER: Final = "batch={:08d}"
CHECKPOINT_FOLDER: Final = "_checkpoint"
DAY: Final = "day"
"""Column by which files are parted, if they are."""


@dataclass
class Progress:
    """What a run of a job wrote: batches, rows, and the position behind them (the data source's offsets)."""

    batches: int = 0
    rows: int = 0
    position: Any = None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def position_of(offset: object) -> Any:
    """Return the position of an offset in the progress of a query; None where there is none yet."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    return None if found is None else to_offset(from_offset(found, None))


def write_batches(
    rows: DataFrame, output: str, every_s: float | None, *, fail_on_data_loss: bool, by_day: bool = False
) -> Progress:
    """Write what there is now to files below `output`; with `every_s` go on until the process ends.

    The folder ``_checkpoint`` in the output keeps the position, where the next run goes on. Each batch has a folder of
    its own. One that is repeated after a failure replaces it, so any reader of the files finds each row once. One that
    has fewer rows than the files does not. ``by_day``: the rows have a column DAY, by which the files are parted.

    Raises:
        StreamingQueryException: the query failed. With `fail_on_data_loss` this is the case also when a repeated batch
            has fewer rows than its files; without it the files stay.
    """
    progress = Progress()
    query = _start(rows, output.rstrip("/"), every_s, progress, fail_on_data_loss=fail_on_data_loss, by_day=by_day)
    try:
        query.awaitTermination()
    finally:
        query.stop()
    last = query.lastProgress
    if last is not None and last["sources"]:
        progress.position = position_of(last["sources"][0]["endOffset"])
    return progress


def _start(
    rows: DataFrame, output: str, every_s: float | None, progress: Progress, *, fail_on_data_loss: bool, by_day: bool
) -> StreamingQuery:
    def write(batch: DataFrame, number: int) -> None:
        batch.persist()  # it is counted and written, and read once
        try:
            count, folder = batch.count(), f"{output}/{BATCH_FOLDER.format(number)}"
            if keeps_files(folder, _rows_in(batch, folder), count, fail_on_data_loss=fail_on_data_loss):
                return
            _write(batch, folder, by_day=by_day)
        finally:
            batch.unpersist()
        progress.batches += 1
        progress.rows += count

    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{output}/{CHECKPOINT_FOLDER}")
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s:g} seconds").start()


def keeps_files(folder: str, written: int, found: int, *, fail_on_data_loss: bool) -> bool:
    """Return whether the files of a batch stay as they are, because it has fewer rows now than were written.

    Raises:
        DataLossError: it has, and this is to be an error.
    """
    if written <= found:
        return False
    if fail_on_data_loss:
        raise DataLossError(
            f"{folder} has {written} rows of this batch, which now has only {found}: the stream has lost events since, "
            "or the checkpoint is another one. With failOnDataLoss=false the files stay as they are"
        )
    _LOG.warning("files_of_batch_kept", folder=folder, rows=written, rows_now=found)
    return True


def _rows_in(batch: DataFrame, folder: str) -> int:
    """Return the rows in the files of a batch; 0 when they are not complete."""
    files, mark = file_of(batch.sparkSession, f"{folder}/_SUCCESS")
    if not files.exists(mark):
        return 0
    return int(batch.sparkSession.read.schema(batch.schema).parquet(folder).count())


def _write(batch: DataFrame, folder: str, *, by_day: bool) -> None:
    """Write a batch, with one file for each day: many small files would be slow to read."""
    if by_day:
        batch.repartition(DAY).write.mode("overwrite").partitionBy(DAY).parquet(folder)
    else:
        batch.coalesce(1).write.mode("overwrite").parquet(folder)
