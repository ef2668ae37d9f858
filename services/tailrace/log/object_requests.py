"""Sends the requests of the object log, each with a deadline, and retries unknown outcomes.

See docs/design.md#faults-of-the-log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    CorruptionError,
    DeadlineError,
    FencedError,
    NotFoundError,
    ObjectNotDeletedError,
    UnavailableError,
)
from tailrace.log.frames import HEADER_BYTES
from tailrace.storage.port import FolderStore
from tailrace.storage.put_window import PutWindow
from tailrace.storage.request_deadline import request_deadline

if TYPE_CHECKING:
    from tailrace.log.object_keys import LogKeys, ObjectName
    from tailrace.log.port import Buffer
    from tailrace.storage.port import ObjectStore

T = TypeVar("T")
_LOG = structlog.get_logger(__name__)


def put_deadline_s(length_bytes: int, timeouts: int) -> float:
    """Return the deadline of the put of a frame after so many attempts that had no answer in time."""
    longer_s = timeouts * length_bytes / limits.LOG_OBJECT_PUT_BYTES_PER_S
    return min(limits.LOG_OBJECT_REQUEST_DEADLINE_S + longer_s, limits.LOG_OBJECT_PUT_DEADLINE_MAX_S)


def frame_window() -> PutWindow:
    """Return the window of the puts of frames, which all logs of a process share."""
    return PutWindow(limits.LOG_OBJECT_PROCESS_PUTS_MAX)


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

    def __init__(self, store: ObjectStore, window: PutWindow | None = None) -> None:
        """``window``: bounds the puts of frames, shared by the logs of a process; None: its own."""
        self._store = store
        self._window = window or frame_window()

    async def _within(self, key: str, call: Awaitable[T]) -> T:
        async with request_deadline(key, limits.LOG_OBJECT_REQUEST_DEADLINE_S):
            return await call

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
        found = await self.list_keys(keys.folder)
        return {name: length for key, length in found.items() if (name := keys.parse(key))}

    async def list_keys(self, folder: str) -> dict[str, int]:
        """Return all objects of a log and their lengths, also its claims; see `list`."""
        deadline_s = limits.STORAGE_CALL_DEADLINE_S * limits.LOG_OBJECT_OPEN_ATTEMPTS  # there may be many pages
        async with request_deadline(folder, deadline_s):
            return {info.key: info.length_bytes async for info in self._store.list(folder)}

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

    async def settle(
        self, key: str, frame: Sequence[Buffer], attempts: int | None = None, *, in_turn: bool = False
    ) -> None:
        """Put a frame until it is certainly stored; `attempts` None: until cancelled. `in_turn`: in the window of puts.

        After an unknown outcome the header is read back: its own header means success, a missing object means to put
        again. Only this owner writes under the key, so a put that is carried out late stores the same frame. No other
        deadline depends on that of a put: it decides only when the put is repeated. A frame keeps its turn until its
        deadline grows no more: one that does not get through even then lets the others try.

        Raises:
            CorruptionError: another object is stored under the key.
            UnavailableError: none of `attempts` had a known outcome.
        """
        turn = self._window.turn() if in_turn else None
        attempt = timeouts = 0
        length = sum(map(len, frame))
        while True:
            deadline_s = put_deadline_s(length, timeouts)
            try:
                await self._put(key, frame, deadline_s, turn)
                return
            except UnavailableError as error:
                attempt += 1
                if attempts is not None and attempt >= attempts:
                    raise
                if isinstance(error, DeadlineError):
                    timeouts += 1
                    self._report(key, length, timeouts)
                    if turn is not None and deadline_s >= limits.LOG_OBJECT_PUT_DEADLINE_MAX_S:
                        turn = self._window.turn()
            await asyncio.sleep(pause_s(attempt - 1))
            if await self._is_there(key, frame):
                return

    async def _put(self, key: str, frame: Sequence[Buffer], deadline_s: float, turn: int | None) -> None:
        slot = contextlib.nullcontext() if turn is None else self._window.slot(sum(map(len, frame)), turn)
        async with slot, request_deadline(key, deadline_s):
            await self._store.put(key, frame)

    def _report(self, key: str, length_bytes: int, timeouts: int) -> None:
        """Log that a frame is not stored although it was sent several times."""
        now_s = asyncio.get_running_loop().time()
        if timeouts >= limits.LOG_OBJECT_PUT_TIMEOUTS_REPORT and self._window.may_report(now_s):
            seconds = put_deadline_s(length_bytes, timeouts - 1)
            _LOG.warning(
                "log_frame_not_stored",
                object=key,
                bytes=length_bytes,
                timeouts=timeouts,
                seconds=seconds,
                puts_at_a_time=self._window.size,
            )

    async def _is_there(self, key: str, frame: Sequence[Buffer]) -> bool:
        try:
            found = await self.find_header(key)
        except UnavailableError:
            return False
        if found is not None and found != bytes(frame[0]):
            raise CorruptionError(f"object {key}", "another owner wrote here")
        return found is not None

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, in batches, until all are deleted that the store deletes."""
        size = limits.LOG_OBJECT_DELETE_BATCH
        batches = [keys[at : at + size] for at in range(0, len(keys), size)]
        for at in range(0, len(batches), limits.LOG_OBJECT_DELETES_MAX):
            await gather_all(self._delete(batch) for batch in batches[at : at + limits.LOG_OBJECT_DELETES_MAX])

    async def _delete(self, batch: Sequence[str]) -> None:
        """Delete objects until all are deleted, but for those that the store refuses again and again.

        These stay: no owner reads them, and the next one tries it again.
        """
        left, attempt, refusals = list(batch), 0, Counter[str]()
        while left:
            try:
                await self._within(left[0], self._store.delete(left))
                return
            except ObjectNotDeletedError as error:
                refusals[error.key] += 1
                if error.key in left and refusals[error.key] == limits.LOG_OBJECT_DELETE_REFUSALS_MAX:
                    left.remove(error.key)
                    _LOG.warning("log_object_not_deleted", object=error.key, reason=str(error))
            except UnavailableError:
                pass
            await asyncio.sleep(pause_s(attempt))
            attempt += 1
