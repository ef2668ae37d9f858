"""What a driver has done, and how old what it has not read is at most."""

import pytest

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


def test_before_all_was_read_once_the_first_measurement_counts() -> None:
    progress = RunProgress()
    progress.measured(500, 0, START)
    progress.measured(600, 0, START + 30_000)
    assert progress.as_json()["lagSeconds"] == 30


def test_a_query_without_a_first_offset_has_read_nothing_yet() -> None:
    progress = RunProgress()
    progress.add_batch(rows=0, start=None, end={"a/b": {"0": 10}}, duration_ms=5, now_ms=START)
    assert progress.bytes == 0
    assert progress.position is not None


def test_another_source_s_offset_is_refused() -> None:
    with pytest.raises(BadRequestError):
        RunProgress().add_batch(rows=1, start=None, end=5, duration_ms=1, now_ms=START)
