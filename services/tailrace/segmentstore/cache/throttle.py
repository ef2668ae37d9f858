"""How fast appends are admitted while Tier 2 lags behind: slower the less room is left, never all at once (design §8).

Past a target, so many bytes are admitted per second that the room that is left would last for a fixed time. Where
Tier 2 takes F bytes a second, the room settles at F times that time: writers are slowed down to the rate of the
flushes, whatever that is, and no stall is long.
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
    """The rate at which appends are admitted when so many bytes wait for Tier 2; infinite up to the target."""
    if kept_bytes <= capacity_bytes * limits.THROTTLE_TARGET:
        return math.inf
    return max((capacity_bytes - kept_bytes) / limits.THROTTLE_HORIZON_S, limits.THROTTLE_BYTES_PER_S_MIN)


class Throttle:
    """Appends of all containers of a worker that wait for their turn, first come, first served.

    ``kept_bytes()`` says how much waits for Tier 2; ``pressed()`` is called while it is past the target.
    """

    def __init__(self, capacity_bytes: int, kept_bytes: Callable[[], int], pressed: Callable[[], None]) -> None:
        self._capacity_bytes = capacity_bytes
        self._kept_bytes = kept_bytes
        self._pressed = pressed
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._credit_bytes = 0.0
        self._passes = 0  # of those whose turn has come and who have not asked again yet
        self._credited_s = -math.inf
        self._pressed_s = -math.inf
        self.throttled = 0

    def ask(self, length_bytes: int) -> asyncio.Future[None] | None:
        """Whether an append may go on; else a future: ask again when it is done."""
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
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, length_bytes))
        return turn

    def _press(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._pressed_s >= limits.FLUSH_TICK_S:
            self._pressed_s = now
            self._pressed()

    def _credit(self, rate: float) -> None:
        """Credit for the time since the last time; of a pause no more than one tick counts."""
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
        self._passes = 0  # those who went away took theirs with them
        self._credit(admitted_bytes_per_s(self._kept_bytes(), self._capacity_bytes))
        while self._waiting and self._credit_bytes > 0:
            turn, length_bytes = self._waiting.popleft()
            if turn.done():
                continue  # cancelled
            self._credit_bytes -= length_bytes
            self._passes += 1
            turn.set_result(None)
        if self._waiting:
            self._press()
            asyncio.get_running_loop().call_later(limits.THROTTLE_TICK_S, self._tick)
