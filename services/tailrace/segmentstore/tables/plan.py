"""Plans one atomic change of a table: its append and its index updates; pure.

See docs/design.md#table-segments, docs/protocol/wire.md#tables.

A bucket is the tuple of the live entries that one attribute leads to, in chain order: the attribute holds the offset of
the first, each record that of the next. Fixed-key buckets have at most one entry; hash buckets have more only when
hashes collide. Every change of a bucket rewrites all its entries, so chains never lead to dead records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tailrace.common.errors import TableKeyBadVersionError, TableKeyNotExistsError
from tailrace.segmentstore.api import (
    NULL_ATTRIBUTE,
    TABLE_ENTRY_COUNT,
    TABLE_TOTAL_ENTRY_COUNT,
    AttributeUpdate,
    AttributeUpdateType,
)
from tailrace.segmentstore.tables.record import NO_CHAIN, OWN_OFFSET, Record, encode_record
from tailrace.segmentstore.tables.types import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

if TYPE_CHECKING:
    from tailrace.segmentstore.tables.layout import Layout

Bucket: TypeAlias = tuple[Record, ...]
Buckets: TypeAlias = Mapping[bytes, Bucket]
Ids: TypeAlias = Mapping[bytes, bytes]
PlanBatch: TypeAlias = "Callable[[Layout, Ids, Buckets, int], Plan]"


def head_of(bucket: Bucket) -> int:
    """Return the value of the bucket's attribute."""
    return bucket[0].offset if bucket else NULL_ATTRIBUTE


def find(bucket: Bucket, key: bytes) -> Record | None:
    """Return the bucket's entry with that key."""
    for record in bucket:
        if record.key == key:
            return record
    return None


def check_condition(bucket: Bucket, key: bytes, expected: int) -> None:
    """Check the version that an update or removal expects (docs/protocol/wire.md#table-versions).

    Raises:
        TableKeyNotExistsError: a concrete version for an absent key. TableKeyBadVersionError: any other mismatch.
    """
    if expected == NO_VERSION:
        return
    record = find(bucket, key)
    if record is None:
        if expected != NOT_EXISTS:
            raise TableKeyNotExistsError(f"table key {key[:64].hex()} does not exist, version {expected} was given")
    elif record.version != expected:
        raise TableKeyBadVersionError(
            f"table key {key[:64].hex()} has version {record.version}, not {'absent' if expected < 0 else expected}"
        )


class Plan:
    """One atomic append: its bytes, its attribute updates, and the buckets after it."""

    __slots__ = ("_live", "_records", "buckets", "length", "parts", "tail", "updates", "versions")

    def __init__(self, tail: int) -> None:
        self.tail = tail
        self.length = 0
        self.parts: list[bytes] = []
        self.updates: list[AttributeUpdate] = []
        self.buckets: dict[bytes, Bucket] = {}
        self.versions: list[int] = []
        self._records = 0
        self._live = 0

    @property
    def is_empty(self) -> bool:
        """Return whether the plan changes nothing."""
        return not self.updates and not self.parts

    def write(
        self,
        key: bytes,
        value: bytes | None,
        *,
        version: int = OWN_OFFSET,
        chain: Bucket = (),
        shared: bool = False,
    ) -> Record:
        """Add a record that leads to `chain`. Its offset is known, because the append is conditional on the length."""
        offset = self.tail + self.length
        next_offset = chain[0].offset if chain else NO_CHAIN
        data = encode_record(key, value, version, next_offset, shared=shared)
        self.parts.append(data)
        self.length += len(data)
        self._records += 1
        return Record(key, value, offset if version == OWN_OFFSET else version, offset, next_offset, shared)

    def copy(self, records: Sequence[Record], *, others: int = 0) -> Bucket:
        """Rewrite entries with their versions as a chain; `others` entries of the bucket will follow."""
        bucket: Bucket = ()
        shared = len(records) + others > 1
        for record in records:
            copied = self.write(record.key, record.value, version=record.version, chain=bucket, shared=shared)
            bucket = (copied, *bucket)
        return bucket

    def replace(self, attribute_id: bytes, before: Bucket, after: Bucket) -> None:
        """Point the index to the new bucket, on condition that it still points to the old one."""
        self.buckets[attribute_id] = after
        self.updates.append(
            AttributeUpdate(
                attribute_id, AttributeUpdateType.REPLACE_IF_EQUALS, head_of(after), comparison=head_of(before)
            )
        )
        self._live += len(after) - len(before)

    def finish(self, *, forgotten_records: int = 0) -> Plan:
        """Add the counters: live entries, and records behind the compaction offset."""
        records = self._records - forgotten_records
        for attribute_id, change in ((TABLE_ENTRY_COUNT, self._live), (TABLE_TOTAL_ENTRY_COUNT, records)):
            if change:
                self.updates.append(AttributeUpdate(attribute_id, AttributeUpdateType.ACCUMULATE, change))
        return self


def plan_update(ids: Ids, buckets: Buckets, entries: Sequence[TableEntry], tail: int) -> Plan:
    """Plan to insert or update entries at `tail`; `ids` maps each key to its attribute, `buckets` is the prior state.

    Conditions are checked against that state. Of a repeated key the last entry wins, and every entry gets a version.

    Raises:
        TableKeyNotExistsError, TableKeyBadVersionError: a condition does not hold.
    """
    for entry in entries:
        check_condition(buckets[ids[entry.key]], entry.key, entry.version)
    last_of = {entry.key: position for position, entry in enumerate(entries)}
    plan = Plan(tail)
    after = _copy_others(plan, ids, buckets)
    for position, entry in enumerate(entries):
        attribute_id = ids[entry.key]
        others, shared = after[attribute_id]
        if last_of[entry.key] == position:
            record = plan.write(entry.key, entry.value, chain=others, shared=shared)
            after[attribute_id] = ((record, *others), shared)
        else:
            record = plan.write(entry.key, entry.value, shared=shared)
        plan.versions.append(record.version)
    for attribute_id, (bucket, _) in after.items():
        plan.replace(attribute_id, buckets[attribute_id], bucket)
    return plan.finish()


def _copy_others(plan: Plan, ids: Ids, buckets: Buckets) -> dict[bytes, tuple[Bucket, bool]]:
    """Rewrite entries that share a bucket with updated keys; return the copies by bucket, and whether it is shared."""
    coming: dict[bytes, int] = {}
    for attribute_id in ids.values():
        coming[attribute_id] = coming.get(attribute_id, 0) + 1
    result = {}
    for attribute_id, count in coming.items():
        rest = [record for record in buckets[attribute_id] if record.key not in ids]
        result[attribute_id] = (plan.copy(rest, others=count), len(rest) + count > 1)
    return result


def plan_remove(ids: Ids, buckets: Buckets, keys: Sequence[TableKey], tail: int, *, tombstones: bool) -> Plan:
    """Plan to remove keys; absent ones without a condition are ignored. `tombstones`: write removals (hash layout).

    Raises:
        TableKeyNotExistsError, TableKeyBadVersionError: a condition does not hold.
    """
    for key in keys:
        check_condition(buckets[ids[key.key]], key.key, key.version)
    removed: dict[bytes, set[bytes]] = {}
    plan = Plan(tail)
    for name, attribute_id in ids.items():
        if find(buckets[attribute_id], name) is not None:
            removed.setdefault(attribute_id, set()).add(name)
            if tombstones:
                plan.write(name, None)
    for attribute_id, gone in removed.items():
        rest = [record for record in buckets[attribute_id] if record.key not in gone]
        plan.replace(attribute_id, buckets[attribute_id], plan.copy(rest))
    return plan.finish()


def plan_copy(
    buckets: Buckets, tail: int, *, forgotten_records: int = 0, extra: Sequence[AttributeUpdate] = ()
) -> Plan:
    """Plan to rewrite whole buckets at the tail with their versions (compaction)."""
    plan = Plan(tail)
    for attribute_id, bucket in buckets.items():
        plan.replace(attribute_id, bucket, plan.copy(bucket[::-1]))
    plan.updates.extend(extra)
    return plan.finish(forgotten_records=forgotten_records)
