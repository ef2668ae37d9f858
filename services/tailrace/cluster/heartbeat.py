"""The heartbeat rule: a busy event loop keeps its Lease, a blocked one loses it (docs/design.md#failure-detection).

The event loop counts heartbeats. The thread that renews the worker's Lease reads the count, and renews while the last
heartbeat is recent. So a slow loop or a garbage collection costs nothing. A loop without a heartbeat for
``limits.HEARTBEAT_FRESH_S`` answers no client, so its Lease lapses.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from typing import NoReturn


class Heart:
    """Counts the heartbeats of an event loop; other threads read the count."""

    def __init__(self) -> None:
        self.beats = 0

    async def beat(self) -> NoReturn:
        """Beat until cancelled; the watched event loop runs this."""
        while True:
            self.beats += 1
            await asyncio.sleep(limits.HEARTBEAT_S)


class HeartbeatRule:
    """Decides whether to renew; pure. Times are seconds of the renewer's monotonic clock."""

    def __init__(self, now_s: float, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._beats = -1
        self._beaten_s = now_s

    def may_renew(self, beats: int, now_s: float) -> bool:
        """Return whether the count of `beats` rose within ``fresh_s``."""
        if beats != self._beats:
            self._beats = beats
            self._beaten_s = now_s
        return now_s - self._beaten_s <= self._fresh_s
