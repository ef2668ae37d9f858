"""What the controller needs from outside: segments, places, and versioned tables (design §2, §10).

``tailrace.client.connections.segments.SegmentClient`` satisfies `SegmentStorePort`, and
``tailrace.cluster.endpoints.EndpointMap`` satisfies `ContainerMap`; neither knows of the other side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.cluster.endpoints import ListenerKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.wire.tables import TableEntry

NOT_EXISTS: Final = -1
"""Version of a record that must not exist yet."""
UNCONDITIONAL: Final = -(2**63)
"""Version of a record that is written whatever is there."""


class SegmentInfo(Protocol):
    """What the controller reads of a segment's properties."""

    @property
    def start_offset(self) -> int:
        """First readable offset."""
        ...

    @property
    def length(self) -> int:
        """Offset of the end: bytes ever written."""
        ...


class SegmentStorePort(Protocol):
    """Segments, wherever their containers run. Every call has a deadline and retries what may be retried.

    All raise UnavailableError when no answer came in time (the outcome is then unknown), and NoSuchSegmentError.
    """

    async def create_segment(
        self, name: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """Create a stream segment. Raises SegmentExistsError."""
        ...

    async def update_policy(self, name: str, scale_type: int, target_rate: int) -> None:
        """Change what the segment counts for scaling."""
        ...

    async def seal_segment(self, name: str) -> None:
        """Seal; raises SegmentSealedError when it is sealed already."""
        ...

    async def truncate_segment(self, name: str, offset: int) -> None:
        """Set the start offset; raises SegmentTruncatedError when it lies before the start or past the end."""
        ...

    async def delete_segment(self, name: str) -> None:
        """Delete."""
        ...

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge in order, each source atomically; returns the target's length after each.

        A source that is gone or was merged before counts as done (wire §3.6).
        """
        ...

    async def segment_info(self, name: str) -> SegmentInfo:
        """Committed properties."""
        ...

    async def create_table(self, name: str, key_length: int = 0) -> None:
        """Create a table segment. Raises SegmentExistsError."""
        ...

    async def delete_table(self, name: str) -> None:
        """Delete a table segment with what it holds."""
        ...


class TablePort(Protocol):
    """The versioned entries of table segments (wire §8)."""

    async def create_table(self, name: str, key_length: int = 0) -> None:
        """Create a table segment. Raises SegmentExistsError."""
        ...

    async def delete_table(self, name: str) -> None:
        """Delete a table segment with what it holds."""
        ...

    async def table_update(self, name: str, entries: Sequence[TableEntry]) -> list[int]:
        """Write atomically. Raises TableKeyBadVersionError, TableKeyNotExistsError."""
        ...

    async def table_remove(self, name: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """Remove atomically; errors as `table_update`."""
        ...

    async def table_get(self, name: str, keys: Sequence[bytes]) -> list[TableEntry | None]:
        """Entries in the order of the keys; None for a missing one."""
        ...

    async def table_entries(self, name: str, limit: int, token: bytes) -> tuple[list[TableEntry], bytes]:
        """About `limit` entries and the token to go on with; no entries means the end."""
        ...


class ContainerMap(Protocol):
    """Where segments are served."""

    def endpoint_of(self, segment_name: str, kind: ListenerKind = ListenerKind.INTERNAL) -> tuple[str, int]:
        """(host, port) for clients of that kind. Raises UnavailableError while nobody owns the container."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored value with its version; versions of a key only rise."""

    key: bytes
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """A write that holds only if the key has that version (NOT_EXISTS, UNCONDITIONAL or a read one)."""

    key: bytes
    value: bytes
    version: int


class MetadataStore(Protocol):
    """Versioned tables (design §7): the only place where the controller keeps anything.

    Reads see every write that completed before them. A write that failed with UnavailableError may have happened.
    Tables are created and deleted without complaint when they exist or are gone; every other call raises
    NoSuchSegmentError for a missing table.
    """

    async def create_table(self, table: str) -> None:
        """Make sure that the table exists."""
        ...

    async def delete_table(self, table: str) -> None:
        """Make sure that the table does not exist."""
        ...

    async def get(self, table: str, keys: Sequence[bytes]) -> list[Stored | None]:
        """Values in the order of the keys."""
        ...

    async def put(self, table: str, entries: Sequence[Put]) -> list[int]:
        """Write all or nothing; returns the new versions.

        Raises:
            WriteConflictError: a version does not hold. After an UnavailableError of the same write this may be
            the trace of its success: read again and compare.
        """
        ...

    async def remove(self, table: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """Remove all or nothing. Raises WriteConflictError; an unconditional removal of a missing key succeeds."""
        ...

    async def entries(self, table: str, limit: int, token: bytes) -> tuple[list[Stored], bytes]:
        """Some entries, about `limit`, in the table's order, and the token to go on with; b"" starts.

        No entries means the end. Entries that exist during the whole iteration are seen exactly once.
        """
        ...
