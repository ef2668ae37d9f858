"""What a driver has done, and how old what it has not read is at most."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.pipelines.pod.progress import RunProgress
from tailrace.pipelines.pod.status_server import Listener

START = 1_767_323_045_000


QUERY = "0d4a8ab0"


def of(*queries: str) -> RunProgress:
    """The progress of queries that have started."""
    progress = RunProgress()
    for each in queries:
        progress.start(each)
    return progress


def batch(
    progress: RunProgress, start: int, end: int, rows: int, at_s: int, duration_ms: int = 2000, query: str = QUERY
) -> None:
    offsets = ({"a/b": {"0": start}}, {"a/b": {"0": end}})
    now_ms = START + 1000 * at_s
    progress.of(query).add_batch(rows=rows, start=offsets[0], end=offsets[1], duration_ms=duration_ms, now_ms=now_ms)


def test_batches_add_up_and_rates_are_of_the_last_one() -> None:
    progress = of(QUERY)
    assert progress.as_json() == {"batches": 0, "rows": 0, "bytes": 0, "rowsPerSecond": 0, "bytesPerSecond": 0}
    batch(progress, 0, 1000, 10, 1)
    batch(progress, 1000, 1500, 5, 5)
    found = progress.as_json()
    assert (found["batches"], found["rows"], found["bytes"]) == (2, 15, 1500)
    assert (found["rowsPerSecond"], found["bytesPerSecond"]) == (2, 250)
    assert found["lastBatchTime"] == "2026-01-02T03:04:10Z"
    progress.of(QUERY).set_idle()
    assert progress.as_json()["rowsPerSecond"] == 0


def test_unread_bytes_are_as_old_as_the_last_time_when_all_was_read() -> None:
    progress = of(QUERY)
    batch(progress, 0, 1000, 10, 0)
    progress.of(QUERY).measured(0, 1000, START)
    assert progress.as_json()["lagSeconds"] == 0
    progress.of(QUERY).measured(400, 1000, START + 7000)
    assert (progress.as_json()["lagBytes"], progress.as_json()["lagSeconds"]) == (400, 7)
    batch(progress, 1000, 1400, 4, 8)
    progress.of(QUERY).measured(900, 1400, START + 9000)
    assert progress.as_json()["lagSeconds"] == 2, "at 7 s the stream had 1,400 bytes, which are read"
    progress.of(QUERY).measured(0, 2300, START + 10_000)
    assert progress.as_json()["lagSeconds"] == 0


def test_before_all_was_read_once_no_age_is_known() -> None:
    """What was written before the driver started may be of any age."""
    progress = of(QUERY)
    progress.of(QUERY).measured(500, 0, START)
    progress.of(QUERY).measured(600, 0, START + 30_000)
    assert progress.as_json()["lagBytes"] == 600
    assert "lagSeconds" not in progress.as_json()


def test_an_age_stays_known_however_long_the_lag_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PIPELINE_LAG_SAMPLES_MAX", 10)
    progress = of(QUERY)
    for second in range(100):
        progress.of(QUERY).measured(second, 0, START + 1000 * second)
    assert progress.as_json()["lagSeconds"] == 99
    progress.of(QUERY).measured(30, 70, START + 100_000)
    assert 30 <= progress.as_json()["lagSeconds"] <= 100, "at most, with samples left out"


def test_a_query_without_a_first_offset_has_read_nothing_yet() -> None:
    progress = of(QUERY)
    progress.of(QUERY).add_batch(rows=0, start=None, end={"a/b": {"0": 10}}, duration_ms=5, now_ms=START)
    position, read_bytes = progress.of(QUERY).reached
    assert read_bytes == 0
    assert position is not None


def test_another_source_s_offset_is_refused() -> None:
    with pytest.raises(BadRequestError):
        of(QUERY).of(QUERY).add_batch(rows=1, start=None, end=5, duration_ms=1, now_ms=START)


def test_the_lag_is_that_of_the_query_that_is_furthest_behind() -> None:
    progress = of("slow", "fast")
    batch(progress, 0, 1000, 10, 0, query="slow")
    batch(progress, 0, 5000, 50, 1, query="fast")
    progress.of("slow").measured(0, 1000, START)
    progress.of("slow").measured(4000, 1000, START + 8000)
    progress.of("fast").measured(0, 5000, START + 9000)
    found = progress.as_json()
    assert (found["lagBytes"], found["lagSeconds"]) == (4000, 8)
    assert (found["batches"], found["rows"], found["bytes"]) == (2, 60, 6000)
    assert found["lastBatchTime"] == "2026-01-02T03:04:06Z"
    progress.of("fast").set_idle()
    assert progress.as_json()["rowsPerSecond"] == 5, "the other query reads on"


def test_the_age_is_not_known_when_that_of_one_query_is_not() -> None:
    progress = of("known", "unknown")
    progress.of("known").measured(0, 1000, START)
    progress.of("unknown").measured(10, 0, START)
    assert progress.as_json()["lagBytes"] == 10
    assert "lagSeconds" not in progress.as_json()


def test_the_lag_of_a_query_that_has_ended_counts_only_when_none_runs() -> None:
    progress = of("ended", "running")
    progress.of("ended").measured(300, 0, START)
    progress.of("running").measured(20, 0, START)
    progress.of("ended").set_ended()
    assert progress.as_json()["lagBytes"] == 20
    progress.of("running").set_ended()
    assert progress.as_json()["lagBytes"] == 300


def test_of_queries_that_have_ended_the_sums_stay() -> None:
    progress = of(QUERY)
    batch(progress, 0, 1000, 10, 1)
    progress.of(QUERY).measured(300, 1000, START)
    progress.of(QUERY).set_ended()
    progress.start("next")
    assert progress.as_json().keys().isdisjoint({"lagBytes", "lagSeconds"})
    batch(progress, 0, 500, 5, 9, query="next")
    progress.of("next").set_ended()
    progress.start(QUERY)
    found = progress.as_json()
    assert (found["batches"], found["rows"], found["bytes"]) == (2, 15, 1500)
    assert found["lastBatchTime"] == "2026-01-02T03:04:14Z"
    assert len(progress.to_measure()) == 1


def test_a_query_that_starts_again_before_its_last_end_is_reported_loses_no_batch() -> None:
    """Spark reports a start in the thread that starts a query, and all else in another one, which may be late."""
    progress = RunProgress()
    listener: Any = Listener(progress)
    first, second = (SimpleNamespace(id=QUERY, runId=run) for run in ("first", "second"))

    def ends_batch(run: str, start: int, end: int) -> SimpleNamespace:
        source = {"startOffset": {"a/b": {"0": start}}, "endOffset": {"a/b": {"0": end}}}
        found = {"id": QUERY, "runId": run, "sources": [source], "numInputRows": 10, "durationMs": {}}
        return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(found)))

    listener.onQueryStarted(first)
    listener.onQueryProgress(ends_batch("first", 0, 1000))
    listener.onQueryStarted(second)
    listener.onQueryProgress(ends_batch("first", 1000, 1500))
    listener.onQueryTerminated(first)
    listener.onQueryProgress(ends_batch("second", 1500, 1700))
    found = progress.as_json()
    assert (found["batches"], found["rows"], found["bytes"]) == (3, 30, 1700)
    assert [each.has_ended for each in progress.to_measure()] == [False], "the second run goes on"
