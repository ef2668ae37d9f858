"""Throttles appends while Tier 2 lags behind: the less room in the cache, the slower (docs/design.md#cache).

Past a target, the admitted rate is the room left divided by a fixed time. If Tier 2 takes F bytes a second, the room
settles at F times that time. So writers slow down to the rate of the flushes, and no stall is long.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Callable


def admitted_bytes_per_s(kept_bytes: int, capacity_bytes: int) -> float:
    """Return the admitted rate of appends while so many bytes wait for Tier 2; infinite up to the target."""
    if kept_bytes <= capacity_bytes * limits.THROTTLE_TARGET:
        return math.inf
    return max((capacity_bytes - kept_bytes) / limits.THROTTLE_HORIZON_S, limits.THROTTLE_BYTES_PER_S_MIN)


class Throttle:
    """Queues the appends of all containers of a worker that exceed the admitted rate; first in, first out.

    ``kept_bytes()`` returns the bytes that wait for Tier 2. ``pressed()`` is called while they are past the target.
    """

    def __init__(self, capacity_bytes: int, kept_bytes: Callable[[], int], pressed: Callable[[], None]) -> None:
        self._capacity_bytes = capacity_bytes
        self._kept_bytes = kept_bytes
        self._pressed = pressed
        self._waiting: deque[tuple[asyncio.Future[None], int, float]] = deque()
        """Of each append that waits: its future, its length in bytes, and since when it waits."""
        self._credit_bytes = 0.0
        self._passes = 0  # admitted appends that have not asked again yet
        self._credited_s = -math.inf
        self._pressed_s = -math.inf
        self.throttled = 0
        """How many appends had to wait."""
        self.waited_s = 0.0
        """How long the admitted ones of them waited, together."""

    @property
    def waiting(self) -> int:
        """Return how many appends wait now; a cancelled one counts until its turn comes."""
        return len(self._waiting)

    def ask(self, length_bytes: int) -> asyncio.Future[None] | None:
        """Return None when an append may proceed, else a future: ask again when it is done."""
        if self._passes:
            self._passes -= 1
            return None
        rate = admitted_bytes_per_s(self._kept_bytes(), self._capacity_bytes)
        if rate == math.inf and not self._waiting:
            return None
        self._press()
        if not self._waiting:
            self._credit(rate)
            if self._credit_bytes > 0:
                self._credit_bytes -= length_bytes
                return None
            asyncio.get_running_loop().call_later(limits.THROTTLE_TICK_S, self._tick)
        self.throttled += 1
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[None] = loop.create_future()
        self._waiting.append((admitted, length_bytes, loop.time()))
        return admitted

    def _press(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._pressed_s >= limits.FLUSH_TICK_S:
            self._pressed_s = now
            self._pressed()

    def _credit(self, rate: float) -> None:
        """Add credit for the time since the last call; a pause counts as two ticks at most."""
        now = asyncio.get_running_loop().time()
        elapsed_s = min(now - self._credited_s, 2 * limits.THROTTLE_TICK_S)
        self._credited_s = now
        if rate == math.inf:
            self._credit_bytes = math.inf
            return
        if self._credit_bytes == math.inf:
            self._credit_bytes = 0.0
        self._credit_bytes = min(self._credit_bytes + elapsed_s * rate, 2 * limits.THROTTLE_TICK_S * rate)

    def _tick(self) -> None:
        self._passes = 0  # admitted appends whose connection is gone did not use theirs
        self._credit(admitted_bytes_per_s(self._kept_bytes(), self._capacity_bytes))
        while self._waiting and self._credit_bytes > 0:
            admitted, length_bytes, began_s = self._waiting.popleft()
            if admitted.done():
                continue  # cancelled
            self._credit_bytes -= length_bytes
            self._passes += 1
            self.waited_s += self._credited_s - began_s
            admitted.set_result(None)
        if self._waiting:
            self._press()
            asyncio.get_running_loop().call_later(limits.THROTTLE_TICK_S, self._tick)
