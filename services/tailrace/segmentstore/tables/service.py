"""Table segments over a container: versions, conditions, iterators, deltas.

See docs/design.md#table-segments, docs/protocol/wire.md#tables.

Everything is built on `SegmentContainer`: a change of a table is one conditional append with its index updates.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    SegmentTruncatedError,
    TableNotEmptyError,
    TailraceError,
    UnsupportedError,
    WriteConflictError,
)
from tailrace.segmentstore.api import (
    TABLE_COMPACTION_OFFSET,
    TABLE_ENTRY_COUNT,
    TABLE_TOTAL_ENTRY_COUNT,
    SegmentContainer,
    SegmentKind,
    SegmentLength,
    SegmentProperties,
)
from tailrace.segmentstore.tables import compaction, queries
from tailrace.segmentstore.tables.access import TableAccess
from tailrace.segmentstore.tables.cache import EntryCache
from tailrace.segmentstore.tables.combining import lead
from tailrace.segmentstore.tables.layout import (
    TABLE_KEY_LENGTH,
    FixedKeyLayout,
    HashFunction,
    HashLayout,
    Layout,
    layout_for_new_table,
    layout_of,
    sha256_bucket,
)
from tailrace.segmentstore.tables.plan import Buckets, Ids, Plan, PlanBatch, plan_remove, plan_update
from tailrace.segmentstore.tables.record import Record, record_bytes
from tailrace.segmentstore.tables.staging import StagedTable, outcome
from tailrace.segmentstore.tables.types import TableDelta, TableEntry, TableInfo, TableKey
from tailrace.segmentstore.tables.waiting import Change, Step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

_T = TypeVar("_T")


class TableService:
    """Table segments of one container; implements ``types.TableOperations``.

    `hash_function` maps keys to 16-byte buckets. It is part of the format; only tests use another one than SHA-256.
    """

    def __init__(
        self,
        container: SegmentContainer,
        cache: EntryCache | None = None,
        *,
        hash_function: HashFunction = sha256_bucket,
    ) -> None:
        self.container = container
        self._access = TableAccess(container, EntryCache() if cache is None else cache, hash_function)

    # -- creation and deletion -----------------------------------------------------------------------------------

    async def create_table(self, segment: str, key_length: int) -> None:
        """Create a table segment; `key_length` 0 is the hash layout. Raises SegmentExistsError, BadRequestError."""
        layout = layout_for_new_table(key_length, self._access.hash_function)
        attributes = [(TABLE_ENTRY_COUNT, 0), (TABLE_TOTAL_ENTRY_COUNT, 0), (TABLE_COMPACTION_OFFSET, 0)]
        if isinstance(layout, HashLayout):
            await self.container.create_segment(segment, kind=SegmentKind.TABLE, attributes=attributes)
            return
        await self.container.create_segment(
            segment,
            kind=SegmentKind.FIXED_KEY_TABLE,
            key_length=layout.attribute_id_length,
            attributes=[*attributes, (TABLE_KEY_LENGTH, key_length)],
        )

    async def delete_table(self, segment: str, must_be_empty: bool) -> None:
        """Delete. Raises TableNotEmptyError; UnsupportedError for `must_be_empty` on the fixed-key layout.

        WriteConflictError: the table was deleted and created again meanwhile.
        """
        table, staged = await self._access.enter(segment)
        try:
            async with staged.lock:
                if must_be_empty:
                    await self._check_empty(segment, staged)
                self._access.same(table)
                await self.container.delete(segment)
        finally:
            self._access.leave(table, staged)

    async def _check_empty(self, segment: str, staged: StagedTable) -> None:
        if isinstance(staged.layout, FixedKeyLayout):
            raise UnsupportedError(f"deleting {segment} only if it is empty: its keys have a fixed length")
        await staged.settled()
        if (await self.container.info(segment)).core_attributes.get(TABLE_ENTRY_COUNT, 0) != 0:
            raise TableNotEmptyError(f"table segment {segment} is not empty")

    async def info(self, segment: str) -> TableInfo:
        """Return the properties of a table segment."""
        table = await self.container.info(segment)
        layout = layout_of(table, self._access.hash_function)
        entry_count = table.core_attributes.get(TABLE_ENTRY_COUNT, 0)
        return TableInfo(table.start_offset, table.length, entry_count, layout.key_length)

    # -- changes -------------------------------------------------------------------------------------------------

    async def update(self, segment: str, entries: Sequence[TableEntry], table_offset: int = -1) -> list[int]:
        """Insert or update atomically; return the new versions in the order of the entries.

        Raises:
            TableKeyNotExistsError, TableKeyBadVersionError: a condition failed, nothing was changed.
            BadOffsetError: `table_offset` is not -1 and not the segment's length.
            SegmentSealedError, BadRequestError, WriteConflictError (too many concurrent changes).
        """
        _check_batch(entries)

        def plan(_: Layout, ids: Ids, buckets: Buckets, tail: int) -> Plan:
            return plan_update(ids, buckets, entries, tail)

        done = await self._change(segment, [entry.key for entry in entries], table_offset, plan)
        return done.versions

    async def remove(self, segment: str, keys: Sequence[TableKey], table_offset: int = -1) -> bool:
        """Remove atomically; errors as `update`. An absent key without a condition is removed successfully.

        Returns False when there was nothing to change.
        """
        _check_batch(keys)

        def plan(layout: Layout, ids: Ids, buckets: Buckets, tail: int) -> Plan:
            return plan_remove(ids, buckets, keys, tail, tombstones=layout.has_tombstones)

        done = await self._change(segment, [key.key for key in keys], table_offset, plan)
        return not done.is_empty

    async def _change(self, segment: str, keys: Sequence[bytes], table_offset: int, plan: PlanBatch) -> Plan:
        for _ in range(limits.TABLE_CONFLICT_RETRIES_MAX):
            try:
                return await self._try_change(segment, keys, table_offset, plan)
            except WriteConflictError:
                await asyncio.sleep(0)
        raise WriteConflictError(f"table segment {segment} changed {limits.TABLE_CONFLICT_RETRIES_MAX} times meanwhile")

    async def _try_change(self, segment: str, keys: Sequence[bytes], table_offset: int, plan: PlanBatch) -> Plan:
        table, staged = await self._access.enter(segment)
        try:
            layout = staged.layout
            for key in keys:
                layout.check_key(key)
            change = Change({key: layout.attribute_id(key) for key in keys}, table_offset, plan)
            if staged.is_quiet:
                await self._change_alone(table, staged, change)
            elif not await self._changed_with_others(table, staged, change):
                await self._change_alone(table, staged, change, reads_first=True)
            return change.answer()
        finally:
            self._access.leave(table, staged)

    async def _changed_with_others(self, table: SegmentLength, staged: StagedTable, change: Change) -> bool:
        """Wait until others and this change are planned together and durable; return False when it must go alone."""
        leads = staged.waiting.join(change)
        while True:
            if leads:
                await lead(self._access, table, staged, change)
            try:
                await outcome(change.turn)
            except asyncio.CancelledError:
                if change.step is Step.LEAD:
                    staged.waiting.pass_on()
                raise
            if change.step is not Step.LEAD:
                return change.step is Step.ANSWER
            leads, change.step = True, Step.ANSWER
            change.wait()

    async def _change_alone(
        self, table: SegmentLength, staged: StagedTable, change: Change, *, reads_first: bool = False
    ) -> None:
        """Plan and submit it. With `reads_first` it reads cold entries before it takes the lock: others wait for it."""
        ids = change.ids.values()
        if reads_first:
            await self._access.current_buckets(table, staged, ids)
        async with staged.lock:
            tail = staged.length(self._access.same(table).length)
            buckets = await self._access.current_buckets(table, staged, ids)
            planned = change.decide(table.name, staged.layout, buckets, tail)
            in_flight = None if planned.is_empty else await self._access.submit(table.name, staged, planned)
        # Reply only after the state is durable that the outcome rests on, even for a refusal.
        await outcome(staged.settled() if in_flight is None else in_flight.done)

    # -- queries -------------------------------------------------------------------------------------------------

    async def get(self, segment: str, keys: Sequence[bytes]) -> list[TableEntry | None]:
        """Return committed entries in the order of the keys; None for a missing one. Raises BadRequestError."""

        async def ask(table: SegmentProperties, layout: Layout) -> list[TableEntry | None]:
            return await queries.get(self._access.reader, table, layout, keys)

        return await self._read(segment, ask)

    async def iterate_keys(
        self, segment: str, limit: int, continuation: bytes, from_key: bytes, to_key: bytes
    ) -> tuple[list[TableKey], bytes]:
        """Return about `limit` keys and the next token; no keys means the end. Raises BadRequestError."""
        records, token = await self._iterate(segment, limit, continuation, from_key, to_key)
        return [TableKey(record.key, record.version) for record in records], token

    async def iterate_entries(
        self, segment: str, limit: int, continuation: bytes, from_key: bytes, to_key: bytes
    ) -> tuple[list[TableEntry], bytes]:
        """Return about `limit` entries and the next token; no entries means the end. Raises BadRequestError."""
        records, token = await self._iterate(segment, limit, continuation, from_key, to_key)
        return [queries.entry_of(record) for record in records], token

    async def _iterate(
        self, segment: str, limit: int, continuation: bytes, from_key: bytes, to_key: bytes
    ) -> tuple[list[Record], bytes]:
        async def ask(table: SegmentProperties, layout: Layout) -> tuple[list[Record], bytes]:
            span = queries.span_of(layout, continuation, from_key, to_key)
            return await queries.iterate(self.container, self._access.reader, table, span, limit)

        return await self._read(segment, ask)

    async def delta(self, segment: str, from_position: int, limit: int) -> TableDelta:
        """Return the changes since `from_position`. Raises UnsupportedError (fixed-key layout), BadRequestError."""

        async def ask(table: SegmentProperties, layout: Layout) -> TableDelta:
            return await queries.delta(self._access.reader, table, layout, from_position, limit)

        return await self._read(segment, ask)

    async def _read(self, segment: str, ask: Callable[[SegmentProperties, Layout], Awaitable[_T]]) -> _T:
        """Retry when compaction truncates what the index led to, or another table took the name."""
        for _ in range(limits.TABLE_CONFLICT_RETRIES_MAX):
            table = await self.container.info(segment)
            try:
                return await ask(table, layout_of(table, self._access.hash_function))
            except (SegmentTruncatedError, WriteConflictError):
                await asyncio.sleep(0)
        raise WriteConflictError(f"table segment {segment} changed {limits.TABLE_CONFLICT_RETRIES_MAX} times meanwhile")

    # -- compaction ----------------------------------------------------------------------------------------------

    async def compact(self, segment: str) -> bool:
        """Run one compaction pass at any utilisation; return False when there is nothing to compact."""
        return await compaction.compact(self._access, segment)

    async def compact_due(self) -> int:
        """Compact the tables that changed and need it; return the number of passes.

        The worker calls this every ``limits.TABLE_COMPACTION_INTERVAL_S``, never twice at a time. A table that fails
        delays no other one and is retried; the first TailraceError is raised at the end. Any other error ends the call
        at once; a later call looks at the rest first.
        """
        passes = 0
        failed: TailraceError | None = None
        due = deque(self._access.take_changed())
        try:
            while due:
                try:
                    passes += await compaction.compact_while_needed(self._access, due[0])
                except TailraceError as error:
                    self._access.add_changed(due[0])
                    failed = failed or error
                due.popleft()
        finally:
            due.rotate(-1)  # the one that ended the call comes after those that it kept waiting
            for segment in due:
                self._access.add_changed(segment)
        if failed is not None:
            raise failed
        return passes


def _check_batch(batch: Sequence[TableEntry] | Sequence[TableKey]) -> None:
    """Raise BadRequestError when a batch breaks a limit (docs/protocol/wire.md#table-limits)."""
    total_bytes = 0
    for item in batch:
        value = item.value if isinstance(item, TableEntry) else b""
        if len(value) > limits.TABLE_VALUE_MAX_BYTES:
            raise BadRequestError(f"table value of {len(value)} bytes, more than {limits.TABLE_VALUE_MAX_BYTES}")
        total_bytes += record_bytes(item.key, value)
    if total_bytes > limits.TABLE_BATCH_MAX_BYTES:
        raise BadRequestError(f"table batch of {total_bytes} bytes, more than {limits.TABLE_BATCH_MAX_BYTES}")
    keys = len({item.key for item in batch})
    if keys > limits.TABLE_BATCH_KEYS_MAX:
        raise BadRequestError(f"table batch of {keys} keys, more than {limits.TABLE_BATCH_KEYS_MAX}")
