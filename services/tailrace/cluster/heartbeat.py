"""The heartbeat rule: load is not death, a loop that hangs is (design §9).

The event loop beats; who renews the worker's Lease runs outside of it and sees the beats. As long as it saw one lately
it renews, so a loop that is slow, or whose garbage is collected, costs nothing. A loop that makes no beat for
``limits.HEARTBEAT_FRESH_S`` answers nobody, and is let go.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from typing import NoReturn


class Heart:
    """Counts the beats of a loop; read from other threads."""

    def __init__(self) -> None:
        self.beats = 0

    async def beat(self) -> NoReturn:
        """Beat until cancelled; run by the loop that is to be watched."""
        while True:
            self.beats += 1
            await asyncio.sleep(limits.HEARTBEAT_S)


class HeartbeatRule:
    """Whether to renew; pure. Times are seconds of the renewer's own monotonic clock."""

    def __init__(self, now_s: float, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._beats = -1
        self._beaten_s = now_s

    def may_renew(self, beats: int, now_s: float) -> bool:
        """Whether a new beat was seen within ``fresh_s``; `beats` is the count now."""
        if beats != self._beats:
            self._beats = beats
            self._beaten_s = now_s
        return now_s - self._beaten_s <= self._fresh_s
