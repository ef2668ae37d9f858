"""Tier 2 as a verification sees it: it is read, and never written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, IllegalStateError, UnavailableError
from tailrace.storage.obstores import FolderObjects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tailrace.storage.port import Buffer, ObjectInfo, ObjectStore


class ReadStore:
    """The port without its writes. An object that cannot be read is damaged, as long as others can be read.

    So one bad sector of a disk is a problem that is listed, and a store that is gone ends the verification.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._failures = 0

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return await self._store.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ObjectStore.get_range.

        Raises:
            CorruptionError: also when it cannot be read. UnavailableError: that happened too often in a row.
        """
        try:
            data = await self._store.get_range(key, offset, length)
        except UnavailableError as error:
            self._failures += 1
            if self._failures > limits.VERIFY_FAILED_READS_MAX:
                raise
            raise CorruptionError(f"object {key} at {offset}", f"it cannot be read: {error}") from error
        self._failures = 0
        return data

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        return self._store.list(prefix)

    def unfinished(self) -> Iterator[ObjectInfo]:
        """Files of uploads that a kill cut off; only folders have such."""
        return self._store.unfinished() if isinstance(self._store, FolderObjects) else iter(())

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Refused."""
        raise IllegalStateError(f"a verification does not write object {key}")

    async def delete(self, keys: Sequence[str]) -> None:
        """Refused."""
        raise IllegalStateError(f"a verification does not delete objects {list(keys)}")

    async def close(self) -> None:
        """See ObjectStore.close."""
        await self._store.close()
