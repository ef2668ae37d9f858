"""Columns of events whose names jobs take for themselves. Spark finds columns without regard to case."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.jobs import aggregate as aggregating
from tailrace.pipelines.jobs.archive import archive
from tailrace.pipelines.jobs.batch_files import FileOptions
from tailrace.pipelines.jobs.compaction import write_rows
from tailrace.pipelines.jobs.events import Input

SPARK: Any = None


class Rows:
    """A batch that notes how it is written."""

    def __init__(self, *columns: str) -> None:
        self.columns, self.parted = list(columns), list[str]()
        self.write = self

    def repartition(self, *_: str) -> Rows:
        return self

    coalesce = mode = option = repartition

    def partitionBy(self, column: str) -> Rows:
        self.parted.append(column)
        return self

    def parquet(self, folder: str) -> None: ...


def test_a_column_day_in_other_case_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`withColumn("day")` would replace the events' own `Day`: its values would be in no file."""
    monkeypatch.setattr(Input, "open", lambda *_: Rows("Day", "at"))
    with pytest.raises(BadRequestError, match="day"):
        archive(SPARK, Input("tcp://c:1", "s/t", "Day string, at timestamp", "at"), "out")


def test_a_key_called_day_is_a_column_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """In names of folders the keys 007 and 7 are one number, and an empty text is a null."""
    rows = Rows("start", "end", "day", "count")
    monkeypatch.setattr(aggregating, "_counted", lambda *_: rows)
    monkeypatch.setattr(aggregating, "check_columns", lambda *_: None)
    monkeypatch.setattr(Input, "open", lambda *_: Rows("day", "at"))

    def write(counted: Rows, output: str, options: FileOptions) -> None:
        write_rows(cast("Any", counted), output, by_day=options.by_day)  # as foreachBatch does

    monkeypatch.setattr(aggregating, "write_batches", write)
    windows = aggregating.Windows("1 day", keys=("day",))
    aggregating.aggregate(SPARK, Input("tcp://c:1", "s/t", "day string, at timestamp", "at"), windows, "out")
    assert rows.parted == []
