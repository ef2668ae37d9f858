"""Count when the event loop was late: something blocked it (docs/operations/observe.md#metrics)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import structlog

from tailrace.common import limits
from tailrace.common.logs import LimitedLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

_logger = structlog.get_logger()


class LoopStalls:
    """How often, and for how long, the event loop ran later than it should. Implements Prometheus' Collector.

    A stall counts when the loop is late by more than ``limits.LOOP_STALL_S``; it is logged from ``LOOP_STALL_LOGGED_S``
    on.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.longest_s = 0.0
        self._log = LimitedLog(_logger)

    async def watch(self) -> NoReturn:
        """Look at the clock all the time, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + limits.LOOP_LOOK_PERIOD_S
            await asyncio.sleep(limits.LOOP_LOOK_PERIOD_S)
            self.add(loop.time() - due_s)

    def add(self, late_s: float) -> None:
        """Count by how much the loop was late."""
        if late_s <= limits.LOOP_STALL_S:
            return
        self.count += 1
        self.total_s += late_s
        self.longest_s = max(self.longest_s, late_s)
        if late_s >= limits.LOOP_STALL_LOGGED_S:
            self._log.warning("event_loop_stalled", late_ms=round(late_s * 1000))

    def collect(self) -> Iterator[Metric]:
        """Return the current values."""
        # Imported here: processes without metrics do not need it.
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        about = "How often the event loop was late by more than 50 ms"
        yield CounterMetricFamily("tailrace_loop_stalls", about, value=self.count)
        about = "How late it was, all together"
        yield CounterMetricFamily("tailrace_loop_stall_seconds", about, value=self.total_s)
        about = "How late it was at most, since the process started"
        yield GaugeMetricFamily("tailrace_loop_stall_longest_seconds", about, value=self.longest_s)
