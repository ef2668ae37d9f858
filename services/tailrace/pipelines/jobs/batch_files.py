"""Write a streaming query's batches as Parquet files, each row exactly once (docs/spark-jobs.md#files)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from tailrace.common.errors import BadRequestError, DataLossError
from tailrace.pipelines.jobs.compaction import Compaction, batch_numbers, finish_join, write_rows
from tailrace.pipelines.jobs.compaction_record import BATCH_FOLDER, COMPLETE
from tailrace.pipelines.jobs.job_files import WHOLE, SparkFiles
from tailrace.pipelines.jobs.session import reason_of_error
from tailrace.pipelines.source.offsets import from_offset, to_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.pipelines.jobs.job_files import JobFiles

_LOG = structlog.get_logger(__name__)
CHECKPOINT_FOLDER: Final = "_checkpoint"


@dataclass(frozen=True)
class FileOptions:
    """How a job writes files.

    ``every_s``: go on until the process ends, and write this often; None: write what there is now. ``by_day``: the rows
    have a column DAY, by which the files are parted. ``compact_bytes``: join folders of batches that have less; None:
    join none. ``fail_on_data_loss``: a repeated batch that has fewer rows than its files is an error.
    """

    every_s: float | None = None
    by_day: bool = False
    compact_bytes: int | None = None
    fail_on_data_loss: bool = True


@dataclass
class Progress:
    """What a run of a job wrote: batches, rows, and the position behind them (the data source's offsets).

    ``joined`` is how many folders of batches became part of another one.
    """

    batches: int = 0
    rows: int = 0
    position: Any = None
    joined: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def position_of(offset: object) -> Any:
    """Return the position of an offset in the progress of a query; None where there is none yet."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    return None if found is None else to_offset(from_offset(found, None))


def write_batches(rows: DataFrame, output: str, options: FileOptions) -> Progress:
    """Write rows to files below `output`.

    The folder ``_checkpoint`` in the output keeps the position, where the next run goes on. Each batch has a folder of
    its own. One that is repeated after a failure replaces it, so any reader of the files finds each row once. One that
    has fewer rows than the files does not.

    Raises:
        StreamingQueryException: the query failed. With `fail_on_data_loss` this is the case also when a repeated batch
            has fewer rows than its files; without it the files stay.
        CorruptionError, DataLossError: the record of a join that a run before began is damaged, or its files are gone.
    """
    progress = Progress()
    query = _start(rows, _Output(rows.sparkSession, output.rstrip("/"), options), progress)
    try:
        query.awaitTermination()
    finally:
        query.stop()
    last = query.lastProgress
    if last is not None and last["sources"]:
        progress.position = position_of(last["sources"][0]["endOffset"])
    return progress


def _start(rows: DataFrame, output: _Output, progress: Progress) -> StreamingQuery:
    def write(batch: DataFrame, number: int) -> None:
        output.begin(number)
        batch.persist()  # it is counted and written, and read once
        try:
            count = batch.count()
            if output.write(batch, number, count):
                progress.batches += 1
                progress.rows += count
        finally:
            batch.unpersist()
        progress.joined += output.compact(number)

    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{output.path}/{CHECKPOINT_FOLDER}")
    every_s = output.options.every_s
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s:g} seconds").start()


class _Output:
    """The folder of a job."""

    def __init__(self, spark: SparkSession, path: str, options: FileOptions) -> None:
        self.path = path
        self.options = options
        self._files: JobFiles = SparkFiles(spark)
        wanted = options.compact_bytes
        self._compaction = Compaction(spark, self._files, path, wanted) if wanted is not None else None
        finish_join(self._files, path)
        self._numbers = set(batch_numbers(self._files, path))
        """Of the folders that there are."""

    def begin(self, number: int) -> None:
        """Check that a batch comes behind those whose folders there are, or is the last of them once more.

        Raises:
            BadRequestError: there are later ones. A join of the files may have this batch's rows already.
        """
        newest = max(self._numbers, default=number)
        if newest > number:
            raise BadRequestError(
                f"{self.path} has batch {newest}, and now comes batch {number}: the checkpoint is another one, or an "
                "old copy. Write into another folder, or bring the newest checkpoint back"
            )
        # Spark does not write its marks to the disk. After a power cut the folder of this batch must not be there
        # without the mark that the one before is done: Spark would repeat that one.
        checkpoint = f"{self.path}/{CHECKPOINT_FOLDER}"
        self._files.sync(f"{checkpoint}/commits/{number - 1}")
        self._files.sync(f"{checkpoint}/offsets/{number}")

    def write(self, batch: DataFrame, number: int, count: int) -> bool:
        """Write a batch; return whether it was, because a repeated one may keep its files."""
        folder = f"{self.path}/{BATCH_FOLDER.format(number)}"
        written = self._rows_in(batch, folder)
        if keeps_files(folder, written, count, fail_on_data_loss=self.options.fail_on_data_loss):
            return False
        write_rows(batch, folder, by_day=self.options.by_day)
        self._files.sync(folder)  # before the batch counts as done, and retention may take its events
        self._numbers.add(number)
        return True

    def compact(self, number: int) -> int:
        """Join what is due among the batches before this one; return how many became part of others.

        Spark has marked those as done. What goes wrong with files of before does not keep new ones from being written:
        it ends the compaction of this run, and the next run finishes a join that was decided.
        """
        if self._compaction is None:
            return 0
        try:
            gone = self._compaction.join_due(sorted(each for each in self._numbers if each < number))
        except Exception as error:  # of the file system, of Spark, or found in the files
            _LOG.warning("compaction_ended", folder=self.path, reason=reason_of_error(error))
            self._compaction = None
            return 0
        self._numbers -= gone
        return len(gone)

    def _rows_in(self, batch: DataFrame, folder: str) -> int:
        """Return the rows in the files of a batch; 0 when they are not complete."""
        if COMPLETE not in self._files.files(folder):
            return 0
        return int(batch.sparkSession.read.schema(batch.schema).options(**WHOLE).parquet(folder).count())


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
