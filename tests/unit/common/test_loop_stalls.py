"""An event loop that something blocks is counted, and one that is not is not."""

import asyncio
import time

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from tailrace.common import limits
from tailrace.common.loop_stalls import LoopStalls
from tailrace.common.task_groups import running


async def test_a_blocked_loop_is_counted_with_how_late_it_was() -> None:
    stalls = LoopStalls()
    async with running(stalls.watch()):
        await asyncio.sleep(0)  # it waits for its next look now
        time.sleep(5 * limits.LOOP_STALL_S)  # noqa: ASYNC251  # what is counted
        await asyncio.sleep(2 * limits.LOOP_LOOK_PERIOD_S)
    assert stalls.longest_s >= 5 * limits.LOOP_STALL_S - limits.LOOP_LOOK_PERIOD_S
    assert stalls.total_s >= stalls.longest_s


async def test_a_loop_that_is_in_time_counts_nothing() -> None:
    stalls = LoopStalls()
    for late_s in (0.0, 0.001, limits.LOOP_STALL_S):
        stalls.add(late_s)
    assert (stalls.count, stalls.total_s, stalls.longest_s) == (0, 0.0, 0.0)


@pytest.mark.parametrize(("late_s", "logged"), [(0.9, []), (1.25, [1250])])
async def test_long_stalls_are_logged_and_all_are_metrics(late_s: float, logged: list[int]) -> None:
    stalls, registry = LoopStalls(), CollectorRegistry()
    registry.register(stalls)
    with structlog.testing.capture_logs() as lines:
        stalls.add(0.1)
        stalls.add(late_s)
    assert [line["late_ms"] for line in lines] == logged
    text = generate_latest(registry).decode()
    assert "tailrace_loop_stalls_total 2.0" in text
    assert f"tailrace_loop_stall_longest_seconds {late_s}" in text
