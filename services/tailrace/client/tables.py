"""Read and write key-value tables: versioned entries in fixed-key table segments.

See docs/protocol/naming.md#key-value-tables.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from tailrace.client.control.tables import TableConfig
from tailrace.client.hashing import table_key_position
from tailrace.client.model import SegmentRange, StreamName, owner_of
from tailrace.client.types import NO_VERSION, NOT_EXISTS, TableEntry
from tailrace.common import limits, names
from tailrace.common.errors import BadRequestError, TableKeyBadVersionError, TableKeyNotExistsError

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext


class TableKeyParts(NamedTuple):
    """A key: the primary part selects the segment, the secondary part orders entries of one primary key."""

    primary: bytes
    secondary: bytes = b""


class TableValue(NamedTuple):
    """A value with its version."""

    key: TableKeyParts
    value: bytes
    version: int


class KeyValueTable:
    """One table. Start with `await table.start()` or ``async with``."""

    def __init__(self, context: ClientContext, scope: str, table: str) -> None:
        self.scope = scope
        self.table = table
        self._context = context
        self._config = TableConfig(0, 0)
        self._segments: Sequence[SegmentRange] = ()

    async def start(self) -> Self:
        """Load configuration and segments. Raises NotFoundError."""
        self._config = await self._context.controller.table_config(self.scope, self.table)
        self._segments = await self._context.controller.table_segments(self.scope, self.table)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        return None

    async def put(self, key: TableKeyParts, value: bytes, *, version: int | None = None) -> int:
        """Insert or update an entry; return the new version. With `version` only that version (NOT_EXISTS: if absent).

        Raises:
            TableKeyBadVersionError, TableKeyNotExistsError, BadRequestError (lengths).
        """
        return (await self.put_all([(key, value, version)]))[0]

    async def put_all(self, entries: Sequence[tuple[TableKeyParts, bytes, int | None]]) -> list[int]:
        """Insert or update entries of one primary key atomically; return the new versions in order."""
        rows = [
            TableEntry(self._packed(key), _checked("a value", value), NO_VERSION if version is None else version)
            for key, value, version in entries
        ]
        if not entries or any(key.primary != entries[0][0].primary for key, _, _ in entries):
            raise BadRequestError("an atomic update needs entries of one primary key")
        with self._naming([(key, version) for key, _, version in entries if version is not None]):
            return await self._context.segments.table_update(self._segment(entries[0][0].primary), rows)

    async def insert(self, key: TableKeyParts, value: bytes) -> int:
        """Insert an entry if the key is absent."""
        return await self.put(key, value, version=NOT_EXISTS)

    async def get(self, key: TableKeyParts) -> TableValue | None:
        """Return the entry of a key."""
        packed = self._packed(key)
        found = await self._context.segments.table_get(self._segment(key.primary), [packed])
        return None if found[0] is None else self._unpacked(found[0])

    async def remove(self, key: TableKeyParts, *, version: int | None = None) -> None:
        """Remove an entry, with `version` only that version. Raises TableKeyBadVersionError, TableKeyNotExistsError."""
        wanted = (self._packed(key), NO_VERSION if version is None else version)
        with self._naming([(key, NO_VERSION if version is None else version)]):
            await self._context.segments.table_remove(self._segment(key.primary), [wanted])

    async def entries(self, primary: bytes | None = None) -> AsyncIterator[TableValue]:
        """Yield all entries in order of key within each segment, or the entries of one primary key."""
        length = self._config.primary_key_length + self._config.secondary_key_length
        if primary is not None:
            self._check_length("primary", primary, self._config.primary_key_length)
            low, high = primary.ljust(length, b"\0"), primary.ljust(length, b"\xff")
            segments = [self._segment(primary)]
        else:
            low, high = b"", b""
            segments = [self._name_of(segment.identifier) for segment in self._segments]
        for segment in segments:
            async for entry in self._iterate(segment, low, high):
                yield self._unpacked(entry)

    async def _iterate(self, segment: str, low: bytes, high: bytes) -> AsyncIterator[TableEntry]:
        while True:
            page, _ = await self._context.segments.table_entries(
                segment, limits.TABLE_PAGE_ENTRIES, from_key=low, to_key=high
            )
            for entry in page:
                yield entry
            after = _key_after(page[-1].key) if page else None
            if after is None or (high and after > high):
                return
            low = after

    def _segment(self, primary: bytes) -> str:
        self._check_length("primary", primary, self._config.primary_key_length)
        return self._name_of(owner_of(self._segments, table_key_position(primary)).identifier)

    def _name_of(self, identifier: int) -> str:
        return StreamName(self.scope, self.table + names.TABLE_SUFFIX).segment(identifier)

    @contextlib.contextmanager
    def _naming(self, expected: Sequence[tuple[TableKeyParts, int]]) -> Iterator[None]:
        """Name keys and table in the error of a condition that does not hold; a reply names the segment alone."""
        try:
            yield
        except (TableKeyBadVersionError, TableKeyNotExistsError) as error:
            if len(expected) != 1:
                each = [
                    f"{_shown(key)} " + ("absent" if version == NOT_EXISTS else f"at version {version}")
                    for key, version in expected
                ]
                reason = f"a key of table {self.scope}/{self.table} is not as expected: {names.some_of(each)}"
            else:
                ((key, version),) = expected
                reason = f"key {_shown(key)} of table {self.scope}/{self.table} "
                if isinstance(error, TableKeyNotExistsError):
                    reason += "does not exist"
                else:
                    reason += "exists already" if version == NOT_EXISTS else f"is not at version {version}"
            raise type(error)(reason) from error

    def _packed(self, key: TableKeyParts) -> bytes:
        if not isinstance(key, TableKeyParts):
            raise BadRequestError(f"a key is of type {type(key).__name__}, not TableKeyParts")
        primary = _checked("the primary key", key.primary)
        secondary = _checked("the secondary key", key.secondary)
        self._check_length("primary", primary, self._config.primary_key_length)
        self._check_length("secondary", secondary, self._config.secondary_key_length)
        return primary + secondary

    def _unpacked(self, entry: TableEntry) -> TableValue:
        length = self._config.primary_key_length
        return TableValue(TableKeyParts(entry.key[:length], entry.key[length:]), entry.value, entry.version)

    def _check_length(self, part: str, value: bytes, length: int) -> None:
        if len(value) != length:
            raise BadRequestError(
                f"the {part} key has {len(value)} bytes, table {self.scope}/{self.table} needs {length}"
            )


def _checked(what: str, value: bytes) -> bytes:
    """Return bytes. Raises BadRequestError for anything else, which would fail later, or not be what was meant."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise BadRequestError(f"{what} is of type {type(value).__name__}, not bytes")
    return bytes(value)


def _shown(key: TableKeyParts) -> str:
    """Return a key for people."""
    return " ".join(repr(bytes(part)) for part in key if part)


def _key_after(key: bytes) -> bytes | None:
    """Return the next key of the same length in byte order; None after the last."""
    value = int.from_bytes(key, "big") + 1
    return None if value >> 8 * len(key) else value.to_bytes(len(key), "big")
