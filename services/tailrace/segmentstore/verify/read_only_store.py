"""Read-only access to Tier 2 for a verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, IllegalStateError, UnavailableError
from tailrace.storage.folder_objects import FolderObjects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tailrace.storage.port import Buffer, ObjectInfo, ObjectStore


class ReadOnlyStore:
    """The port without writes. An object that cannot be read counts as damaged while other objects can be read.

    So the report lists one bad sector of a disk as a problem, and an unavailable store ends the verification.
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
            CorruptionError: damaged or not readable. UnavailableError: too many failed reads in a row.
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
        """Return the files of interrupted uploads; only folders have such."""
        return self._store.unfinished() if isinstance(self._store, FolderObjects) else iter(())

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Refuse."""
        raise IllegalStateError(f"a verification does not write object {key}")

    async def delete(self, keys: Sequence[str]) -> None:
        """Refuse."""
        raise IllegalStateError(f"a verification does not delete objects {list(keys)}")

    async def close(self) -> None:
        """See ObjectStore.close."""
        await self._store.close()
