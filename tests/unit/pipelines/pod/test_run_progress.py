"""What a driver has done, and how old what it has not read is at most."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.common.real_ports import SystemClock
from tailrace.pipelines.pod.progress import RunProgress, source_batch
from tailrace.pipelines.pod.status_server import Listener, measure
from tailrace.pipelines.source.offsets import Positions

START = 1_767_323_045_000


QUERY = "0d4a8ab0"


def of(*queries: str) -> RunProgress:
    """The progress of queries that have started."""
    progress = RunProgress()
    for each in queries:
        progress.start(each)
    return progress


def source(rows: int, start: object, end: object) -> dict[str, object]:
    """A source in the progress of a query. Spark writes JSON, and null where a source has no offset."""
    return {"numInputRows": rows, "startOffset": start, "endOffset": end}


def batch(
    progress: RunProgress, start: int, end: int, rows: int, at_s: int, duration_ms: int = 2000, query: str = QUERY
) -> None:
    read = source_batch(source(rows, {"a/b": {"0": start}}, {"a/b": {"0": end}}))
    progress.of(query).add_batch([read], duration_ms=duration_ms, now_ms=START + 1000 * at_s)


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
    progress.of(QUERY).add_batch([source_batch(source(0, None, {"a/b": {"0": 10}}))], duration_ms=5, now_ms=START)
    assert progress.of(QUERY).reached == (({StreamName("a", "b"): {0: 10}},), 0)


def test_another_source_s_offset_is_refused() -> None:
    with pytest.raises(BadRequestError):
        source_batch(source(1, None, 5))


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
        read = source(10, {"a/b": {"0": start}}, {"a/b": {"0": end}})
        found = {"id": QUERY, "runId": run, "sources": [read], "numInputRows": 10, "durationMs": {}}
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


class Navigator:
    """Streams of which some bytes are unread behind each position, in one segment."""

    def __init__(self, tails: dict[str, int]) -> None:
        self._tails = {StreamName.parse(name): length for name, length in tails.items()}

    async def advance(self, positions: Positions, bounds: object, ends: object) -> Positions:
        return {stream: {0: self._tails[stream]} for stream in positions}


def report(*sources: dict[str, Any]) -> SimpleNamespace:
    """The progress of a query after a batch."""
    rows = sum(each["numInputRows"] for each in sources)
    found = {"runId": QUERY, "sources": sources, "numInputRows": rows, "durationMs": {"triggerExecution": 1000}}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(found)))


async def test_of_a_query_with_several_sources_all_that_are_streams_count() -> None:
    """As of a join; a stream may be there twice. Rates of Spark's own source do not count, its batches do."""
    progress = of(QUERY)
    listener: Any = Listener(progress)
    listener.onQueryProgress(
        report(
            source(10, None, {"a/b": {"0": 500}}), source(20, {"a/c": {"0": 0}}, {"a/c": {"0": 600}}), source(7, 0, 7)
        )
    )
    listener.onQueryProgress(
        report(
            source(5, {"a/b": {"0": 500}}, {"a/b": {"0": 700}}),
            source(0, {"a/c": {"0": 600}}, {"a/c": {"0": 600}}),
            source(0, 7, 7),
        )
    )
    listener.onQueryProgress(
        report(
            source(0, {"a/b": {"0": 700}}, {"a/b": {"0": 700}}),
            source(0, {"a/c": {"0": 600}}, {"a/c": {"0": 600}}),
            source(3, 7, 10),
        )
    )
    found = progress.as_json()
    assert (found["batches"], found["rows"], found["bytes"]) == (3, 35, 800)
    await measure(progress.of(QUERY), cast("Any", Navigator({"a/b": 740, "a/c": 602})), SystemClock())
    assert progress.as_json()["lagBytes"] == 42
    both = {"a/b": {"0": 740}}
    listener.onQueryProgress(
        report(source(1, {"a/b": {"0": 700}}, both), source(1, {"a/b": {"0": 0}}, {"a/b": {"0": 1}}))
    )
    await measure(progress.of(QUERY), cast("Any", Navigator({"a/b": 740})), SystemClock())
    assert progress.as_json()["lagBytes"] == 739


def test_a_query_of_which_no_source_is_a_stream_is_not_counted() -> None:
    progress = of(QUERY)
    listener: Any = Listener(progress)
    listener.onQueryProgress(report(source(7, 0, 7), source(2, None, {"topic": {"0": 5}}), source(1, None, None)))
    assert progress.as_json()["batches"] == 0


def test_a_query_with_several_sources_is_idle_when_all_of_them_are() -> None:
    progress = of(QUERY)
    listener: Any = Listener(progress)
    same = {"a/b": {"0": 500}}
    listener.onQueryProgress(report(source(10, {"a/b": {"0": 0}}, same), source(0, same, same)))
    assert progress.as_json()["rowsPerSecond"] == 10
    listener.onQueryProgress(report(source(0, same, same), source(0, same, same)))
    found = progress.as_json()
    assert (found["batches"], found["rowsPerSecond"]) == (1, 0)
