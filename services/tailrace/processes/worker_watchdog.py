"""When a worker's process is given up although it has not ended; pure (design §9).

A process that stands still, or whose loop hangs, keeps the connections of its clients, which wait for it for their
whole patience although its containers have moved. Ending it closes them. Both rules are later than the lapse of its
Lease, so nobody loses what the worker would have kept.
"""

from __future__ import annotations

from tailrace.common import limits


class WorkerWatchdog:
    """Watches one process by its beats; times are seconds of the watcher's own monotonic clock."""

    def __init__(self) -> None:
        self._beats = -1
        self._heard_s: float | None = None
        self._beaten_s = 0.0
        self._looked_s: float | None = None

    def heard(self, beats: int, now_s: float) -> None:
        """A beat came, with the count of the loop's beats."""
        self._heard_s = now_s
        if beats != self._beats:
            self._beats, self._beaten_s = beats, now_s

    def look(self, now_s: float) -> str:
        """Why the process is to be ended; empty: it is not. To be called every ``limits.WORKER_WATCHDOG_PERIOD_S``."""
        late_s = 0.0 if self._looked_s is None else now_s - self._looked_s - limits.WORKER_WATCHDOG_PERIOD_S
        self._looked_s = now_s
        if self._heard_s is None:
            return ""  # it has not begun to beat
        if late_s > limits.WORKER_WATCHDOG_PERIOD_S:
            # The watcher stood still itself, and has not heard yet what was said meanwhile.
            self._heard_s += late_s
            self._beaten_s += late_s
        if now_s - self._heard_s > limits.WORKER_SILENT_MAX_S:
            return f"it stands still for {limits.WORKER_SILENT_MAX_S:g} s"
        if now_s - self._beaten_s > limits.WORKER_BLOCKED_MAX_S:
            return f"its loop hangs for {limits.WORKER_BLOCKED_MAX_S:g} s"
        return ""
