"""Sends the requests of the object log, each with a deadline, and retries unknown outcomes.

See docs/design.md#faults-of-the-log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, DeadlineError, FencedError, NotFoundError, UnavailableError
from tailrace.log.frames import HEADER_BYTES
from tailrace.storage.port import FolderStore

if TYPE_CHECKING:
    from tailrace.log.object_keys import LogKeys, ObjectName
    from tailrace.log.port import Buffer
    from tailrace.storage.port import ObjectStore

T = TypeVar("T")


def pause_s(attempt: int) -> float:
    """Return how long to wait after the failed attempt of that number (from 0)."""
    return min(limits.LOG_OBJECT_RETRY_MIN_S * 2.0 ** min(attempt, 20), limits.LOG_OBJECT_RETRY_MAX_S)


async def gather_all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order; the first error cancels the other calls and is raised."""
    tasks = [asyncio.get_running_loop().create_task(call) for call in calls]
    if not tasks:
        return []
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class ObjectRequests:
    """The object log's requests to an object store. Methods raise UnavailableError when the outcome is unknown."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def _within(self, key: str, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(limits.LOG_OBJECT_REQUEST_DEADLINE_S):
                return await call
        except TimeoutError as error:
            raise DeadlineError(f"{key}: no answer in {limits.LOG_OBJECT_REQUEST_DEADLINE_S:g} s") from error

    async def find(self, key: str) -> bytes | None:
        """Return a whole object, or None when it does not exist."""
        try:
            return await self._within(key, self._store.get(key))
        except NotFoundError:
            return None

    async def find_header(self, key: str) -> bytes | None:
        """Return the first ``HEADER_BYTES`` of a frame, or None when it does not exist. CorruptionError: too short."""
        return await self.find_start(key, HEADER_BYTES)

    async def find_start(self, key: str, length: int) -> bytes | None:
        """Return the first bytes of an object, or None when it does not exist. CorruptionError: it is shorter."""
        try:
            return await self._within(key, self._store.get_range(key, 0, length))
        except NotFoundError:
            return None

    async def create(self, key: str, data: bytes) -> None:
        """Put an object that must not exist. Raises AlreadyExistsError, perhaps because of a lost own attempt."""
        await self._within(key, self._store.put(key, [data], if_absent=True))

    async def list(self, keys: LogKeys) -> dict[ObjectName, int]:
        """Return the objects of all epochs and their lengths. The list may be outdated: it is only a hint."""
        deadline_s = limits.STORAGE_CALL_DEADLINE_S * limits.LOG_OBJECT_OPEN_ATTEMPTS  # there may be many pages
        try:
            async with asyncio.timeout(deadline_s):
                return {
                    name: info.length_bytes
                    async for info in self._store.list(keys.folder)
                    if (name := keys.parse(info.key))
                }
        except TimeoutError as error:
            raise DeadlineError(f"{keys.folder}: no list in {deadline_s:g} s") from error

    async def make_durable(self, folder: str) -> None:
        """Make durable what was found in a folder of the log: its owner may not have ended a put."""
        if isinstance(self._store, FolderStore):
            await self._within(folder, self._store.make_durable(folder))

    async def persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry a call while the store is not available, at most ``limits.LOG_OBJECT_OPEN_ATTEMPTS`` times."""
        for attempt in range(limits.LOG_OBJECT_OPEN_ATTEMPTS - 1):
            try:
                return await call()
            except FencedError:
                raise
            except UnavailableError:
                await asyncio.sleep(pause_s(attempt))
        return await call()

    async def settle(self, key: str, frame: Sequence[Buffer], attempts: int | None = None) -> None:
        """Put a frame until it is certainly stored; `attempts` None: until cancelled.

        After an unknown outcome the header is read back: its own header means success, a missing object means to put
        again. Only this owner writes under the key, so a put that is carried out late stores the same frame.

        Raises:
            CorruptionError: another object is stored under the key.
            UnavailableError: none of `attempts` had a known outcome.
        """
        attempt = 0
        while True:
            try:
                await self._within(key, self._store.put(key, frame))
                return
            except UnavailableError:
                attempt += 1
                if attempts is not None and attempt >= attempts:
                    raise
            await asyncio.sleep(pause_s(attempt - 1))
            if await self._is_there(key, frame):
                return

    async def _is_there(self, key: str, frame: Sequence[Buffer]) -> bool:
        try:
            found = await self.find_header(key)
        except UnavailableError:
            return False
        if found is not None and found != bytes(frame[0]):
            raise CorruptionError(f"object {key}", "another owner wrote here")
        return found is not None

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, in batches, until all are deleted."""
        size = limits.LOG_OBJECT_DELETE_BATCH
        batches = [keys[at : at + size] for at in range(0, len(keys), size)]
        for at in range(0, len(batches), limits.LOG_OBJECT_DELETES_MAX):
            await gather_all(self._delete(batch) for batch in batches[at : at + limits.LOG_OBJECT_DELETES_MAX])

    async def _delete(self, batch: Sequence[str]) -> None:
        attempt = 0
        while True:
            try:
                await self._within(batch[0], self._store.delete(batch))
                return
            except UnavailableError:
                await asyncio.sleep(pause_s(attempt))
                attempt += 1
