"""The types of the table layer. Keys and entries are those of the codec, so they need no conversion.

See docs/protocol/wire.md#tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tailrace.wire.tables import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NOT_EXISTS", "NO_VERSION", "TableDelta", "TableEntry", "TableInfo", "TableKey", "TableOperations"]


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Properties of a table segment; ``key_length`` 0 is the hash layout, else the fixed-key sorted one."""

    start_offset: int
    length: int
    entry_count: int
    key_length: int


@dataclass(frozen=True, slots=True)
class TableDelta:
    """Entries written since a position, in log order, later versions replacing earlier ones.

    See docs/protocol/wire.md#delta-reads.

    ``should_clear``: the position lies before the compaction offset, so the receiver drops what it holds.
    ``reached_end``: the scan came to the segment's length. ``last_position``: offset after the last entry scanned; 0
    when the position is the end already.
    """

    entries: Sequence[TableEntry]
    should_clear: bool
    reached_end: bool
    last_position: int


class TableOperations(Protocol):
    """Table segments of one container, as the server uses them (docs/protocol/wire.md#tables).

    Every method raises NoSuchSegmentError for a missing table and ContainerStoppedError once the container stopped.
    """

    async def create_table(self, segment: str, key_length: int) -> None:
        """Create a table segment. Raises SegmentExistsError, BadRequestError (key length)."""
        ...

    async def delete_table(self, segment: str, must_be_empty: bool) -> None:
        """Delete. Raises TableNotEmptyError; UnsupportedError for `must_be_empty` on the fixed-key layout."""
        ...

    async def info(self, segment: str) -> TableInfo:
        """Return the properties."""
        ...

    async def update(self, segment: str, entries: Sequence[TableEntry], table_offset: int = -1) -> list[int]:
        """Insert or update atomically; return the new versions in the order of the entries.

        Raises:
            TableKeyNotExistsError, TableKeyBadVersionError: a condition failed, nothing was changed.
            BadOffsetError: `table_offset` is not -1 and not the segment's length.
            SegmentSealedError, BadRequestError.
        """
        ...

    async def remove(self, segment: str, keys: Sequence[TableKey], table_offset: int = -1) -> bool:
        """Remove atomically; errors as `update`. An absent key without a condition is removed successfully.

        Returns False when there was nothing to change: the log has not confirmed that the container is owned.
        """
        ...

    async def get(self, segment: str, keys: Sequence[bytes]) -> list[TableEntry | None]:
        """Return entries in the order of the keys; None for a missing one."""
        ...

    async def iterate_keys(
        self, segment: str, limit: int, continuation: bytes, from_key: bytes, to_key: bytes
    ) -> tuple[list[TableKey], bytes]:
        """Return about `limit` keys and the next token; no keys means the end."""
        ...

    async def iterate_entries(
        self, segment: str, limit: int, continuation: bytes, from_key: bytes, to_key: bytes
    ) -> tuple[list[TableEntry], bytes]:
        """Return about `limit` entries and the next token; no entries means the end."""
        ...

    async def delta(self, segment: str, from_position: int, limit: int) -> TableDelta:
        """Return the changes since `from_position`. Raises UnsupportedError (fixed-key layout), BadRequestError."""
        ...
