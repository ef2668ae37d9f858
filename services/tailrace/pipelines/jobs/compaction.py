"""Join the folders of batches into fewer ones (docs/spark-jobs.md#compaction)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, DataLossError
from tailrace.common.ports import new_uuid
from tailrace.common.real_ports import SystemEntropy
from tailrace.pipelines.jobs.compaction_plan import BatchFolder, next_join
from tailrace.pipelines.jobs.compaction_record import (
    BATCH_FOLDER,
    COMPACTION_FOLDER,
    COMPLETE,
    RECORD,
    Join,
    carry_out,
    encode,
    finish,
    is_data,
)
from tailrace.pipelines.jobs.job_files import WHOLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.pipelines.jobs.job_files import JobFiles

_LOG = structlog.get_logger(__name__)
DAY: Final = "day"
"""Column by which files are parted, if they are."""
_NUMBER: Final = re.compile(r"batch=(\d{8,})")
_SCHEMA: Final = "org.apache.spark.sql.parquet.row.metadata"
_TIMES: Final = "spark.sql.parquet.outputTimestampType"
_SHORT_TIMES: Final = "TIMESTAMP_MILLIS"
_NULLABLE: Final = ("nullable", "containsNull", "valueContainsNull")


class _Kind(NamedTuple):
    """What files must have in common: the schema, as Spark's JSON, and whether there is a folder for each day."""

    schema: str
    by_day: bool


def batch_numbers(files: JobFiles, output: str) -> list[int]:
    """Return the numbers of the batches whose folders there are."""
    matches = (_NUMBER.fullmatch(name) for name in files.folders(output))
    return sorted(int(match[1]) for match in matches if match)


def write_rows(rows: DataFrame, folder: str, *, by_day: bool) -> None:
    """Write rows in place of what a folder has, with one file for each day: many small files would be slow to read."""
    writer = rows.repartition(DAY).write.partitionBy(DAY) if by_day else rows.coalesce(1).write
    writer.mode("overwrite").option("partitionOverwriteMode", "static").parquet(folder)


class Compaction:
    """Joins complete folders of an output, those with less than `target_bytes`."""

    def __init__(self, spark: SparkSession, files: JobFiles, output: str, target_bytes: int) -> None:
        """Raises BadRequestError: files that are written again would lose digits of their times."""
        self._spark = spark
        self._files = files
        self._output = output
        self._target_bytes = target_bytes
        self._known: dict[int, BatchFolder] = {}
        if spark.conf.get(_TIMES) == _SHORT_TIMES:
            raise BadRequestError(
                f"compaction with {_TIMES}={_SHORT_TIMES} would take digits from times: leave out one"
            )

    def join_due(self, numbers: Sequence[int]) -> set[int]:
        """Join what is due among the batches of these numbers, or the first part; return those that became others'.

        Raises:
            DataLossError: the joined files have not all rows, or are gone; the folders are as they were.
        """
        if not self._known:
            self._look_at_all(numbers)
        gone: set[int] = set()
        for _ in range(limits.SPARK_COMPACTION_JOINS_MAX):
            left = [each for each in numbers if each not in gone]
            group = next_join([self._folder(each) for each in left], self._target_bytes)
            if not group:
                break
            gone |= {each.number for each in self._join(group)[:-1]}
        return gone

    def _look_at_all(self, numbers: Sequence[int]) -> None:
        """Look at all folders with one list."""
        found: dict[str, dict[str, int]] = {}
        for path, length_bytes in self._files.files(self._output).items():
            folder, _, name = path.partition("/")
            found.setdefault(folder, {})[name] = length_bytes
        for number in numbers:
            self._known[number] = _folder_of(number, found.get(BATCH_FOLDER.format(number), {}))

    def _folder(self, number: int) -> BatchFolder:
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = _folder_of(number, self._files.files(self._path(number)))
        return found

    def _path(self, number: int) -> str:
        return f"{self._output}/{BATCH_FOLDER.format(number)}"

    def _data(self, number: int) -> list[str]:
        return [*filter(is_data, self._files.files(self._path(number)))]

    def _join(self, group: Sequence[BatchFolder]) -> Sequence[BatchFolder]:
        """Join the first folders of a group, those with files of one kind; return them."""
        kind, files = self._common([each.number for each in group])
        if len(files) < 2:
            self._known[group[0].number] = replace(group[0], is_final=True)
            return ()
        finish_join(self._files, self._output)
        folder = f"joined-{new_uuid(SystemEntropy()).hex}"
        target = f"{self._output}/{COMPACTION_FOLDER}/{folder}"
        if kind is not None:
            self._write(kind, [self._path(number) for number, names in files.items() if names], target)
        self._files.sync(target)
        joined = {name: length for name, length in self._files.files(target).items() if is_data(name)}
        last = group[len(files) - 1].number
        join = Join(tuple(files), tuple(files[last]), folder, joined)
        self._files.write(f"{self._output}/{RECORD}", encode(join))
        self._files.sync(f"{self._output}/{COMPACTION_FOLDER}")
        carry_out(self._files, self._output, join)
        _LOG.info("batches_joined", folder=self._path(last), batches=len(files))
        for number in files:
            self._known.pop(number, None)
        return group[: len(files)]

    def _common(self, numbers: Sequence[int]) -> tuple[_Kind | None, dict[int, list[str]]]:
        """Return what files have in common, and those of the first folders that have it. Folders without files fit."""
        common: _Kind | None = None
        files: dict[int, list[str]] = {}
        for number in numbers:
            names = self._data(number)
            if names:
                kind = self._kind(number, names[0])
                common = common or kind
                if kind is None or kind != common:
                    break
            files[number] = names
        return common, files

    def _kind(self, number: int, name: str) -> _Kind | None:
        """Return the kind of a file; None when a program other than Spark wrote it."""
        jvm: Any = self._spark.sparkContext._jvm
        place = jvm.org.apache.hadoop.fs.Path(f"{self._path(number)}/{name}")
        settings = self._spark.sparkContext._jsc.hadoopConfiguration()
        hadoop = jvm.org.apache.parquet.hadoop
        reader = hadoop.ParquetFileReader.open(hadoop.util.HadoopInputFile.fromPath(place, settings))
        try:
            schema = reader.getFileMetaData().getKeyValueMetaData().get(_SCHEMA)
        finally:
            reader.close()
        if schema is None:
            return None
        return _Kind(json.dumps(_nullable(json.loads(schema))), name.startswith(f"{DAY}="))

    def _write(self, kind: _Kind, folders: list[str], target: str) -> None:
        """Write the rows of folders into one of joined files. Raises DataLossError: not all are there."""
        rows = self._read(kind, folders)
        count = rows.count()
        write_rows(rows, target, by_day=kind.by_day)
        written = self._read(kind, [target]).count()
        if written != count:
            raise DataLossError(f"{target} has {written} rows, and the folders that it is made of have {count}")

    def _read(self, kind: _Kind, folders: list[str]) -> DataFrame:
        """Return the rows of folders. The day is taken from the paths, so that no other part of them is a column."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        reader = self._spark.read.schema(StructType.fromJson(json.loads(kind.schema))).options(**WHOLE)
        rows = reader.option("recursiveFileLookup", "true").parquet(*folders)
        if kind.by_day:
            path = rows.metadataColumn("_metadata").getField("file_path")  # also where events have such a column
            return rows.withColumn(DAY, f.regexp_extract(path, f"/{DAY}=([^/]*)/[^/]*$", 1))
        return rows


def _folder_of(number: int, files: Mapping[str, int]) -> BatchFolder:
    length_bytes = sum(length for name, length in files.items() if is_data(name))
    return BatchFolder(number, length_bytes, is_final=COMPLETE not in files)


def finish_join(files: JobFiles, output: str) -> None:
    """Finish the join that an earlier run has begun, if any. Raises as `finish`."""
    join = finish(files, output)
    if join is not None:
        _LOG.info("join_finished", folder=f"{output}/{BATCH_FOLDER.format(join.numbers[-1])}")


def _nullable(schema: Any) -> Any:
    """Return a schema, as Spark's JSON, that allows nulls everywhere, as Spark does in what it reads."""
    if isinstance(schema, dict):
        return {
            name: True if name in _NULLABLE and isinstance(value, bool) else _nullable(value)
            for name, value in schema.items()
        }
    return [_nullable(each) for each in schema] if isinstance(schema, list) else schema
