"""The port of an object store (docs/design.md#tier-2): immutable objects, never renamed or reused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A listed object: its key below the store's prefix and its length in bytes.

    ``modified_ms`` is when it was written by the store's clock, in ms since 1970; 0: unknown.
    """

    key: str
    length_bytes: int
    modified_ms: int = field(default=0, compare=False)


class ObjectStore(Protocol):
    """Objects under one prefix. Every call has a deadline of ``limits.STORAGE_CALL_DEADLINE_S``, or by its length.

    All methods raise UnavailableError when the store does not answer or returns a transient error (the outcome of a
    write is unknown then), and DeadlineError when the deadline passes.
    """

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Create an object from the joined buffers.

        Raises:
            AlreadyExistsError: `if_absent` and the key exists.
        """
        ...

    async def get(self, key: str) -> bytes:
        """Return a whole object. Raises NotFoundError."""
        ...

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`. Raises NotFoundError, CorruptionError (object too short)."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`, in any order."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are not an error.

        Raises:
            ObjectNotDeletedError: the store refuses to delete one of them, and perhaps others; a call without that one
                goes on with the rest.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


@runtime_checkable
class UploadParts(Protocol):
    """Additional methods of a store that keeps parts of interrupted uploads."""

    async def list_parts(self, prefix: str, limit: int) -> list[ObjectInfo]:
        """Return parts of interrupted or running uploads of the key `prefix`, and of those below it.

        ``key`` is the name of the part: the key of the upload, ``#`` and a number.
        """
        ...

    async def delete_parts(self, names: Sequence[str]) -> int:
        """Delete the parts that no process is writing; return how many. Missing ones are not an error."""
        ...


@runtime_checkable
class FolderStore(UploadParts, Protocol):
    """Additional methods of a store that is a folder: of other stores a read finds only what is durable."""

    async def make_durable(self, folder: str) -> None:
        """Make durable what is directly in a folder, whichever process put it there, and what was deleted from it.

        A missing folder is no error.
        """
        ...


async def make_durable(store: ObjectStore, folder: str) -> None:
    """Make durable what reads found below a prefix, ``folder``, before something is built on it.

    Raises UnavailableError.
    """
    if isinstance(store, FolderStore):
        await store.make_durable(folder)
