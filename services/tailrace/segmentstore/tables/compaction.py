"""Compacts table segments: copies live entries from the beginning to the end, then truncates.

See docs/design.md#table-segments, docs/protocol/server.md#table-compaction.

Copies keep their versions. A pass covers the records [begin, end). It rewrites the live ones, each on condition that
the index still leads to the old offset; with the last of them the compaction offset becomes `end`. Tombstones need no
copies. An older entry of the same key always lies before its tombstone, because a later copy would have needed an index
that led to the old offset. So the same truncation, or an earlier one, removes it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import NoSuchSegmentError, SegmentSealedError, SegmentTruncatedError, WriteConflictError
from tailrace.segmentstore.api import (
    NULL_ATTRIBUTE,
    TABLE_COMPACTION_OFFSET,
    TABLE_ENTRY_COUNT,
    TABLE_TOTAL_ENTRY_COUNT,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentProperties,
)
from tailrace.segmentstore.tables.plan import plan_copy
from tailrace.segmentstore.tables.queries import compaction_offset
from tailrace.segmentstore.tables.staging import StagedTable, outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.tables.access import TableAccess
    from tailrace.segmentstore.tables.layout import Layout
    from tailrace.segmentstore.tables.record import Record


def needs_compaction(table: SegmentProperties) -> bool:
    """Return whether less than ``limits.TABLE_COMPACTION_UTILISATION`` of the records is live."""
    live = table.core_attributes.get(TABLE_ENTRY_COUNT, 0)
    total = table.core_attributes.get(TABLE_TOTAL_ENTRY_COUNT, 0)
    size = table.length - compaction_offset(table)
    return size >= limits.TABLE_COMPACTION_MIN_BYTES and live < total * limits.TABLE_COMPACTION_UTILISATION


async def compact_while_needed(tables: TableAccess, segment: str) -> int:
    """Compact a table while it pays; return the number of passes. A deleted table needs none."""
    for done in range(limits.TABLE_COMPACTION_PASSES_MAX):
        try:
            if not needs_compaction(await tables.container.info(segment)) or not await compact(tables, segment):
                return done
        except (NoSuchSegmentError, SegmentSealedError):
            return done
    return limits.TABLE_COMPACTION_PASSES_MAX


async def compact(tables: TableAccess, segment: str) -> bool:
    """Run one pass over at most ``limits.TABLE_COMPACTION_PASS_BYTES``; return False when nothing was done.

    A concurrent change of a copied entry ends the pass. Earlier copies are valid, and the next pass begins where this
    one began.

    Raises:
        SegmentSealedError, CorruptionError.
    """
    entered, staged = await tables.enter(segment)
    try:
        table = await tables.container.info(segment)
        if table.segment_id != entered.segment_id:
            return False  # created again meanwhile
        records = await _scan(tables, table)
        if not records:
            return False
        end = records[-1].offset + records[-1].length
        ids = await _maybe_live(tables, table, staged.layout, records)
        await _copy(tables, table, staged, ids, (records[0].offset, end, len(records)))
        async with staged.lock:  # this service does not delete the table before the truncation
            tables.same(table)
            await tables.container.truncate(segment, end)
    except (WriteConflictError, SegmentTruncatedError):
        return False
    finally:
        tables.leave(entered, staged)
    return True


async def _scan(tables: TableAccess, table: SegmentProperties) -> list[Record]:
    """Read the records of a pass."""
    begin = compaction_offset(table)
    end = min(table.length, begin + limits.TABLE_COMPACTION_PASS_BYTES)
    records: list[Record] = []
    position = begin
    while found := await tables.reader.scan(table, position, end):
        records.extend(found)
        position = found[-1].offset + found[-1].length
    return records


async def _maybe_live(
    tables: TableAccess, table: SegmentProperties, layout: Layout, records: Sequence[Record]
) -> list[bytes]:
    """Return the attributes that may lead to some of the records. Those that lead elsewhere never come back."""
    by_id: dict[bytes, list[Record]] = {}
    for number, record in enumerate(records, 1):
        if number % limits.TABLE_RECORDS_PER_TURN == 0:
            await asyncio.sleep(0)
        if record.value is not None:
            by_id.setdefault(layout.attribute_id(record.key), []).append(record)
    ids = list(by_id)
    live: list[bytes] = []
    for first in range(0, len(ids), limits.TABLE_BATCH_KEYS_MAX):
        heads = await tables.container.get_attributes(table.name, ids[first : first + limits.TABLE_BATCH_KEYS_MAX])
        for attribute_id, head in heads.items():
            for record in by_id[attribute_id]:
                if record.offset == head:
                    tables.reader.remember(table.segment_id, (record,))
            if head != NULL_ATTRIBUTE and any(r.shared or r.offset == head for r in by_id[attribute_id]):
                live.append(attribute_id)
        await asyncio.sleep(0)  # attributes in memory are read without a suspension
    return live


async def _copy(
    tables: TableAccess, table: SegmentProperties, staged: StagedTable, ids: list[bytes], span: tuple[int, int, int]
) -> None:
    """Copy the live entries in [begin, end) in atomic groups; the last one moves the compaction offset."""
    begin, end, record_count = span
    old_offset = table.core_attributes.get(TABLE_COMPACTION_OFFSET, NULL_ATTRIBUTE)
    moved = AttributeUpdate(TABLE_COMPACTION_OFFSET, AttributeUpdateType.REPLACE_IF_EQUALS, end, comparison=old_offset)
    for first in range(0, max(1, len(ids)), limits.TABLE_BATCH_KEYS_MAX):
        group = ids[first : first + limits.TABLE_BATCH_KEYS_MAX]
        is_last = first + limits.TABLE_BATCH_KEYS_MAX >= len(ids)
        async with staged.lock:
            tail = staged.length(tables.same(table).length)
            buckets = await tables.current_buckets(table, staged, group)
            plan = plan_copy(
                {i: bucket for i, bucket in buckets.items() if any(begin <= r.offset < end for r in bucket)},
                tail,
                forgotten_records=record_count if is_last else 0,
                extra=[moved] if is_last else [],
            )
            if plan.is_empty:
                continue
            change = await tables.submit(table.name, staged, plan)
        await outcome(change.done)
