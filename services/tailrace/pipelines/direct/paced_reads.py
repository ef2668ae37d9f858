"""Reads of an object store that asks to slow down (docs/spark-direct.md#slow-down)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from tailrace.common import limits
from tailrace.common.errors import IllegalStateError, SlowDownError
from tailrace.storage.put_window import RequestWindow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tailrace.common.ports import Entropy
    from tailrace.storage.port import Buffer, ObjectInfo, ObjectStore

T = TypeVar("T")


class PacedReads:
    """Reads that pause together and are repeated when the store asks to slow down; the port without writes.

    After a refusal no read begins before a pause has passed, and half as many run at a time, down to one; each read
    that succeeds lets one more run. The pause doubles, up to a bound, while reads that begin after it are refused.
    Reads fail when ``limits.DIRECT_REFUSALS_MAX`` rounds of them were refused and none succeeded. Jitter keeps tasks
    from reading at the same time.
    """

    def __init__(self, store: ObjectStore, entropy: Entropy) -> None:
        self._store = store
        self._entropy = entropy
        self._window = RequestWindow(limits.DIRECT_READS_MAX, SlowDownError)
        self._refusals = 0
        """Pauses since the last read that succeeded."""
        self._pause_s = 0.0
        self._paused_at_s = float("-inf")
        self._resume_at_s = float("-inf")

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get. Raises SlowDownError."""
        return await self._paced(lambda: self._store.get(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ObjectStore.get_range. Raises SlowDownError."""
        return await self._paced(lambda: self._store.get_range(key, offset, length))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list; the whole list is in memory. Raises SlowDownError."""

        async def listed() -> list[ObjectInfo]:
            return [info async for info in self._store.list(prefix)]

        for info in await self._paced(listed):
            yield info

    async def _paced(self, read: Callable[[], Awaitable[T]]) -> T:
        loop, turn = asyncio.get_running_loop(), self._window.turn()
        while True:
            try:
                async with self._window.request(turn):
                    await self._pause()
                    began_s = loop.time()
                    found = await read()
            except SlowDownError:
                self._slow_down(began_s)
                if self._refusals >= limits.DIRECT_REFUSALS_MAX:
                    raise
            else:
                self._refusals = 0
                self._pause_s /= 2
                return found

    async def _pause(self) -> None:
        left_s = self._resume_at_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)

    def _slow_down(self, began_s: float) -> None:
        """Begin a pause, unless the refused read began before the last pause did."""
        now_s = asyncio.get_running_loop().time()
        if began_s < self._paused_at_s:
            return
        self._refusals += 1
        self._pause_s = min(max(2 * self._pause_s, limits.DIRECT_PAUSE_MIN_S), limits.DIRECT_PAUSE_MAX_S)
        self._paused_at_s = now_s
        self._resume_at_s = now_s + self._pause_s * (1 + self._entropy.uniform()) / 2

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Refuse."""
        raise IllegalStateError(f"a direct read does not write object {key}")

    async def delete(self, keys: Sequence[str]) -> None:
        """Refuse."""
        raise IllegalStateError(f"a direct read does not delete objects {list(keys)}")

    async def close(self) -> None:
        """See ObjectStore.close."""
        await self._store.close()
