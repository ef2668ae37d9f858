"""What a driver has done, and how old what it has not read is at most."""

import pytest

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.pipelines.pod.progress import RunProgress

START = 1_767_323_045_000


def batch(progress: RunProgress, start: int, end: int, rows: int, at_s: int, duration_ms: int = 2000) -> None:
    offsets = ({"a/b": {"0": start}}, {"a/b": {"0": end}})
    progress.add_batch(rows=rows, start=offsets[0], end=offsets[1], duration_ms=duration_ms, now_ms=START + 1000 * at_s)


def test_batches_add_up_and_rates_are_of_the_last_one() -> None:
    progress = RunProgress()
    assert progress.as_json() == {"batches": 0, "rows": 0, "bytes": 0, "rowsPerSecond": 0, "bytesPerSecond": 0}
    batch(progress, 0, 1000, 10, 1)
    batch(progress, 1000, 1500, 5, 5)
    found = progress.as_json()
    assert (found["batches"], found["rows"], found["bytes"]) == (2, 15, 1500)
    assert (found["rowsPerSecond"], found["bytesPerSecond"]) == (2, 250)
    assert found["lastBatchTime"] == "2026-01-02T03:04:10Z"
    progress.set_idle()
    assert progress.as_json()["rowsPerSecond"] == 0


def test_unread_bytes_are_as_old_as_the_last_time_when_all_was_read() -> None:
    progress = RunProgress()
    batch(progress, 0, 1000, 10, 0)
    progress.measured(0, 1000, START)
    assert progress.as_json()["lagSeconds"] == 0
    progress.measured(400, 1000, START + 7000)
    assert (progress.as_json()["lagBytes"], progress.as_json()["lagSeconds"]) == (400, 7)
    batch(progress, 1000, 1400, 4, 8)
    progress.measured(900, 1400, START + 9000)
    assert progress.as_json()["lagSeconds"] == 2, "at 7 s the stream had 1,400 bytes, which are read"
    progress.measured(0, 2300, START + 10_000)
    assert progress.as_json()["lagSeconds"] == 0


def test_before_all_was_read_once_no_age_is_known() -> None:
    """What was written before the driver started may be of any age."""
    progress = RunProgress()
    progress.measured(500, 0, START)
    progress.measured(600, 0, START + 30_000)
    assert progress.as_json()["lagBytes"] == 600
    assert "lagSeconds" not in progress.as_json()


def test_an_age_stays_known_however_long_the_lag_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PIPELINE_LAG_SAMPLES_MAX", 10)
    progress = RunProgress()
    for second in range(100):
        progress.measured(second, 0, START + 1000 * second)
    assert progress.as_json()["lagSeconds"] == 99
    progress.measured(30, 70, START + 100_000)
    assert 30 <= progress.as_json()["lagSeconds"] <= 100, "at most, with samples left out"


def test_a_query_without_a_first_offset_has_read_nothing_yet() -> None:
    progress = RunProgress()
    progress.add_batch(rows=0, start=None, end={"a/b": {"0": 10}}, duration_ms=5, now_ms=START)
    position, read_bytes = progress.reached
    assert read_bytes == 0
    assert position is not None


def test_another_source_s_offset_is_refused() -> None:
    with pytest.raises(BadRequestError):
        RunProgress().add_batch(rows=1, start=None, end=5, duration_ms=1, now_ms=START)
