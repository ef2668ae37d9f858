"""Finds workers that are cut off from the object store: a pure state machine (docs/design.md#failure-detection).

A worker's Lease says for how long the object store has not answered it. A worker is cut off when that is long, and
another worker that takes containers was seen to have answers for as long. When the store answers no worker, it is away
itself: nothing moves then. Nothing moves at its return either, when some workers notice it before the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class StoreSilence:
    """See the module's docstring. All times are seconds of the observer's monotonic clock."""

    def __init__(self) -> None:
        self._silent_s: dict[str, int] = {}
        self._answered_since_s: dict[str, float] = {}
        """Workers without a silence, and since when each was seen so in every look."""
        self._looked_s: float | None = None

    def look(self, now_s: float, silent_s: Mapping[str, int]) -> None:
        """Take what the Leases of all workers say now (`WorkerLease.store_silent_s`).

        After a long pause of the observer nothing is known of the time before.
        """
        if self._looked_s is None or now_s - self._looked_s > limits.WORKER_STORE_SILENT_S / 2:
            self._answered_since_s.clear()
        self._looked_s = now_s
        self._silent_s = dict(silent_s)
        before = self._answered_since_s
        self._answered_since_s = {name: before.get(name, now_s) for name, its_s in silent_s.items() if not its_s}

    def cut_off(self, now_s: float, alive: Collection[str], accepting: Collection[str]) -> list[str]:
        """Return which living workers are cut off, by name; `accepting`: those that may take their containers."""
        since_s = [self._answered_since_s[worker] for worker in accepting if worker in self._answered_since_s]
        if not since_s or now_s - min(since_s) < limits.WORKER_STORE_SILENT_S:
            return []
        return sorted(worker for worker in alive if self._silent_s.get(worker, 0) >= limits.WORKER_STORE_SILENT_S)
