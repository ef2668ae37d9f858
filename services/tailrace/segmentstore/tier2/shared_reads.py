"""Reads of Tier 2 that are under way: calls that need the same bytes at the same time share one read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from tailrace.common.errors import ContainerStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

T = TypeVar("T")


class Spawn(Protocol):
    """Starts a task whose result the caller awaits."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        """Return the task of `work`."""
        ...


def spawn_plainly(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task of the event loop that no container owns."""
    return asyncio.get_running_loop().create_task(work)


class SharedReads:
    """The reads of one container that are under way, by what they read.

    A read is a task of its own, so that a call that is cancelled leaves it to the others. It is cancelled when the last
    call is gone. So there are never more reads than calls that wait. A read that ended is forgotten at once: the next
    call begins a new one, also after an error.
    """

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._reads: dict[Hashable, SharedRead[Any]] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def __contains__(self, key: Hashable) -> bool:
        """Return whether a read of `key` is under way."""
        read = self._reads.get(key)
        return read is not None and not read.task.done()

    def join(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, T]]) -> SharedRead[T]:
        """Join the read of `key`, or begin it. Await `SharedRead.result` afterwards, exactly once.

        All calls with one key must read the same: `key` says what `begin` reads.
        """
        read = cast("SharedRead[T] | None", self._reads.get(key))
        if read is None or read.task.done():
            read = SharedRead(self, key, self._spawn(begin()))
            self._reads[key] = read
        read.waiting += 1
        return read

    async def read(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what the read of `key` returns; begin it unless it is under way.

        Raises:
            ContainerStoppedError: the container stopped meanwhile. Else what `begin` raises, in each call that waits.
        """
        return await self.join(key, begin).result()

    def forget(self, read: SharedRead[Any]) -> None:
        """Let the next call for the same begin a new read."""
        if self._reads.get(read.key) is read:
            del self._reads[read.key]


class SharedRead(Generic[T]):
    """One read that is under way, and how many calls wait for it."""

    __slots__ = ("_reads", "key", "task", "waiting")

    def __init__(self, reads: SharedReads, key: Hashable, task: asyncio.Task[T]) -> None:
        self._reads = reads
        self.key = key
        self.task = task
        self.waiting = 0
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._reads.forget(self)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the calls may be gone

    async def result(self) -> T:
        """Wait for the read. Raises what `SharedReads.read` raises."""
        try:
            await asyncio.wait([self.task])
        finally:
            self.waiting -= 1
            if not self.waiting and not self.task.done():
                self._reads.forget(self)
                self.task.cancel()
        if self.task.cancelled():
            raise ContainerStoppedError("the container stopped during a read of Tier 2")
        return self.task.result()
