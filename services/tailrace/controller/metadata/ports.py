"""Ports of the controller: segments, locations of containers, and versioned tables.

See docs/design.md#rooms, docs/design.md#controller.

``tailrace.client.connections.segments.SegmentClient`` satisfies `SegmentStorePort`, and
``tailrace.cluster.endpoints.EndpointMap`` satisfies `ContainerMap`.
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
"""Version for an unconditional write."""


class SegmentInfo(Protocol):
    """The properties of a segment that the controller reads."""

    @property
    def start_offset(self) -> int:
        """First readable offset."""
        ...

    @property
    def length(self) -> int:
        """Offset of the end: all bytes ever written."""
        ...

    @property
    def sealed(self) -> bool:
        """Return whether the segment takes no more bytes."""
        ...


class SegmentStorePort(Protocol):
    """Operations on segments of all containers. Every call has a deadline and retries where a retry is safe.

    All raise NoSuchSegmentError, and UnavailableError when no reply came in time: the outcome is then unknown.
    """

    async def create_segment(
        self, name: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """Create a stream segment. Raises SegmentExistsError."""
        ...

    async def create_segments(
        self, names: Sequence[str], *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> list[str]:
        """Create stream segments, each by itself; return those that existed, also by an attempt without a reply."""
        ...

    async def update_policy(self, name: str, scale_type: int, target_rate: int) -> None:
        """Change the rate that the segment measures for scaling. Raises SegmentSealedError."""
        ...

    async def seal_segment(self, name: str) -> None:
        """Seal a segment. Raises SegmentSealedError when it is sealed."""
        ...

    async def truncate_segment(self, name: str, offset: int) -> None:
        """Set the start offset. Raises SegmentTruncatedError when it lies before the present start or past the end."""
        ...

    async def delete_segment(self, name: str) -> None:
        """Delete a segment."""
        ...

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge sources in order, each one atomically; return the target's length after each.

        A source that is missing or was merged before counts as done (docs/protocol/wire.md#failure-replies).

        Raises:
            SegmentSealedError, NoSuchSegmentError: the target cannot take a source.
            SegmentTruncatedError: names a source that was truncated; the sources before it are merged.
        """
        ...

    async def segment_info(self, name: str) -> SegmentInfo:
        """Return committed properties."""
        ...

    async def segment_infos(self, names: Sequence[str]) -> Sequence[SegmentInfo | None]:
        """Return committed properties of each segment, as of some time during the call; None for a missing one."""
        ...

    async def create_table(self, name: str, key_length: int = 0) -> None:
        """Create a table segment. Raises SegmentExistsError."""
        ...

    async def delete_table(self, name: str) -> None:
        """Delete a table segment and its contents."""
        ...


class TablePort(Protocol):
    """Operations on the versioned entries of table segments (docs/protocol/wire.md#tables)."""

    async def create_table(self, name: str, key_length: int = 0) -> None:
        """Create a table segment. Raises SegmentExistsError."""
        ...

    async def delete_table(self, name: str) -> None:
        """Delete a table segment and its contents."""
        ...

    async def table_update(self, name: str, entries: Sequence[TableEntry]) -> list[int]:
        """Write atomically. Raises TableKeyBadVersionError, TableKeyNotExistsError."""
        ...

    async def table_remove(self, name: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """Remove atomically. Raises the errors of `table_update`."""
        ...

    async def table_get(self, name: str, keys: Sequence[bytes]) -> list[TableEntry | None]:
        """Return entries in the order of the keys; None for a missing one."""
        ...

    async def table_entries(
        self, name: str, limit: int, token: bytes = b"", from_key: bytes = b"", to_key: bytes = b""
    ) -> tuple[list[TableEntry], bytes]:
        """Return about `limit` entries and the token of the next page; no entries at the end.

        Keys of fixed length have a range, inclusive, and no token (docs/protocol/wire.md#iterators).
        """
        ...


class ContainerMap(Protocol):
    """Locates the containers that serve segments."""

    def endpoint_of(self, segment_name: str, kind: ListenerKind = ListenerKind.INTERNAL) -> tuple[str, int]:
        """Return host and port for clients of that kind. Raises UnavailableError while the container has no owner."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored value with its version; versions of a key only rise."""

    key: bytes
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """A write under a condition on the key's version: NOT_EXISTS, UNCONDITIONAL or a version that was read."""

    key: bytes
    value: bytes
    version: int


class MetadataStore(Protocol):
    """Versioned tables (docs/design.md#controller-metadata): the controller's only durable state.

    Reads see every write that completed before them. A write that failed with UnavailableError may have succeeded.
    Creating an existing table and deleting a missing one succeed; every other call raises NoSuchSegmentError for a
    missing table.
    """

    async def create_table(self, table: str, key_length: int = 0) -> None:
        """Make sure that the table exists. With a `key_length` all keys have that many bytes, and `span` reads them."""
        ...

    async def delete_table(self, table: str) -> None:
        """Make sure that the table does not exist."""
        ...

    async def get(self, table: str, keys: Sequence[bytes]) -> list[Stored | None]:
        """Return values in the order of the keys. Raises BadRequestError when one reply has no room for all of them."""
        ...

    async def put(self, table: str, entries: Sequence[Put]) -> list[int]:
        """Write all or nothing; return the new versions.

        Raises:
            WriteConflictError: a version differs. After an UnavailableError of the same write, the conflict may be
            with that write itself: read again and compare.
        """
        ...

    async def remove(self, table: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """Remove all or nothing. Raises WriteConflictError. An unconditional removal of a missing key succeeds."""
        ...

    async def entries(self, table: str, limit: int, token: bytes) -> tuple[list[Stored], bytes]:
        """Return about `limit` entries in the table's order, and the token of the next page; b"" starts.

        No entries at the end. Entries that exist during the whole iteration are returned exactly once. Not for tables
        with keys of a fixed length.
        """
        ...

    async def span(self, table: str, first: bytes, last: bytes, limit: int) -> list[Stored]:
        """Return about `limit` entries with keys from `first` to `last`, inclusive, in order of their keys.

        No entries: there are none. For tables with keys of a fixed length, which both keys must have.
        """
        ...
