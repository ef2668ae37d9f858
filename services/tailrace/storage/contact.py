"""For how long an object store has not served a process (docs/design.md#failure-detection).

A worker that cannot reach the object store, or that the store refuses, cannot write its logs, though Kubernetes sees it
renew its Lease. The placer gives its containers to other workers while the store serves those. Requests are counted
besides.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import (
    DeadlineError,
    NoSuchBucketError,
    NotFoundError,
    ObjectNotDeletedError,
    TailraceError,
    UnavailableError,
)
from tailrace.storage.figures import StoreFigures, kind_of
from tailrace.storage.port import FolderStore
from tailrace.storage.request_deadline import deadline_passed, request_deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from typing import NoReturn

    from tailrace.storage.port import Buffer, ObjectInfo, ObjectStore


class StoreContact:
    """Since when requests have had no answer; pure. All times are seconds of one monotonic clock.

    Any answer counts, also that there is no such object. A deadline, a lost connection or an error of the store is
    none, and neither is a refusal, such as 403 for keys that were revoked; ``refusal`` distinguishes that.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[int, float] = {}
        """Start of each request under way, oldest first; requests are bounded by those who make them."""
        self._failed_s: float | None = None
        """Start of the oldest request that failed since the last answer."""
        self._answered_s: float | None = None
        self.refusal = ""
        """With which error the store refuses requests at present: the first one since it did otherwise; else empty.

        The first one, because each further request may have another text, and Leases and conditions show it."""
        self.figures = StoreFigures()

    def began(self, now_s: float) -> int:
        """Record the start of a request; return its number for `ended`."""
        number = next(self._numbers)
        self._waiting[number] = now_s
        return number

    def ended(self, number: int, now_s: float, *, answered: bool, refusal: str | None = "") -> None:
        """Record the end of a request, and the error with which it was refused; None: nothing is known of that."""
        began_s = self._waiting.pop(number)
        if refusal is not None:
            self.refusal = refusal and (self.refusal or refusal)
        if answered:
            self._answered_s, self._failed_s = now_s, None
        elif self._failed_s is None:
            self._failed_s = began_s

    def silent_s(self, now_s: float) -> float:
        """Return for how long the store has left requests without an answer; 0.0 when there are none."""
        begun = [*itertools.islice(self._waiting.values(), 1), *([] if self._failed_s is None else [self._failed_s])]
        if not begun:
            return 0.0
        since_s = min(begun)
        return now_s - (since_s if self._answered_s is None else max(since_s, self._answered_s))

    def is_due(self, now_s: float, quiet_s: float = limits.WORKER_STORE_PROBE_S) -> bool:
        """Return whether to make a request, because there was no answer for ``limits.WORKER_STORE_PROBE_S``.

        While no request is left without one, ``quiet_s`` counts in its place.
        """
        longest_s = limits.WORKER_STORE_PROBE_S if self.silent_s(now_s) else quiet_s
        return self._answered_s is None or now_s - self._answered_s >= longest_s

    def trouble(self, now_s: float) -> str:
        """Return what the store does instead of answering, and for how long; empty: it answers."""
        return silence(int(self.silent_s(now_s)), self.refusal)[0]


def silence(silent_s: int, refusal: str) -> tuple[str, str]:
    """Return what an object store does instead of answering, and the same without a time; empty: it answers."""
    if silent_s < limits.WORKER_STORE_SILENT_S:
        return "", ""
    if refusal:
        text = f"the object store has refused requests for {silent_s} s: {refusal}"
        return text, f"the object store refuses requests: {refusal}"
    return f"the object store has not answered for {silent_s} s", "the object store does not answer"


def _is_answer(error: BaseException) -> bool:
    """Return whether the store has answered with this error: it serves other requests."""
    if isinstance(error, ObjectNotDeletedError):
        return True
    return isinstance(error, TailraceError | StopAsyncIteration) and not isinstance(error, UnavailableError)


def _refusal(error: BaseException | None) -> str | None:
    """Return the text of an error with which a store refuses requests; empty: of another end; None: it was given up."""
    if isinstance(error, asyncio.CancelledError):
        return None
    refuses = isinstance(error, NoSuchBucketError) or kind_of(error) == "denied"
    return str(error)[: limits.WORKER_STORE_REFUSAL_MAX_CHARACTERS] if refuses else ""


class ContactStore:
    """An object store whose requests a `StoreContact` follows and counts."""

    def __init__(self, store: ObjectStore, contact: StoreContact) -> None:
        self._store = store
        self._contact = contact

    @contextmanager
    def _request(self, operation: str, *, continued: bool = False) -> Iterator[None]:
        """Follow a request; `continued`: it is a further part of one that was counted."""
        loop, figures = asyncio.get_running_loop(), self._contact.figures
        failed: BaseException | None = None
        began_s, answered = loop.time(), False
        number = self._contact.began(began_s)
        if not continued:
            figures.count(operation)
        try:
            yield
            answered = True
        except asyncio.CancelledError as error:
            failed = DeadlineError(f"{operation}: no answer in time") if deadline_passed() else error
            raise
        except BaseException as error:
            failed = error
            answered = _is_answer(error)
            raise
        finally:
            now_s = loop.time()
            self._contact.ended(number, now_s, answered=answered, refusal=_refusal(failed))
            figures.ended(operation, now_s - began_s, failed)

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See ObjectStore.put."""
        with self._request("put"):
            await self._store.put(key, data, if_absent=if_absent)

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        with self._request("get"):
            return await self._store.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        with self._request("get"):
            return await self._store.get_range(key, offset, length)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list. Waiting for each object is followed alone, so that a reader's pauses do not count."""
        found, continued = self._store.list(prefix).__aiter__(), False
        while True:
            try:
                with self._request("list", continued=continued):
                    each = await found.__anext__()
            except StopAsyncIteration:
                return
            continued = True
            yield each

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        with self._request("delete"):
            await self._store.delete(keys)

    async def close(self) -> None:
        """See ObjectStore.close."""
        await self._store.close()


class ContactFolder(ContactStore):
    """A `ContactStore` of a folder; what only a folder does is not counted as a request."""

    def __init__(self, store: ObjectStore, folder: FolderStore, contact: StoreContact) -> None:
        super().__init__(store, contact)
        self._folder = folder

    async def list_parts(self, prefix: str, limit: int) -> list[ObjectInfo]:
        """See UploadParts.list_parts."""
        return await self._folder.list_parts(prefix, limit)

    async def delete_parts(self, names: Sequence[str]) -> int:
        """See UploadParts.delete_parts."""
        return await self._folder.delete_parts(names)

    async def make_durable(self, folder: str) -> None:
        """See FolderStore.make_durable."""
        await self._folder.make_durable(folder)


def with_contact(store: ObjectStore, contact: StoreContact) -> ObjectStore:
    """Return the store with requests that `contact` follows and counts."""
    if isinstance(store, FolderStore):
        return ContactFolder(store, store, contact)
    return ContactStore(store, contact)


async def keep_contact(
    store: ObjectStore, contact: StoreContact, key: str, quiet_s: float = limits.WORKER_STORE_PROBE_S
) -> NoReturn:
    """Ask for an object, `key`, whenever there was no answer for a while, so that silence is known. Until cancelled.

    ``quiet_s`` is that while as long as no request is left without an answer.
    """
    loop = asyncio.get_running_loop()
    while True:
        if contact.is_due(loop.time(), quiet_s):
            try:
                async with request_deadline(key, limits.WORKER_STORE_PROBE_DEADLINE_S):
                    await store.get(key)
            except (NotFoundError, UnavailableError):
                pass  # `contact` knows
        await asyncio.sleep(limits.WORKER_STORE_PROBE_S / 4)
