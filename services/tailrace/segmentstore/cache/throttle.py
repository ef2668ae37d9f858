"""Throttles appends while Tier 2 lags behind: the less room in the cache, the slower (docs/design.md#cache).

Past a target, the admitted rate is the room left divided by a fixed time. If Tier 2 takes F bytes a second, the room
settles at F times that time. So writers slow down to the rate of the flushes, and no stall is long.

An append that is admitted and longer than that room keeps its turn until it fits: later ones wait behind it. Otherwise
small appends would take what becomes free, and it would wait as long as they come.

Appends to internal segments have credit of their own, so they do not queue behind writers; those that find no room go
on before all others. Beyond that credit they queue like all others: otherwise they could take all that Tier 2 frees.

An append whose future is done before its turn was given up: it leaves at once, with its data, and takes no credit.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.segmentstore.api import AppendRequest


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
        self._waiting: OrderedDict[asyncio.Future[None], tuple[AppendRequest, float]] = OrderedDict()
        """Each append that waits for its turn, and since when it waits, by its future."""
        self._turns = itertools.count(1)
        self._first_turns = itertools.count(-(1 << 62))
        self._unfit: dict[int, tuple[asyncio.Future[None], int]] = {}
        """Future and length in bytes of each append that had its turn and waits for room, by that turn."""
        self._unfit_turns: list[int] = []
        """A heap of their turns. At most half of it are of appends that were given up."""
        self._looks = False
        """One of them was woken in this tick and looks for room: later appends wait."""
        self._ticks = False
        self._credit_bytes = 0.0
        self._credited_s = -math.inf
        self._internal_credit_bytes = 0.0
        self._internal_credited_s = -math.inf
        self._pressed_s = -math.inf
        self.throttled = 0
        """How many appends had to wait."""
        self.waited_s = 0.0
        """How long the admitted ones of them waited, together."""

    @property
    def waiting(self) -> int:
        """Return how many appends wait now."""
        return len(self._waiting) + len(self._unfit)

    def ask(self, request: AppendRequest, *, internal: bool = False) -> asyncio.Future[None] | None:
        """Return None when an append may proceed, else a future of its own: ask again when it is done, or cancel it.

        ``internal``: it is to an internal segment. When it proceeds by their credit, its turn is before all others'.
        """
        if request.turn:
            return None
        rate = admitted_bytes_per_s(self._kept_bytes(), self._capacity_bytes)
        is_first = not (self._waiting or self._unfit or self._looks)
        if is_first and rate == math.inf:
            return None
        self._press()
        if internal and self._has_internal_credit(request.length):
            request.turn = next(self._first_turns)
            return None
        if is_first:
            self._credit(rate)
            if self._credit_bytes > 0:
                self._credit_bytes -= request.length
                return None
        self.throttled += 1
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[None] = loop.create_future()
        self._waiting[admitted] = request, loop.time()
        admitted.add_done_callback(self._leave)
        self._tick_later()
        return admitted

    def wait_room(self, request: AppendRequest) -> asyncio.Future[None]:
        """Return a future for an append that had its turn and finds no room: submit it again when it is done."""
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = request.turn = request.turn or next(self._turns)
        self._unfit[turn] = room, request.length
        heapq.heappush(self._unfit_turns, turn)
        room.add_done_callback(partial(self._leave_unfit, turn))
        self._tick_later()
        return room

    def _leave(self, admitted: asyncio.Future[None]) -> None:
        """Forget an append that was given up; one whose turn came has left already."""
        self._waiting.pop(admitted, None)

    def _leave_unfit(self, turn: int, room: asyncio.Future[None]) -> None:
        """As `_leave`, of an append that waited for room. It may wait again, by another future."""
        waiting = self._unfit.get(turn)
        if waiting is None or waiting[0] is not room:
            return
        del self._unfit[turn]
        if len(self._unfit_turns) > 2 * len(self._unfit):
            self._unfit_turns = sorted(self._unfit)  # a sorted list is a heap

    def _tick_later(self) -> None:
        if not self._ticks:
            self._ticks = True
            asyncio.get_running_loop().call_later(limits.THROTTLE_TICK_S, self._tick)

    def _press(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._pressed_s >= limits.FLUSH_TICK_S:
            self._pressed_s = now
            self._pressed()

    def _has_internal_credit(self, length_bytes: int) -> bool:
        """Add credit for the time since the last call, and take that of an append from it."""
        now = asyncio.get_running_loop().time()
        rate = limits.THROTTLE_INTERNAL_BYTES_PER_S
        added = rate * min(now - self._internal_credited_s, limits.THROTTLE_INTERNAL_BURST_S)
        self._internal_credited_s = now
        burst_bytes = rate * limits.THROTTLE_INTERNAL_BURST_S
        self._internal_credit_bytes = min(self._internal_credit_bytes + added, burst_bytes)
        if self._internal_credit_bytes <= 0:
            return False
        self._internal_credit_bytes -= length_bytes
        return True

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
        kept_bytes = self._kept_bytes()
        self._credit(admitted_bytes_per_s(kept_bytes, self._capacity_bytes))
        self._looks = self._wake_unfit(self._capacity_bytes - kept_bytes)
        while self._waiting and not self._looks and self._credit_bytes > 0:
            admitted, (request, began_s) = self._waiting.popitem(last=False)
            if admitted.done():
                continue  # given up
            self._credit_bytes -= request.length
            self.waited_s += self._credited_s - began_s
            request.turn = next(self._turns)
            admitted.set_result(None)
        if self._waiting or self._unfit or self._looks:
            self._press()
            self._tick_later()

    def _wake_unfit(self, room_bytes: int) -> bool:
        """Let the first one whose turn it was look for room, and those behind it that fit, too; return whether any did.

        Only the cache knows exactly whether one fits. Those that do not come back, to their place.
        """
        woken = False
        while self._unfit_turns:
            turn = self._unfit_turns[0]
            waiting = self._unfit.get(turn)
            if waiting is not None and not waiting[0].done():
                room, length_bytes = waiting
                if woken and room_bytes < length_bytes:
                    break
                room_bytes -= length_bytes
                room.set_result(None)
                woken = True
            heapq.heappop(self._unfit_turns)
            self._unfit.pop(turn, None)
        return woken
