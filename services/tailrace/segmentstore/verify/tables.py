"""Verifies that every pointer of a table's index leads to a readable entry of its bucket (docs/formats/tables.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, DataError
from tailrace.segmentstore.api import TABLE_ENTRY_COUNT
from tailrace.segmentstore.tables.layout import Layout, layout_of
from tailrace.segmentstore.tables.queries import following
from tailrace.segmentstore.tables.record import HEADER_BYTES, NO_CHAIN, Record, decode_record, record_length

if TYPE_CHECKING:
    from tailrace.segmentstore.attributes.attribute_store import AttributeStore
    from tailrace.segmentstore.cache.segment_reader import SegmentReader
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.verify.report import ContainerReport


class _Pointer(NamedTuple):
    """The target of an index entry or of a chain; ordered by offset."""

    offset: int
    attribute_id: bytes


class _Unreadable(Exception):
    """A pointer does not lead to an entry of its bucket."""


class TableWalk:
    """Walks the index of one table. Reads entries in batches, in the order of their offsets."""

    def __init__(
        self, table: Segment, attributes: AttributeStore, reader: SegmentReader, report: ContainerReport
    ) -> None:
        self._table = table
        self._attributes = attributes
        self._reader = reader
        self._report = report
        self._entries = 0
        self._bad = 0
        self._first_bad: tuple[int, str] | None = None

    async def verify(self) -> None:
        """Read every entry of the index."""
        table = self._table
        try:
            layout = layout_of(table.properties())
            await self._walk(layout)
        except (DataError, BadRequestError) as error:
            self._report.problem(f"table index: {error}", segment=table.name)
            return
        self._report.report.table_entries += self._entries
        expected = table.core.get(TABLE_ENTRY_COUNT, 0)
        if self._first_bad is not None:
            offset, reason = self._first_bad
            self._report.problem(
                f"table index: {self._bad} pointers do not lead to an entry; the first: {reason}",
                segment=table.name,
                offset=offset,
            )
        elif self._entries != expected:
            reason = f"table index: it has {self._entries} entries, the table {expected}"
            self._report.problem(reason, segment=table.name)

    async def _walk(self, layout: Layout) -> None:
        length = self._table.attribute_key_length
        position: bytes | None = bytes(length)
        last = b"\xff" * length
        while position is not None:
            found = await self._attributes.iterate(self._table, position, last, limits.VERIFY_TABLE_BATCH)
            pointers = [_Pointer(offset, attribute_id) for attribute_id, offset in found]
            while pointers:
                pointers = await self._read_batch(layout, pointers)
            position = following(found[-1][0]) if len(found) == limits.VERIFY_TABLE_BATCH else None

    async def _read_batch(self, layout: Layout, pointers: list[_Pointer]) -> list[_Pointer]:
        """Read the entries; return where their chains continue."""
        chained = []
        for pointer in sorted(pointers):
            try:
                record = await self._read(pointer.offset)
                _check(layout, pointer, record)
            except (_Unreadable, DataError) as error:
                self._bad += 1
                if self._first_bad is None:
                    self._first_bad = pointer.offset, str(error)
                continue
            self._entries += 1
            if record.chain != NO_CHAIN:
                chained.append(_Pointer(record.chain, pointer.attribute_id))
        return chained

    async def _read(self, offset: int) -> Record:
        table = self._table
        if not table.start_offset <= offset <= table.length - HEADER_BYTES:
            raise _Unreadable(f"the table has {table.start_offset} to {table.length}")
        end = min(offset + limits.TABLE_ENTRY_READ_BYTES, table.length)
        data = await self._range(offset, end)
        length = record_length(data, f"{table.name}, table record at {offset}")
        if offset + length > table.length:
            raise _Unreadable(f"an entry of {length} bytes, the table ends at {table.length}")
        if length > len(data):
            data += await self._range(end, offset + length)
        return decode_record(data, offset, table.name)

    async def _range(self, start: int, end: int) -> bytes:
        return bytes(await self._reader.read_range(self._table, start, end, _always))


def _check(layout: Layout, pointer: _Pointer, record: Record) -> None:
    if record.value is None:
        raise _Unreadable("a removal")
    if layout.attribute_id(record.key) != pointer.attribute_id:
        raise _Unreadable("the entry of another key")
    if record.chain >= pointer.offset:
        raise _Unreadable(f"its chain continues at {record.chain}")


def _always(_: Segment) -> bool:
    """Return True: segments of a closed container do not end."""
    return True
