"""A stopped process is killed; one that is late, or whose watching process was late, is not.

See docs/design.md#failure-detection.
"""

from __future__ import annotations

import pytest

from tailrace.common import limits
from tailrace.processes.worker_watchdog import WorkerWatchdog
from tailrace.processes.workers import RestartPauses

TICK_S = limits.WORKER_WATCHDOG_PERIOD_S


def checks(watchdog: WorkerWatchdog, from_s: float, to_s: float) -> tuple[float, str]:
    """When the watchdog gives up first, and why; (0, "") when it does not."""
    for tick in range(int(from_s / TICK_S), int(to_s / TICK_S) + 1):
        if why := watchdog.check(tick * TICK_S):
            return tick * TICK_S, why
    return 0.0, ""


def test_a_process_that_never_beat_is_left_alone() -> None:
    assert checks(WorkerWatchdog(), 0, 1000) == (0.0, "")


def test_a_silent_process_is_given_up_after_its_lease_has_lapsed() -> None:
    watchdog = WorkerWatchdog()
    watchdog.reported(1, 10.0)
    at_s, why = checks(watchdog, 10, 100)
    assert why == "no heartbeat for 7 s"
    assert limits.WORKER_LEASE_LAPSE_S < at_s - 10.0 <= limits.WORKER_SILENT_MAX_S + 2 * TICK_S


def test_a_process_whose_loop_hangs_is_given_up() -> None:
    watchdog = WorkerWatchdog()
    at_s, why = 0.0, ""
    for second in range(60):
        watchdog.reported(5, second)
        at_s, why = checks(watchdog, second, second + 1)
        if why:
            break
    assert why == "event loop blocked for 20 s"
    assert at_s > limits.HEARTBEAT_FRESH_S + limits.WORKER_LEASE_LAPSE_S - 1


def test_a_loop_that_beats_now_and_then_is_under_load() -> None:
    watchdog = WorkerWatchdog()
    for second in range(300):
        watchdog.reported(second // 10, second)
        assert checks(watchdog, second, second + 1) == (0.0, "")


def test_a_watcher_that_was_paused_ends_no_process() -> None:
    watchdog = WorkerWatchdog()
    watchdog.reported(1, 10.0)
    assert checks(watchdog, 10, 12) == (0.0, "")
    assert watchdog.check(100.0) == ""
    watchdog.reported(2, 100.1)
    assert checks(watchdog, 100.5, 106) == (0.0, "")


@pytest.mark.parametrize(
    ("ends", "pauses"),
    [
        ([100.0, 100.0, 100.0], [0, 0, 0]),
        ([0.1, 0.1, 0.1, 0.1], [0, 1, 2, 4]),
        ([None, None, None, None, None, None, None], [1, 2, 4, 8, 16, 30, 30]),
        ([None, None, 100.0, 0.1], [1, 2, 0, 0]),
        ([0.1, None, 0.1], [0, 1, 2]),
    ],
)
def test_what_was_up_is_started_at_once_and_what_fails_again_and_again_is_not(
    ends: list[float | None], pauses: list[int]
) -> None:
    restarts = RestartPauses()
    assert [restarts.ended(served_s) for served_s in ends] == pauses
