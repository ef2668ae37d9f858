"""Planted bugs of table segments."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from sim.bugs.registry import bug
from sim.workloads.table_model import TableSpec, TableWriter, weak_hash
from sim.workloads.tables import TablesWorkload
from tailrace.segmentstore.api import (
    NULL_ATTRIBUTE,
    TABLE_COMPACTION_OFFSET,
    TABLE_ENTRY_COUNT,
    AttributeUpdate,
    AttributeUpdateType,
)
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.container.recovery import Recovery
from tailrace.segmentstore.metadata.operation_log import Placed, PlacedAppends
from tailrace.segmentstore.tables import compaction, service
from tailrace.segmentstore.tables.access import TableAccess
from tailrace.segmentstore.tables.cache import EntryCache
from tailrace.segmentstore.tables.plan import Bucket, Buckets, Plan, plan_copy, plan_remove
from tailrace.segmentstore.tables.record import Record
from tailrace.segmentstore.tables.staging import StagedTable, outcome


@bug(
    "table-copy-over-newer",
    TablesWorkload,
    checker="workloads/table_model.py",
    words="no possible state|unexpected TableKeyBadVersionError",
)
def _table_copy_over_newer(patch: pytest.MonkeyPatch) -> None:
    """Compaction copies an old value over one that was written during the compaction.

    Breaks: a table holds every acknowledged update exactly.
    """

    async def careless(
        tables: TableAccess, table: Any, staged: StagedTable, ids: list[bytes], span: tuple[int, int, int]
    ) -> None:
        """Looks at the index first, copies later, whatever the index leads to by then."""
        begin, end, records = span
        found = await tables.current_buckets(table, staged, ids)
        live = {key: bucket for key, bucket in found.items() if any(begin <= item.offset < end for item in bucket)}
        await asyncio.sleep(0.01)
        async with staged.lock:
            moved = AttributeUpdate(TABLE_COMPACTION_OFFSET, AttributeUpdateType.REPLACE, end)
            tail = staged.length(tables.same(table).length)
            plan = plan_copy(live, tail, forgotten_records=records, extra=[moved])
            plan.updates = [
                update._replace(kind=AttributeUpdateType.REPLACE)
                if update.kind == AttributeUpdateType.REPLACE_IF_EQUALS
                else update
                for update in plan.updates
            ]
            change = await tables.submit(table.name, staged, plan)
        await outcome(change.done)

    patch.setattr(compaction, "_copy", careless)


@bug(
    "table-copies-with-new-versions",
    TablesWorkload,
    checker="workloads/table_model.py",
    words="no possible state|unexpected TableKeyBadVersionError|an iterator returned",
)
def _table_copies_with_new_versions(patch: pytest.MonkeyPatch) -> None:
    """Compaction gives copied entries new versions.

    Breaks: the version of an entry changes only with an update.
    """

    def copy(self: Plan, records: Sequence[Record], *, others: int = 0) -> Bucket:
        bucket: Bucket = ()
        shared = len(records) + others > 1
        for record in records:
            bucket = (self.write(record.key, record.value, chain=bucket, shared=shared), *bucket)
        return bucket

    patch.setattr(Plan, "copy", copy)


@bug(
    "bucket-copied-in-part",
    TablesWorkload,
    checker="workloads/table_model.py",
    words="no possible state|unexpected TableKeyNotExistsError|an iterator returned",
)
def _bucket_copied_in_part(patch: pytest.MonkeyPatch) -> None:
    """Compaction copies only the first of the keys that share a bucket.

    Breaks: a table holds every acknowledged update exactly.
    """

    def shorter(buckets: dict[bytes, Bucket], tail: int, **more: Any) -> Plan:
        return plan_copy({key: bucket[:1] for key, bucket in buckets.items()}, tail, **more)

    patch.setattr(compaction, "plan_copy", shorter)


@bug(
    "removals-not-written",
    TablesWorkload,
    checker="workloads/table_model.py",
    words="a delta of everything brought|deltas led to",
)
def _removals_not_written(patch: pytest.MonkeyPatch) -> None:
    """A removal writes no record, so deltas miss it.

    Breaks: deltas of a table miss nothing.
    """

    def silent(*arguments: Any, tombstones: bool) -> Plan:
        return plan_remove(*arguments, tombstones=False)

    patch.setattr(service, "plan_remove", silent)


@bug(
    "table-counters-replayed-twice",
    TablesWorkload,
    checker="workloads/replay.py",
    words="core attributes .* after replay",
)
def _table_counters_replayed_twice(patch: pytest.MonkeyPatch) -> None:
    """A recovery adds counters of a table that already hold the sum.

    Breaks: the entry count of a table is exact.
    """
    apply = Recovery._apply

    def twice(self: Recovery, placed: Placed | PlacedAppends, place: str) -> None:
        """Takes the final value in the log for one that is to be added."""
        operation = None if isinstance(placed, PlacedAppends) else placed.operation
        segment = self._state.segments.get(getattr(operation, "segment_id", -1))
        before = segment.committed.get(TABLE_ENTRY_COUNT, 0) if segment is not None else 0
        apply(self, placed, place)
        if segment is not None and segment.committed.get(TABLE_ENTRY_COUNT, before) != before:
            segment.set_attributes(placed.sequence, [(TABLE_ENTRY_COUNT, before + segment.core[TABLE_ENTRY_COUNT])])

    patch.setattr(Recovery, "_apply", twice)


@bug(
    "table-answered-before-durable",
    TablesWorkload,
    checker="workloads/table_model.py",
    words="no possible state|an iterator returned",
)
def _table_answered_before_durable(patch: pytest.MonkeyPatch) -> None:
    """An update of a table is answered before it is durable.

    Breaks: an acknowledged table update is never lost.
    """
    submit = TableAccess.submit

    async def hasty(self: TableAccess, segment: str, staged: StagedTable, plan: Plan) -> Any:
        change = await submit(self, segment, staged, plan)
        change.finish(None)
        return change

    patch.setattr(TableAccess, "submit", hasty)


@bug(
    "entries-cached-without-table",
    TablesWorkload,
    checker="workloads/table_model.py",
    words="unexpected TableKeyNotExistsError|no possible state|an iterator returned",
)
def _entries_cached_without_table(patch: pytest.MonkeyPatch) -> None:
    """Entries of all tables share one place in the entry cache.

    Breaks: a table returns its own entries only.
    """
    get, put = EntryCache.get, EntryCache.put
    patch.setattr(EntryCache, "get", lambda self, container, _, offset: get(self, container, 0, offset))
    patch.setattr(EntryCache, "put", lambda self, container, _, record: put(self, container, 0, record))


@bug("iterators-of-memory-only", TablesWorkload, checker="workloads/table_model.py", words="an iterator returned")
def _iterators_of_memory_only(patch: pytest.MonkeyPatch) -> None:
    """Iterators leave out entries that are only in Tier 2.

    Breaks: an iterator returns each living key once.
    """

    async def iterate(
        self: Container, segment: str, from_id: bytes, to_id: bytes, limit: int
    ) -> list[tuple[bytes, int]]:
        found = self.core.committed_segment(segment)
        length = found.attribute_key_length
        return [
            (key, value)
            for key, value in sorted(found.committed.items())
            if len(key) == length and from_id <= key <= to_id and key not in found.core and value != NULL_ATTRIBUTE
        ][:limit]

    patch.setattr(Container, "iterate_attributes", iterate)


@bug(
    "table-conditions-unchecked",
    TablesWorkload,
    checker="workloads/table_model.py",
    words="an operation succeeded that had to fail",
)
def _table_conditions_unchecked(patch: pytest.MonkeyPatch) -> None:
    """A table update does not compare the versions that it expects.

    Breaks: conditional updates of a table are linearizable.
    """
    patch.setattr("tailrace.segmentstore.tables.plan.check_condition", lambda bucket, key, expected: None)


def _crowded(seed: int) -> TablesWorkload:
    """Many writers of one table whose keys have few buckets."""
    workload = TablesWorkload(seed)
    table = TableSpec("scope/crowd/0", 0)
    workload.hash_function = weak_hash
    workload.writers = {table: [TableWriter(table, index, workload.random, lives_alone=False) for index in range(4)]}
    workload.auditors, workload.work = [], 20
    return workload


@bug(
    "combined-changes-planned-apart",
    _crowded,
    checker="workloads/table_model.py",
    words="unexpected Table|no possible state|an iterator returned",
)
def _combined_changes_planned_apart(patch: pytest.MonkeyPatch) -> None:
    """A change that shares an append with others does not see what those before it change.

    Breaks: conditional updates of a table are linearizable.
    """
    warm_buckets = TableAccess.warm_buckets

    def apart(self: TableAccess, table: Any, staged: StagedTable, ids: Collection[bytes], ahead: Buckets) -> Any:
        return warm_buckets(self, table, staged, ids, {})

    patch.setattr(TableAccess, "warm_buckets", apart)
