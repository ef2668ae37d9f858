"""The workload of tables finds bugs of the kinds that such tables have had."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sim.violations import Violation
from sim.workloads.tables import TablesWorkload
from tailrace.segmentstore.api import (
    NULL_ATTRIBUTE,
    TABLE_COMPACTION_OFFSET,
    TABLE_ENTRY_COUNT,
    AttributeUpdate,
    AttributeUpdateType,
)
from tailrace.segmentstore.container import Container
from tailrace.segmentstore.oplog import Placed
from tailrace.segmentstore.recovery import Recovery
from tailrace.segmentstore.tables import compaction, service
from tailrace.segmentstore.tables.cache import EntryCache
from tailrace.segmentstore.tables.plan import Bucket, Plan, plan_copy, plan_remove
from tailrace.segmentstore.tables.record import Record
from tailrace.segmentstore.tables.staging import StagedTable, outcome

SEEDS_MAX = 60

pytestmark = pytest.mark.timeout(300)


def expect_violation() -> None:
    """Run seeds until one breaks a promise."""
    for seed in range(SEEDS_MAX):
        try:
            TablesWorkload(seed).run()
        except Violation:
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find the planted bug")


def test_compaction_copies_over_newer_values(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(
        tables: service.TableService, table: Any, staged: StagedTable, ids: list[bytes], span: tuple[int, int, int]
    ) -> None:
        """Looks at the index first, copies later, whatever the index leads to by then."""
        begin, end, records = span
        found = await tables.current_buckets(table, staged, ids)
        live = {key: bucket for key, bucket in found.items() if any(begin <= item.offset < end for item in bucket)}
        await asyncio.sleep(0.01)
        async with staged.lock:
            moved = AttributeUpdate(TABLE_COMPACTION_OFFSET, AttributeUpdateType.REPLACE, end)
            tail = staged.length(await tables.same(table))
            plan = plan_copy(live, tail, forgotten_records=records, extra=[moved])
            plan.updates = [
                update._replace(kind=AttributeUpdateType.REPLACE)
                if update.kind == AttributeUpdateType.REPLACE_IF_EQUALS
                else update
                for update in plan.updates
            ]
            change = await tables.submit(table.name, staged, plan)
        await outcome(change.done)

    monkeypatch.setattr(compaction, "_copy", careless)
    expect_violation()


def test_compaction_gives_copies_new_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(self: Plan, records: Sequence[Record], *, others: int = 0) -> Bucket:
        bucket: Bucket = ()
        shared = len(records) + others > 1
        for record in records:
            bucket = (self.write(record.key, record.value, chain=bucket, shared=shared), *bucket)
        return bucket

    monkeypatch.setattr(Plan, "copy", copy)
    expect_violation()


def test_compaction_forgets_all_but_the_first_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    def shorter(buckets: dict[bytes, Bucket], tail: int, **more: Any) -> Plan:
        return plan_copy({key: bucket[:1] for key, bucket in buckets.items()}, tail, **more)

    monkeypatch.setattr(compaction, "plan_copy", shorter)
    expect_violation()


def test_removals_that_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*arguments: Any, tombstones: bool) -> Plan:
        return plan_remove(*arguments, tombstones=False)

    monkeypatch.setattr(service, "plan_remove", silent)
    expect_violation()


def test_counters_that_are_replayed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Recovery._apply

    def twice(self: Recovery, placed: Placed, place: str) -> None:
        """Takes the final value in the log for one that is to be added."""
        segment = self._state.segments.get(getattr(placed.operation, "segment_id", -1))
        before = segment.committed.get(TABLE_ENTRY_COUNT, 0) if segment is not None else 0
        apply(self, placed, place)
        if segment is not None and segment.committed.get(TABLE_ENTRY_COUNT, before) != before:
            segment.set_attributes(placed.sequence, [(TABLE_ENTRY_COUNT, before + segment.core[TABLE_ENTRY_COUNT])])

    monkeypatch.setattr(Recovery, "_apply", twice)
    expect_violation()


def test_answering_from_what_is_not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = service.TableService.submit

    async def hasty(self: service.TableService, segment: str, staged: StagedTable, plan: Plan) -> Any:
        change = await submit(self, segment, staged, plan)
        change.finish(None)
        return change

    monkeypatch.setattr(service.TableService, "submit", hasty)
    expect_violation()


def test_entries_cached_without_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    get, put = EntryCache.get, EntryCache.put
    monkeypatch.setattr(EntryCache, "get", lambda self, container, _, offset: get(self, container, 0, offset))
    monkeypatch.setattr(EntryCache, "put", lambda self, container, _, record: put(self, container, 0, record))
    expect_violation()


def test_iterators_that_see_only_what_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def iterate(
        self: Container, segment: str, from_id: bytes, to_id: bytes, limit: int
    ) -> list[tuple[bytes, int]]:
        found = self._committed(segment)
        length = found.attribute_key_length
        return [
            (key, value)
            for key, value in sorted(found.committed.items())
            if len(key) == length and from_id <= key <= to_id and key not in found.core and value != NULL_ATTRIBUTE
        ][:limit]

    monkeypatch.setattr(Container, "iterate_attributes", iterate)
    expect_violation()


def test_conditions_that_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.segmentstore.tables.plan.check_condition", lambda bucket, key, expected: None)
    expect_violation()
