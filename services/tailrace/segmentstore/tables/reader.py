"""Reads committed table entries: by offset, by bucket, and in log order (docs/design.md#table-segments)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, CorruptionError, SegmentTruncatedError, WriteConflictError
from tailrace.segmentstore.api import NULL_ATTRIBUTE, SegmentContainer, SegmentLength, SegmentProperties
from tailrace.segmentstore.tables.record import HEADER_BYTES, NO_CHAIN, Record, decode_record, record_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.segmentstore.tables.cache import EntryCache
    from tailrace.segmentstore.tables.plan import Bucket

Table: TypeAlias = SegmentProperties | SegmentLength
"""A table segment, as of some moment."""


class TableReader:
    """Reads entries of a container's tables through the worker's cache of hot entries."""

    def __init__(self, container: SegmentContainer, cache: EntryCache) -> None:
        self._container = container
        self._cache = cache

    async def buckets(
        self,
        table: Table,
        attribute_ids: Sequence[bytes],
        max_bytes: int | None = None,
        *,
        keep: bool = False,
    ) -> dict[bytes, Bucket]:
        """Return the committed buckets of these attributes; empty ones for attributes that are not set.

        `keep`: they are about to be changed (`SegmentContainer.get_attributes`).

        Raises:
            BadRequestError: the entries have more than `max_bytes`; the rest of them is not read.
            SegmentTruncatedError: compaction moved an entry meanwhile; retry.
            WriteConflictError: the table was deleted and created again meanwhile; retry.
            CorruptionError: an entry is damaged; the error names its place.
        """
        heads = await self._container.get_attributes(table.name, attribute_ids, keep=keep)
        self.check_same(table)
        found = await self.chains(table, list(heads.values()), max_bytes)
        buckets = dict(zip(heads, found, strict=True))
        return {attribute_id: buckets.get(attribute_id, ()) for attribute_id in attribute_ids}

    def warm_buckets(self, table: Table, attribute_ids: Sequence[bytes]) -> dict[bytes, Bucket] | None:
        """Return the committed buckets of these attributes; None when one of them is not in memory."""
        heads = self._container.attributes_in_memory(table.name, attribute_ids)
        if heads is None:
            return None
        buckets: dict[bytes, Bucket] = {}
        for attribute_id in attribute_ids:
            bucket = self._cached_chain(table, heads.get(attribute_id, NULL_ATTRIBUTE))
            if bucket is None:
                return None
            buckets[attribute_id] = bucket
        return buckets

    async def chains(self, table: Table, heads: Sequence[int], max_bytes: int | None = None) -> list[Bucket]:
        """Return the bucket that each head leads to; errors as of `buckets`."""
        result = [self._cached_chain(table, head) for head in heads]
        cold = [index for index, bucket in enumerate(result) if bucket is None]
        found_bytes = _bytes_of(result)
        _check_bytes(found_bytes, max_bytes)
        for first in range(0, len(cold), limits.TABLE_ENTRY_READS_MAX):
            group = cold[first : first + limits.TABLE_ENTRY_READS_MAX]
            if len(group) == 1:
                loaded = [await self._chain(table, heads[group[0]])]
            else:
                loaded = await asyncio.gather(*(self._chain(table, heads[index]) for index in group))
            for index, bucket in zip(group, loaded, strict=True):
                result[index] = bucket
            found_bytes += _bytes_of(loaded)
            _check_bytes(found_bytes, max_bytes)
        return [bucket for bucket in result if bucket is not None]

    def remember(self, table_id: int, bucket: Bucket) -> None:
        """Cache newly committed entries."""
        for record in bucket:
            self._cache.put(self._container.container_id, table_id, record)

    def _cached_chain(self, table: Table, head: int) -> Bucket | None:
        """Return the bucket if all of it is cached."""
        if head == NULL_ATTRIBUTE:
            return ()
        record = self._cache.get(self._container.container_id, table.segment_id, head)
        return (record,) if record is not None and record.chain == NO_CHAIN else None

    async def _chain(self, table: Table, head: int) -> Bucket:
        bucket: list[Record] = []
        offset = head
        while offset != NO_CHAIN:
            record = await self._record(table, offset)
            if record.value is None or not NO_CHAIN <= record.chain < offset:
                raise CorruptionError(
                    f"{table.name}, table record at {offset}",
                    f"the index leads to a tombstone or a chain that continues at {record.chain}",
                )
            bucket.append(record)
            offset = record.chain
        return tuple(bucket)

    async def _record(self, table: Table, offset: int) -> Record:
        cached = self._cache.get(self._container.container_id, table.segment_id, offset)
        if cached is not None:
            return cached
        data = await self._read(table, offset, limits.TABLE_ENTRY_READ_BYTES)
        length = record_length(data, f"{table.name}, table record at {offset}")
        if length > len(data):
            data += await self._bytes(table, offset + len(data), length - len(data))
        record = decode_record(data, offset, table.name)
        self._cache.put(self._container.container_id, table.segment_id, record)
        return record

    async def _read(self, table: Table, offset: int, length: int) -> bytes:
        """Read up to `length` committed bytes, at least a header."""
        if offset < 0:
            raise CorruptionError(f"{table.name}, table record at {offset}", "the index leads to a negative offset")
        available = table.length - offset
        if available < HEADER_BYTES:  # the properties are older than the index value
            available = self.check_same(table).length - offset
        if available < HEADER_BYTES:
            raise CorruptionError(f"{table.name}, table record at {offset}", f"{available} bytes before the end")
        return await self._bytes(table, offset, min(length, available))

    async def _bytes(self, table: Table, offset: int, length: int) -> bytes:
        """Read exactly these bytes of this table. Raises WriteConflictError when another segment has its name."""
        try:
            data = await self._container.read_exact(table.name, offset, length)
        except (BadRequestError, SegmentTruncatedError):
            self.check_same(table)
            raise
        self.check_same(table)
        return data

    def check_same(self, table: Table) -> SegmentLength:
        """Return the table's current length. Raises WriteConflictError when another segment has its name."""
        now = self._container.length_of(table.name)
        if now.segment_id != table.segment_id:
            raise WriteConflictError(f"table segment {table.name} was created again meanwhile")
        return now

    async def scan(self, table: Table, from_offset: int, to_offset: int) -> list[Record]:
        """Read some records in log order, from a record's beginning; none when none ends at or before `to_offset`.

        `to_offset` is not beyond the length in `table`; errors as of `buckets`. Others get turns of the event loop
        between the records of one call, and before the next call when more follow.
        """
        window = limits.TABLE_SCAN_READ_BYTES
        while to_offset - from_offset >= HEADER_BYTES:
            length = min(window, to_offset - from_offset)
            data = await self._bytes(table, from_offset, length)
            records: list[Record] = []
            for record in _records_in(data, from_offset, table.name):
                records.append(record)
                if len(records) % limits.TABLE_RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
            if length == to_offset - from_offset:
                return records
            await asyncio.sleep(0)  # cached bytes are read without a suspension
            if records:
                return records
            window = record_length(data, f"{table.name}, table record at {from_offset}")
        return []


def _check_bytes(found_bytes: int, max_bytes: int | None) -> None:
    if max_bytes is not None and found_bytes > max_bytes:
        raise BadRequestError(f"the requested entries have more than {max_bytes} bytes")


def _bytes_of(buckets: Sequence[Bucket | None]) -> int:
    return sum(record.length for bucket in buckets if bucket for record in bucket)


def _records_in(data: bytes, offset: int, place: str) -> Iterator[Record]:
    """Yield the whole records at the beginning of `data`."""
    view = memoryview(data)
    position = 0
    while len(view) - position >= HEADER_BYTES:
        length = record_length(view[position:], f"{place}, table record at {offset + position}")
        if length > len(view) - position:
            return
        yield decode_record(view[position : position + length], offset + position, place)
        position += length
