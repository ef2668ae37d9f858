"""What benchmarks compute: percentiles, correction of coordinated omission, pacing, the form of results."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.bench import table
from tailrace.cli.bench.histogram import LatencyHistogram
from tailrace.cli.bench.java import JavaProgram, rows_of, table_rows_of
from tailrace.cli.bench.pacing import Pace
from tailrace.cli.bench.peer import Samples, StartedPeer
from tailrace.cli.bench.result import Row, cpu_model, latency_rows, machine, result, row
from tailrace.cli.demo.report import percentile
from tailrace.common.errors import BadRequestError, IllegalStateError

LATENCIES = st.floats(1e-6, 100.0)


def recorded(latencies: list[float]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for latency in latencies:
        histogram.record(latency)
    return histogram


@given(st.lists(LATENCIES, min_size=1, max_size=200), st.sampled_from([0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_percentile_is_right_within_a_bucket(latencies: list[float], share: float) -> None:
    exact = percentile(sorted(latencies), share)
    found = recorded(latencies).percentile_s(share)
    assert exact * (1 - 1e-9) <= found <= exact * 1.011


@given(st.lists(LATENCIES, max_size=50), st.lists(LATENCIES, max_size=50))
def test_merging_is_recording_all(first: list[float], second: list[float]) -> None:
    merged, together = recorded(first), recorded(first + second)
    merged.merge(recorded(second))
    assert merged.count == together.count
    assert merged.maximum_s == together.maximum_s
    if together.count:
        assert [merged.percentile_s(s) for s in (0.1, 0.5, 1.0)] == [together.percentile_s(s) for s in (0.1, 0.5, 1.0)]


def test_an_empty_histogram_has_no_percentiles() -> None:
    assert math.isnan(LatencyHistogram().percentile_s(0.5))


def test_counts_weigh() -> None:
    histogram = LatencyHistogram()
    histogram.record(0.001, 999)
    histogram.record(1.0)
    assert histogram.percentile_s(0.999) < 0.0011
    assert histogram.percentile_s(1.0) == 1.0


@given(st.floats(0, 1000), st.floats(1, 1e6), st.integers(0, 10_000_000))
def test_an_event_is_due_when_it_says(start_s: float, rate_per_s: float, index: int) -> None:
    pace = Pace(start_s, rate_per_s)
    due_s = pace.due_at_s(index)
    step_s = 1 / rate_per_s
    assert pace.due_by(due_s + step_s / 2) == index + 1
    assert pace.due_by(due_s - step_s / 2) == index


def test_nothing_is_due_before_the_start() -> None:
    assert Pace(10.0, 1000).due_by(9.999) == 0
    assert Pace(10.0, 1000).due_by(10.0) == 1


def test_an_open_loop_makes_up_for_a_late_wake_up() -> None:
    pace = Pace(0.0, 10_000)
    source = random.Random(1)
    now_s, sent = 0.0, 0
    while now_s < 1.0:
        now_s += source.choice([0.001, 0.0013, 0.02])
        due = pace.due_by(now_s)
        assert all(pace.due_at_s(index) <= now_s + 1e-9 for index in (sent, due - 1))
        sent = due
    assert sent == pace.due_by(now_s)
    assert abs(sent - now_s * 10_000) <= 1


def test_the_form_of_results() -> None:
    histogram = recorded([0.001, 0.002])
    rows = [row("tailrace", "case", "events", 123456.789, "events/s"), *latency_rows("tailrace", "case", histogram)]
    content = result("ingest", rows)
    assert set(content) == {"benchmark", "machine", "rows"}
    assert set(content["machine"]) == {"cpu", "cores", "memory_bytes", "python", "kernel"}
    assert [set(item) for item in content["rows"]] == [{"system", "case", "metric", "value", "unit"}] * 4
    assert rows[0]["value"] == 123460.0
    assert [item["metric"] for item in rows[1:]] == ["p50", "p99", "p99.9"]
    assert rows[1]["value"] == pytest.approx(1.0, rel=0.011)


def test_the_machine_is_named() -> None:
    assert cpu_model("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name: other\n") == "Some CPU @ 2 GHz"
    assert cpu_model("Features: fp") == ""
    assert machine()["cores"] >= 1


def test_what_the_java_program_prints_as_rows() -> None:
    found = {"case": "x", "events": 5, "seconds": 1.0, "events_per_s": 5.0, "mb_per_s": 0.1}
    found |= {"p50_ms": 2.0, "p99_ms": None}
    assert [(item["metric"], item["value"], item["unit"]) for item in rows_of("tailrace", "100 B", found)] == [
        ("events", 5.0, "events/s"),
        ("payload", 0.1, "MB/s"),
        ("p50", 2.0, "ms"),
    ]
    assert {item["system"] for item in rows_of("tailrace", "100 B", found)} == {"tailrace"}
    operations = table_rows_of("pravega-java", "put-1", found)
    assert [(item["metric"], item["unit"]) for item in operations] == [("operations", "operations/s"), ("p50", "ms")]


def rounds_of(system: str, *rates: float) -> list[list[Row]]:
    latency = row(system, "100 B", "p99", 2.0, "ms")
    return [[row(system, "100 B", "events", rate, "events/s"), latency] for rate in rates]


def test_a_comparison_has_medians_and_their_ratios() -> None:
    samples = Samples()
    for rows in (*rounds_of("tailrace", 10.0, 40.0, 30.0), *rounds_of("pravega-java", 10.0, 20.0, 90.0)):
        samples.add(rows)
    found = [(item["system"], item["metric"], item["value"], item["unit"]) for item in samples.rows(["100 B"])]
    assert found == [
        ("tailrace", "events", 30.0, "events/s"),
        ("tailrace", "p99", 2.0, "ms"),
        ("pravega-java", "events", 20.0, "events/s"),
        ("pravega-java", "p99", 2.0, "ms"),
        ("tailrace / pravega-java", "events", 1.5, "ratio"),
        ("tailrace / pravega-java", "p99", 1.0, "ratio"),
    ]


def test_a_case_that_failed_at_the_peer_has_no_ratio() -> None:
    samples = Samples()
    for rows in (*rounds_of("tailrace", 10.0, 40.0), *rounds_of("pravega-java", 20.0)):
        samples.add(rows)
    samples.add_failure("pravega-java", "100 B")
    found = [(item["system"], item["metric"], item["value"]) for item in samples.rows(["100 B"])]
    assert ("pravega-java", "failed", 1) in found
    assert {system for system, _, _ in found} == {"tailrace", "pravega-java"}


async def test_a_peer_that_does_not_start_is_an_error() -> None:
    program = JavaProgram("")
    for command, error, message in (
        ("false", IllegalStateError, "false ended without the address of a controller"),
        ("/no/such/program", BadRequestError, "--peer-command: "),
    ):
        with pytest.raises(error, match=message):
            async with StartedPeer(command).serving(program):
                pytest.fail("it serves")


def test_a_histogram_without_latencies_has_no_rows() -> None:
    assert latency_rows("tailrace", "case", LatencyHistogram()) == []


async def test_each_operation_of_a_table_is_measured_at_least_once_however_busy_the_machine_is() -> None:
    made = 0

    async def operation() -> None:
        nonlocal made
        made += 1

    latencies, _ = await table._run(operation, 3, 0.0)
    assert latencies.count == made == 3
