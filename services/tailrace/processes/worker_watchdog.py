"""Decides when to kill a worker process that has not ended; pure (docs/design.md#failure-detection).

A stopped process, or one with a blocked event loop, keeps the connections of its clients. They wait until their timeout
although the containers have moved; killing the process closes the connections. Both rules apply later than the lapse of
the worker's Lease, so the worker loses no container through them.
"""

from __future__ import annotations

from tailrace.common import limits


class WorkerWatchdog:
    """Watches one process by its heartbeats; times are seconds of the watching process's monotonic clock."""

    def __init__(self) -> None:
        self._beats = -1
        self._reported_s: float | None = None
        self._beat_s = 0.0
        self._checked_s: float | None = None

    def reported(self, beats: int, now_s: float) -> None:
        """Record a heartbeat report with the count of the event loop's heartbeats."""
        self._reported_s = now_s
        if beats != self._beats:
            self._beats, self._beat_s = beats, now_s

    def check(self, now_s: float) -> str:
        """Return why to kill the process, empty to keep it. Call this every ``limits.WORKER_WATCHDOG_PERIOD_S``."""
        late_s = 0.0 if self._checked_s is None else now_s - self._checked_s - limits.WORKER_WATCHDOG_PERIOD_S
        self._checked_s = now_s
        if self._reported_s is None:
            return ""  # no report yet
        if late_s > limits.WORKER_WATCHDOG_PERIOD_S:
            # The watching process was blocked itself, and has not read the reports of that time yet.
            self._reported_s += late_s
            self._beat_s += late_s
        if now_s - self._reported_s > limits.WORKER_SILENT_MAX_S:
            return f"no heartbeat for {limits.WORKER_SILENT_MAX_S:g} s"
        if now_s - self._beat_s > limits.WORKER_BLOCKED_MAX_S:
            return f"event loop blocked for {limits.WORKER_BLOCKED_MAX_S:g} s"
        return ""
