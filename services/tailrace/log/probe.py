"""Checks that a store has the properties that the object log needs, before the log uses it (docs/design.md#object-log).

The log needs linearizable reads and writes: a read finds an object that was put before it, also when the last read
found nothing. It also needs put-if-absent. A store that ignores conditions lets every put succeed: two owners would
both believe that they hold a claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError, NoSuchBucketError, NotFoundError, StartError, UnavailableError
from tailrace.log.object_requests import ObjectRequests, gather_all

if TYPE_CHECKING:
    from tailrace.storage.port import ObjectStore


async def probe_conditions(store: ObjectStore, nonce: str, place: str = "the object store") -> None:
    """Check a store with objects below ``probe/<nonce>/``, and delete them; `nonce` must be new.

    Raises:
        StartError: the store cannot hold a log; the text names `place` and the missing property.
        UnavailableError: the store does not answer reliably enough for a result.
    """
    for attempt in range(limits.LOG_PROBE_ATTEMPTS):
        probe = _Probe(store, f"probe/{nonce}/{attempt}", place)
        try:
            await probe.run()
            return
        except NoSuchBucketError as error:
            raise StartError(f"{place} cannot hold the log: it does not exist") from error
        except UnavailableError:
            if attempt == limits.LOG_PROBE_ATTEMPTS - 1:
                raise
        finally:
            await probe.clean_up()


class _Probe:
    """One attempt. After an UnavailableError an outcome is unknown, so the next attempt uses other keys."""

    def __init__(self, store: ObjectStore, folder: str, place: str) -> None:
        self._store = store
        self._requests = ObjectRequests(store)
        self._folder = folder
        self._place = place
        self._keys: list[str] = []

    async def run(self) -> None:
        for number in range(limits.LOG_PROBE_ROUNDS):
            await self._reads_follow_writes(self._key(f"read-{number}"))
            await self._conditions_hold(self._key(f"condition-{number}"))
            await self._rivals(self._key(f"rivals-{number}"))

    def _key(self, name: str) -> str:
        self._keys.append(f"{self._folder}/{name}")
        return self._keys[-1]

    def _refuse(self, reason: str) -> StartError:
        return StartError(f"{self._place} cannot hold the log: {reason}")

    async def _reads_follow_writes(self, key: str) -> None:
        if await self._requests.find(key) is not None:
            raise self._refuse("it returned an object that was never put")
        # Put once only: a retry of the client library may arrive late, and no two contents ever share a key.
        try:
            await self._store.put(key, [b"content"])
        except NotFoundError as error:
            raise self._refuse("it does not exist") from error
        if await self._requests.find(key) != b"content":
            raise self._refuse("a read did not return what had been put before (linearizable reads are needed)")

    async def _conditions_hold(self, key: str) -> None:
        if not await self._create(key, b"first"):
            if await self._requests.find(key) == b"first":
                raise UnavailableError(f"put {key}: the reply to the own first attempt was lost")
            raise self._refuse("put-if-absent was denied although there was no object")
        if await self._create(key, b"second"):
            raise self._refuse("it ignores conditions: put-if-absent of an object that existed succeeded")
        if await self._requests.find(key) != b"first":
            raise self._refuse("put-if-absent was denied, but changed the object")

    async def _rivals(self, key: str) -> None:
        contents = [str(number).encode() for number in range(limits.LOG_PROBE_RIVALS)]
        created = await gather_all(self._create(key, content) for content in contents)
        winners = [content for content, won in zip(contents, created, strict=True) if won]
        found = await self._requests.find(key)
        if len(winners) > 1:
            count = f"{len(winners)} of {len(contents)}"
            raise self._refuse(f"it ignores conditions: {count} rival puts-if-absent succeeded")
        if not winners:
            raise UnavailableError(f"put {key}: the reply to the one that succeeded was lost, or all were in conflict")
        if [found] != winners:
            raise self._refuse("a put-if-absent succeeded, but the object is that of another one")

    async def _create(self, key: str, content: bytes) -> bool:
        try:
            await self._requests.create(key, content)
        except AlreadyExistsError:
            return False
        return True

    async def clean_up(self) -> None:
        """Delete the objects, if the store answers."""
        try:
            await self._store.delete(self._keys)
        except UnavailableError:
            return  # left-overs below probe/ do no harm; a later start deletes them
