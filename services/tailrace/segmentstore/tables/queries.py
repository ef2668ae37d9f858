"""Reads table segments: lookups, iterators, deltas (docs/protocol/wire.md#tables). All see committed entries only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, CorruptionError, UnsupportedError
from tailrace.segmentstore.api import TABLE_COMPACTION_OFFSET, SegmentContainer, SegmentProperties
from tailrace.segmentstore.tables.layout import BUCKET_ID_BYTES, FixedKeyLayout, Layout
from tailrace.segmentstore.tables.plan import find
from tailrace.segmentstore.tables.types import TableDelta, TableEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.tables.reader import TableReader
    from tailrace.segmentstore.tables.record import Record


class Span(NamedTuple):
    """The attribute ids that an iterator still has to visit, and its last token; `first` None means none."""

    first: bytes | None
    last: bytes
    token: bytes
    id_bytes: int
    """Length of a token: the part of an attribute id that is the client's key or bucket."""


def entry_of(record: Record) -> TableEntry:
    """Return an entry as callers see it."""
    return TableEntry(record.key, record.value or b"", record.version)


def compaction_offset(table: SegmentProperties) -> int:
    """Return where deltas and compaction begin to read; live entries before it were copied behind it."""
    return max(table.core_attributes.get(TABLE_COMPACTION_OFFSET, 0), table.start_offset)


async def get(
    reader: TableReader, table: SegmentProperties, layout: Layout, keys: Sequence[bytes]
) -> list[TableEntry | None]:
    """Return entries in the order of the keys; errors as of `TableReader.buckets`, and BadRequestError."""
    for key in keys:
        layout.check_key(key)
    ids = [layout.attribute_id(key) for key in keys]
    buckets = await reader.buckets(table, list(dict.fromkeys(ids)), limits.FRAME_MAX_BYTES)
    found = [find(buckets[attribute_id], key) for attribute_id, key in zip(ids, keys, strict=True)]
    return [None if record is None else entry_of(record) for record in found]


def span_of(layout: Layout, continuation: bytes, from_key: bytes, to_key: bytes) -> Span:
    """Return the span of an iterator request (docs/protocol/wire.md#iterators).

    Raises:
        BadRequestError: the layout does not have an argument, or its length is wrong.
    """
    if isinstance(layout, FixedKeyLayout):
        if continuation:
            raise BadRequestError("continuation token in a table with keys of fixed length: use the first key instead")
        for name, key in (("first", from_key), ("last", to_key)):
            if len(key) not in (0, layout.key_length):
                raise BadRequestError(f"{name} key of {len(key)} bytes in a table with keys of {layout.key_length}")
        first = layout.attribute_id(from_key or bytes(layout.key_length))
        last = layout.attribute_id(to_key or b"\xff" * layout.key_length)
        return Span(first, last, b"", layout.key_length)
    if from_key or to_key:
        raise BadRequestError("first or last key given for a hash table: it has no order")
    if len(continuation) not in (0, BUCKET_ID_BYTES):
        raise BadRequestError(f"continuation token of {len(continuation)} bytes")
    first_bucket = following(continuation) if continuation else bytes(BUCKET_ID_BYTES)
    return Span(first_bucket, b"\xff" * BUCKET_ID_BYTES, continuation, BUCKET_ID_BYTES)


def following(attribute_id: bytes) -> bytes | None:
    """Return the next attribute id of the same length; None after the last."""
    number = int.from_bytes(attribute_id, "big") + 1
    return None if number >> (8 * len(attribute_id)) else number.to_bytes(len(attribute_id), "big")


async def iterate(
    container: SegmentContainer, reader: TableReader, table: SegmentProperties, span: Span, limit: int
) -> tuple[list[Record], bytes]:
    """Return entries of a span, up to `limit` or about ``limits.TABLE_REPLY_MAX_BYTES``, and the next token.

    Buckets are returned whole, so there may be slightly more. Errors as of `TableReader.buckets`.
    """
    limit = max(1, min(limit, limits.TABLE_ITERATE_ITEMS_MAX))
    records: list[Record] = []
    token, position, reply_bytes = span.token, span.first, 0
    while position is not None and position <= span.last:
        wanted = min(limit - len(records), limits.TABLE_ITERATOR_RUN)
        found = await container.iterate_attributes(table.name, position, span.last, wanted)
        reader.check_same(table)
        first = 0
        while first < len(found):
            group = found[first : first + _entries_that_fit(len(records), reply_bytes)]
            first += len(group)
            buckets = await reader.chains(table, [head for _, head in group])
            for (attribute_id, _), bucket in zip(group, buckets, strict=True):
                records.extend(bucket)
                reply_bytes += sum(record.length for record in bucket)
                token = attribute_id[: span.id_bytes]
                if len(records) >= limit or reply_bytes >= limits.TABLE_REPLY_MAX_BYTES:
                    return records, token
        if len(found) < wanted:
            break
        position = following(found[-1][0])
    return records, token


def _entries_that_fit(count: int, reply_bytes: int) -> int:
    """Return how many entries to read at once after so many of so many bytes, so that the reply has room for them.

    Large entries are not cached: what is read beyond the reply is read again for the next one.
    """
    if count == 0:
        return max(1, limits.TABLE_REPLY_MAX_BYTES // (limits.TABLE_KEY_MAX_BYTES + limits.TABLE_VALUE_MAX_BYTES))
    fit = (limits.TABLE_REPLY_MAX_BYTES - reply_bytes) * count // reply_bytes
    return max(1, min(fit, limits.TABLE_ENTRY_READS_MAX))


async def delta(
    reader: TableReader, table: SegmentProperties, layout: Layout, from_position: int, limit: int
) -> TableDelta:
    """Return entries written since a position, up to `limit` different ones or the end.

    See docs/protocol/wire.md#delta-reads.

    A result without entries means the end (or a very long run of removals): some clients stop there.

    Raises:
        UnsupportedError: fixed-key layout. BadRequestError: the position is beyond the end or inside an entry.
    """
    if isinstance(layout, FixedKeyLayout):
        raise UnsupportedError(f"delta read of {table.name}: its keys have a fixed length")
    if not 0 <= from_position <= table.length:
        raise BadRequestError(f"position {from_position} is not in 0..{table.length}, the length of {table.name}")
    begin = max(from_position, compaction_offset(table))
    limit = max(1, min(limit, limits.TABLE_ITERATE_ITEMS_MAX))
    position, reply_bytes = begin, 0
    entries: dict[bytes, TableEntry] = {}
    while position < table.length and position - begin < limits.TABLE_DELTA_SCAN_MAX_BYTES:
        records = await _scan(reader, table, position, is_given=position == from_position)
        for number, record in enumerate(records, 1):
            before = entries.pop(record.key, None)
            reply_bytes -= 0 if before is None else len(before.key) + len(before.value)
            if record.value is not None:
                entries[record.key] = entry_of(record)
                reply_bytes += len(record.key) + len(record.value)
            position = record.offset + record.length
            if len(entries) >= limit or reply_bytes >= limits.TABLE_REPLY_MAX_BYTES:
                return _delta(table, entries, from_position, position)
            if number % limits.TABLE_RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
    return _delta(table, entries, from_position, position)


def _delta(table: SegmentProperties, entries: dict[bytes, TableEntry], from_position: int, position: int) -> TableDelta:
    """Return the answer of a scan that ended at `position`."""
    return TableDelta(
        tuple(entries.values()),
        should_clear=from_position < compaction_offset(table),
        reached_end=position >= table.length,
        last_position=0 if position == from_position else position,
    )


async def _scan(reader: TableReader, table: SegmentProperties, position: int, *, is_given: bool) -> list[Record]:
    try:
        records = await reader.scan(table, position, table.length)
    except CorruptionError as error:
        if is_given:
            raise BadRequestError(f"no entry of {table.name} begins at {position}") from error
        raise
    if not records:
        raise CorruptionError(f"{table.name}, table record at {position}", "it ends beyond the segment's end")
    return records
