"""Bounds the memory of large requests: decoded, they take many times their length (docs/design.md#memory-budgets)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class LargeRequests:
    """Room for the requests of one listener above `limits.RPC_LARGE_REQUEST_BYTES`, in the order in which they come."""

    def __init__(self) -> None:
        self._running_bytes = 0
        self._waiting_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def room(self, length_bytes: int) -> AsyncIterator[None]:
        """Wait until a request of that length may be decoded; it runs while the context lasts.

        After ``limits.RPC_REQUESTS_DEADLINE_S`` it most likely waits for its stream: others need not wait for it.

        Raises:
            UnavailableError: too many bytes of requests wait.
        """
        if length_bytes <= limits.RPC_LARGE_REQUEST_BYTES:
            yield
            return
        if self._waiting or not self._fits(length_bytes):
            await self._wait(length_bytes)
        else:
            self._running_bytes += length_bytes
        counted = True

        def end() -> None:
            nonlocal counted
            if counted:
                counted = False
                self._end(length_bytes)

        timer = asyncio.get_running_loop().call_later(limits.RPC_REQUESTS_DEADLINE_S, end)
        try:
            yield
        finally:
            timer.cancel()
            end()

    def _fits(self, length_bytes: int) -> bool:
        return self._running_bytes + length_bytes <= max(limits.RPC_LARGE_REQUESTS_MAX_BYTES, length_bytes)

    async def _wait(self, length_bytes: int) -> None:
        if self._waiting_bytes + length_bytes > limits.RPC_LARGE_REQUESTS_WAITING_MAX_BYTES:
            raise UnavailableError("too many large requests wait; try again")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (length_bytes, turn)
        self._waiting.append(waiting)
        self._waiting_bytes += length_bytes
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(waiting)
                self._waiting_bytes -= length_bytes
                self._give_turns()
            else:  # its turn came at the same time
                self._end(length_bytes)
            raise

    def _end(self, length_bytes: int) -> None:
        self._running_bytes -= length_bytes
        self._give_turns()

    def _give_turns(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            if self._waiting[0][1].cancelled():
                return  # its task goes next, and calls this again
            length_bytes, turn = self._waiting.popleft()
            self._waiting_bytes -= length_bytes
            self._running_bytes += length_bytes
            turn.set_result(None)
