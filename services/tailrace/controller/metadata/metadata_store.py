"""Store metadata in table segments, or in memory. One contract suite tests both.

See docs/design.md#controller-metadata.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    NoSuchSegmentError,
    SegmentExistsError,
    TableKeyBadVersionError,
    TableKeyNotExistsError,
    UnavailableError,
    WriteConflictError,
)
from tailrace.controller.metadata.ports import NOT_EXISTS, UNCONDITIONAL, MetadataStore, Put, Stored, TablePort
from tailrace.wire.tables import TableEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TABLES_PREFIX: Final = "_system/_tables/"
SCOPES_TABLE: Final = TABLES_PREFIX + "scopes"
PENDING_TABLE: Final = TABLES_PREFIX + "pending"
CONTROLLERS_TABLE: Final = TABLES_PREFIX + "controllers"
RETENTION_TABLE: Final = TABLES_PREFIX + "retention"
MARKED_TABLE: Final = TABLES_PREFIX + "marked"


@functools.lru_cache(maxsize=limits.BUCKETS_CACHED_MAX)
def bucket_of(scope: str, stream: str) -> int:
    """Return the bucket of a stream, reader group, table or scope: a stable hash of ``scope/name``."""
    digest = hashlib.blake2b(f"{scope}/{stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % limits.METADATA_BUCKETS


def bucket_table(bucket: int) -> str:
    """Return the table segment that holds the records of a bucket's streams."""
    return _BUCKET_TABLES[bucket]


_BUCKET_TABLES: Final = tuple(f"{TABLES_PREFIX}b{bucket}" for bucket in range(limits.METADATA_BUCKETS))
OWN_TABLES: Final = (
    SCOPES_TABLE,
    PENDING_TABLE,
    CONTROLLERS_TABLE,
    RETENTION_TABLE,
    MARKED_TABLE,
    *_BUCKET_TABLES,
)
"""The tables that every controller needs. Its start creates them."""


def scope_table(scope: str, nonce: bytes) -> str:
    """Return the table segment that lists a scope's contents. A scope that is created again has another one."""
    return f"{TABLES_PREFIX}scope/{scope}/{nonce.hex()}"


def tag_table(scope: str, nonce: bytes) -> str:
    """Return the table segment that finds a scope's streams by tag; it belongs to `scope_table`."""
    return f"{TABLES_PREFIX}tags/{scope}/{nonce.hex()}"


class RetryableMetadata:
    """A metadata store that reports missing `OWN_TABLES` as unavailable, so that clients retry.

    The tables do not exist before a controller has started for the first time. A missing table must not be taken for a
    missing scope or stream, so calls that need it raise UnavailableError.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def create_table(self, table: str, key_length: int = 0) -> None:
        """See MetadataStore.create_table."""
        await self._metadata.create_table(table, key_length)

    async def delete_table(self, table: str) -> None:
        """See MetadataStore.delete_table."""
        await self._metadata.delete_table(table)

    async def get(self, table: str, keys: Sequence[bytes]) -> list[Stored | None]:
        """See MetadataStore.get."""
        with _expected(table):
            return await self._metadata.get(table, keys)

    async def put(self, table: str, entries: Sequence[Put]) -> list[int]:
        """See MetadataStore.put."""
        with _expected(table):
            return await self._metadata.put(table, entries)

    async def remove(self, table: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """See MetadataStore.remove."""
        with _expected(table):
            await self._metadata.remove(table, keys)

    async def entries(self, table: str, limit: int, token: bytes) -> tuple[list[Stored], bytes]:
        """See MetadataStore.entries."""
        with _expected(table):
            return await self._metadata.entries(table, limit, token)

    async def span(self, table: str, first: bytes, last: bytes, limit: int) -> list[Stored]:
        """See MetadataStore.span."""
        with _expected(table):
            return await self._metadata.span(table, first, last, limit)


@contextlib.contextmanager
def _expected(table: str) -> Iterator[None]:
    try:
        yield
    except NoSuchSegmentError as error:
        if table not in OWN_TABLES:
            raise
        raise UnavailableError(
            f"metadata table {table} does not exist yet: no controller has started completely; retry"
        ) from error


class TableMetadataStore:
    """Store tables as table segments of the segment store, through the client."""

    def __init__(self, tables: TablePort) -> None:
        self._tables = tables

    async def create_table(self, table: str, key_length: int = 0) -> None:
        """Make sure that the table exists."""
        try:
            await self._tables.create_table(table, key_length)
        except SegmentExistsError:
            return

    async def delete_table(self, table: str) -> None:
        """Make sure that the table does not exist."""
        try:
            await self._tables.delete_table(table)
        except NoSuchSegmentError:
            return

    async def get(self, table: str, keys: Sequence[bytes]) -> list[Stored | None]:
        """Return values in the order of the keys."""
        return [None if entry is None else _stored(entry) for entry in await self._tables.table_get(table, keys)]

    async def put(self, table: str, entries: Sequence[Put]) -> list[int]:
        """Write all or nothing."""
        try:
            return await self._tables.table_update(
                table, [TableEntry(entry.key, entry.value, entry.version) for entry in entries]
            )
        except (TableKeyBadVersionError, TableKeyNotExistsError) as error:
            raise WriteConflictError(f"table {table}: {error}") from error

    async def remove(self, table: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """Remove all or nothing."""
        try:
            await self._tables.table_remove(table, keys)
        except (TableKeyBadVersionError, TableKeyNotExistsError) as error:
            raise WriteConflictError(f"table {table}: {error}") from error

    async def entries(self, table: str, limit: int, token: bytes) -> tuple[list[Stored], bytes]:
        """Return some entries and the token of the next page."""
        found, following = await self._tables.table_entries(table, limit, token)
        return [_stored(entry) for entry in found], following

    async def span(self, table: str, first: bytes, last: bytes, limit: int) -> list[Stored]:
        """Return some entries of a range of keys."""
        found, _ = await self._tables.table_entries(table, limit, b"", first, last)
        return [_stored(entry) for entry in found]


def _stored(entry: TableEntry) -> Stored:
    return Stored(entry.key, entry.value, entry.version)


def _check_sizes(entries: Sequence[Put]) -> None:
    """Refuse what a table segment refuses, so that tests with tables in memory find it."""
    longest = max((len(entry.value) for entry in entries), default=0)
    if longest > limits.TABLE_VALUE_MAX_BYTES:
        raise BadRequestError(f"table value of {longest} bytes, more than {limits.TABLE_VALUE_MAX_BYTES}")
    if len(entries) > limits.TABLE_BATCH_KEYS_MAX:
        raise BadRequestError(f"table batch of {len(entries)} keys, more than {limits.TABLE_BATCH_KEYS_MAX}")


class MemoryMetadataStore:
    """Tables in memory: for tests and the simulator."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[bytes, tuple[bytes, int]]] = {}
        self._key_lengths: dict[str, int] = {}
        self._last_version = 0

    async def create_table(self, table: str, key_length: int = 0) -> None:
        """Make sure that the table exists."""
        if table not in self._tables:
            self._tables[table], self._key_lengths[table] = {}, key_length

    async def delete_table(self, table: str) -> None:
        """Make sure that the table does not exist."""
        self._tables.pop(table, None)

    async def get(self, table: str, keys: Sequence[bytes]) -> list[Stored | None]:
        """Return values in the order of the keys."""
        rows = self._rows(table)
        found = [Stored(key, *rows[key]) if key in rows else None for key in keys]
        if sum(len(each.key) + len(each.value) for each in found if each is not None) > limits.FRAME_MAX_BYTES:
            raise BadRequestError(f"the requested entries have more than {limits.FRAME_MAX_BYTES} bytes")
        return found

    async def put(self, table: str, entries: Sequence[Put]) -> list[int]:
        """Write all or nothing."""
        rows = self._rows(table)
        _check_sizes(entries)
        for entry in entries:
            self._check_key(table, entry.key)
            self._check(table, rows, entry.key, entry.version)
        versions = []
        for entry in entries:
            self._last_version += 1
            rows[entry.key] = (entry.value, self._last_version)
            versions.append(self._last_version)
        return versions

    async def remove(self, table: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """Remove all or nothing."""
        rows = self._rows(table)
        for key, version in keys:
            self._check(table, rows, key, version)
        for key, _ in keys:
            rows.pop(key, None)

    async def entries(self, table: str, limit: int, token: bytes) -> tuple[list[Stored], bytes]:
        """Return entries in order of key; the token is a marker byte and the last key."""
        rows = self._rows(table)
        if self._key_lengths[table] and token:
            raise BadRequestError(f"table {table}: continuation token in a table with keys of fixed length")
        following = sorted(key for key in rows if not token or key > token[1:])[:limit]
        return [Stored(key, *rows[key]) for key in following], b"\1" + following[-1] if following else token

    async def span(self, table: str, first: bytes, last: bytes, limit: int) -> list[Stored]:
        """Return entries of a range of keys."""
        rows = self._rows(table)
        if not self._key_lengths[table]:
            raise BadRequestError(f"table {table}: its keys have no fixed length, so they have no order")
        self._check_key(table, first)
        self._check_key(table, last)
        return [Stored(key, *rows[key]) for key in sorted(key for key in rows if first <= key <= last)[:limit]]

    def dump(self) -> dict[str, dict[bytes, bytes]]:
        """Return all records without versions, for tests that compare end states."""
        return {table: {key: value for key, (value, _) in sorted(rows.items())} for table, rows in self._tables.items()}

    def dump_table(self, table: str) -> dict[bytes, bytes]:
        """Return the records of one table without versions, for tests. Raises NoSuchSegmentError."""
        return {key: value for key, (value, _) in sorted(self._rows(table).items())}

    def _rows(self, table: str) -> dict[bytes, tuple[bytes, int]]:
        rows = self._tables.get(table)
        if rows is None:
            raise NoSuchSegmentError(table)
        return rows

    def _check_key(self, table: str, key: bytes) -> None:
        length = self._key_lengths[table]
        if length and len(key) != length:
            raise BadRequestError(f"table {table}: key of {len(key)} bytes in a table with keys of {length}")

    def _check(self, table: str, rows: dict[bytes, tuple[bytes, int]], key: bytes, version: int) -> None:
        current = rows[key][1] if key in rows else NOT_EXISTS
        if version not in (UNCONDITIONAL, current):
            raise WriteConflictError(f"table {table}: key has version {current}, not {version}")
