"""How much of a backlog a job reads for one batch (docs/spark-jobs.md#files)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from tailrace.common import limits
from tailrace.pipelines.jobs import aggregate, archive
from tailrace.pipelines.jobs.aggregate import Windows
from tailrace.pipelines.jobs.batch_files import Progress
from tailrace.pipelines.jobs.events import Input, with_bound

Runs = list[tuple[dict[str, str], float | None]]
BOUND = {"maxBytesPerTrigger": str(limits.SPARK_JOB_BATCH_BYTES)}
OWN = {"maxEventsPerTrigger": "10"}


class Reader:
    """Keeps the options of a query."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}
        self.columns = ["at", "n"]

    def format(self, name: str) -> Self:
        return self

    def options(self, **options: str) -> Self:
        self.given |= options
        return self

    def option(self, name: str, value: str) -> Self:
        self.given[name] = value
        return self

    def load(self) -> Self:
        return self


class Spark:
    """A session that starts no query."""

    @property
    def readStream(self) -> Reader:
        return Reader()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The options of each query that a job makes, and how often it writes; each query writes two batches."""
    found: Runs = []

    def write(rows: Reader, output: str, every_s: float | None, *, fail_on_data_loss: bool) -> Progress:
        options = {name: value for name, value in rows.given.items() if name not in ("controller", "stream")}
        found.append((options, every_s))
        return Progress(2, 10 * len(found), {"s/t": {"0": len(found)}})

    for job in (archive, aggregate):
        monkeypatch.setattr(job, "write_batches", write)
    monkeypatch.setattr(aggregate, "_counted", lambda events, source, windows: events)
    return found


def source(options: dict[str, str]) -> Input:
    return Input("tcp://c:1", "s/t", options=options)


def test_an_archive_reads_a_backlog_in_bounded_batches(runs: Runs) -> None:
    archive.archive(cast("Any", Spark()), source({}), "out")
    assert runs == [(BOUND, None)]


def test_an_archive_that_goes_on_has_no_bound_after_its_backlog(runs: Runs) -> None:
    """One batch is written in each interval: with a bound it would be all that the archive ever writes in one."""
    progress = archive.archive(cast("Any", Spark()), source({}), "out", 3600)
    assert runs == [(BOUND, None), ({}, 3600)]
    assert progress == Progress(4, 30, {"s/t": {"0": 2}})


@pytest.mark.parametrize("every_s", [None, 60.0])
def test_a_bound_of_the_options_counts_alone(runs: Runs, every_s: float | None) -> None:
    archive.archive(cast("Any", Spark()), source(OWN), "out", every_s)
    assert runs == [(OWN, every_s)]
    assert with_bound({"MAXBYTESPERTRIGGER": "7"}) == {"MAXBYTESPERTRIGGER": "7"}


def test_an_aggregation_has_no_bound(runs: Runs) -> None:
    """Segments differ in how far a bounded batch gets in time: what is behind would be dropped as late."""
    spark: Any = SimpleNamespace(readStream=Reader())
    aggregate.aggregate(spark, source({}), Windows("1 minute"), "out")
    assert runs == [({}, None)]
