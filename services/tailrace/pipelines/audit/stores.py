"""Tier 2 as an audit reads it: without writes; a failed read is repeated (docs/spark-audit.md#what-it-costs)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, UnavailableError
from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore

if TYPE_CHECKING:
    from tailrace.storage.port import ObjectStore


class AuditStore(ReadOnlyStore):
    """Read an object again, after a pause, before it counts as one that cannot be read.

    Many executors read at a time, so a store may refuse some requests. That is no damage.
    """

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        for pause_s in limits.AUDIT_READ_PAUSES_S:
            try:
                return await self._store.get(key)
            except UnavailableError:
                await asyncio.sleep(pause_s)
        return await self._store.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ReadOnlyStore.get_range."""
        for pause_s in limits.AUDIT_READ_PAUSES_S:
            try:
                data = await self._store.get_range(key, offset, length)
            except UnavailableError:
                await asyncio.sleep(pause_s)
            else:
                self._failures = 0
                return data
        return await super().get_range(key, offset, length)


class WatchedStore(ReadOnlyStore):
    """Remember which objects did not exist when they were read."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.missing: set[str] = set()

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ReadOnlyStore.get_range."""
        try:
            return await self._store.get_range(key, offset, length)  # which counts failures of the store, for all
        except NotFoundError:
            self.missing.add(key)
            raise
