"""Throttles appends while Tier 2 lags behind: the less room in the cache, the slower (docs/design.md#cache).

Past a target, the admitted rate is the room left divided by a fixed time. If Tier 2 takes F bytes a second, the room
settles at F times that time. So writers slow down to the rate of the flushes, and no stall is long.

An append that was admitted and finds no room in the cache, because it is large, keeps its place: none goes before it,
and it pays for its admission once.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Callable


def admitted_bytes_per_s(kept_bytes: int, capacity_bytes: int) -> float:
    """Return the admitted rate of appends while so many bytes wait for Tier 2; infinite up to the target."""
    if kept_bytes <= capacity_bytes * limits.THROTTLE_TARGET:
        return math.inf
    return max((capacity_bytes - kept_bytes) / limits.THROTTLE_HORIZON_S, limits.THROTTLE_BYTES_PER_S_MIN)


@dataclass(slots=True)
class _Waiting:
    """An append that waits since ``began_s``. ``blocks``: of the cache that an admitted one needs."""

    request: object
    length_bytes: int
    blocks: int
    began_s: float
    admitted: asyncio.Future[None]


class Throttle:
    """Queues the appends of all containers of a worker that exceed the admitted rate; first in, first out.

    ``kept_bytes()`` returns the bytes that wait for Tier 2. ``pressed()`` is called while they are past the target.
    ``has_room(blocks)`` says whether the cache may have room for so many blocks.
    """

    def __init__(
        self,
        capacity_bytes: int,
        kept_bytes: Callable[[], int],
        pressed: Callable[[], None],
        has_room: Callable[[int], bool],
    ) -> None:
        self._capacity_bytes = capacity_bytes
        self._kept_bytes = kept_bytes
        self._pressed = pressed
        self._has_room = has_room
        self._waiting: deque[_Waiting] = deque()
        self._without_room: deque[_Waiting] = deque()
        """Admitted appends that found no room in the cache; they go before all others."""
        self._credit_bytes = 0.0
        self._passes: dict[int, tuple[object, float]] = {}
        """Admitted appends that have not asked again yet, by identity, and since when."""
        self._ticks = False
        self._credited_s = -math.inf
        self._pressed_s = -math.inf
        self.throttled = 0
        """How many appends had to wait."""
        self.waited_s = 0.0
        """How long the admitted ones of them waited, together."""

    @property
    def waiting(self) -> int:
        """Return how many appends wait now; a cancelled one counts until its turn comes."""
        return len(self._waiting) + len(self._without_room)

    def ask(self, request: object, length_bytes: int) -> asyncio.Future[None] | None:
        """Return None when an append may proceed, else a future: ask again, for the same one, when it is done."""
        if self._passes and self._passes.pop(id(request), None) is not None:
            return None
        rate = admitted_bytes_per_s(self._kept_bytes(), self._capacity_bytes)
        is_first = not (self._waiting or self._without_room or self._passes)
        if rate == math.inf and is_first:
            return None
        self._press()
        if is_first:
            self._credit(rate)
            if self._credit_bytes > 0:
                self._credit_bytes -= length_bytes
                return None
        self.throttled += 1
        return self._wait(self._waiting, request, length_bytes, 0)

    def wait_for_room(self, request: object, blocks: int) -> asyncio.Future[None]:
        """Let an admitted append wait for room in the cache, before all that were not admitted; as `ask`."""
        self._press()
        return self._wait(self._without_room, request, 0, blocks)

    def _wait(self, queue: deque[_Waiting], request: object, length_bytes: int, blocks: int) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[None] = loop.create_future()
        queue.append(_Waiting(request, length_bytes, blocks, loop.time(), admitted))
        self._tick_later()
        return admitted

    def _tick_later(self) -> None:
        if not self._ticks:
            self._ticks = True
            asyncio.get_running_loop().call_later(limits.THROTTLE_TICK_S, self._tick)

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
        self._ticks = False
        self._credit(admitted_bytes_per_s(self._kept_bytes(), self._capacity_bytes))
        for key, (_, since_s) in list(self._passes.items()):
            if self._credited_s - since_s > limits.THROTTLE_PASS_S:
                del self._passes[key]  # its connection is gone
        blocks = 0
        while self._without_room and self._has_room(blocks + self._without_room[0].blocks):
            blocks += self._without_room[0].blocks
            self._admit(self._without_room.popleft())
        while self._waiting and self._credit_bytes > 0 and not self._without_room:
            self._admit(self._waiting.popleft())
        if self.waiting:
            self._press()
        if self.waiting or self._passes:
            self._tick_later()

    def _admit(self, append: _Waiting) -> None:
        if append.admitted.done():
            return  # cancelled
        self._credit_bytes -= append.length_bytes
        self._passes[id(append.request)] = append.request, self._credited_s
        self.waited_s += self._credited_s - append.began_s
        append.admitted.set_result(None)
