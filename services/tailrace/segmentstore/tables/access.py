"""What changes and compaction of table segments share: the in-flight changes, the buckets they leave, submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadAttributeError, BadOffsetError, SegmentTruncatedError, WriteConflictError
from tailrace.segmentstore.api import SegmentLength
from tailrace.segmentstore.tables.layout import HashFunction, layout_of
from tailrace.segmentstore.tables.reader import TableReader
from tailrace.segmentstore.tables.staging import InFlight, StagedTable

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace.segmentstore.api import SegmentContainer
    from tailrace.segmentstore.tables.cache import EntryCache
    from tailrace.segmentstore.tables.layout import Layout
    from tailrace.segmentstore.tables.plan import Bucket, Buckets, Plan
    from tailrace.segmentstore.tables.reader import Table


class TableAccess:
    """Access to the table segments of one container, for every part that changes them.

    ``changed`` holds the tables that changed since the last compaction, the most recent one last.
    """

    def __init__(self, container: SegmentContainer, cache: EntryCache, hash_function: HashFunction) -> None:
        self.container = container
        self.reader = TableReader(container, cache)
        self.hash_function = hash_function
        self.changed: dict[str, None] = {}
        self._staged: dict[int, StagedTable] = {}

    @property
    def tables_in_use(self) -> int:
        """Number of tables with a caller or a change in flight; the tables' tests check that it returns to 0."""
        return len(self._staged)

    async def enter(self, segment: str) -> tuple[SegmentLength, StagedTable]:
        """Return the table's committed length and its changes in flight. Call `leave` afterwards."""
        table = self.container.length_of(segment)
        staged = self._staged.get(table.segment_id)
        if staged is None:
            found = await self.container.info(segment)
            table = SegmentLength(segment, found.segment_id, found.length)
            staged = self._staged.get(table.segment_id) or self._stage(table, layout_of(found, self.hash_function))
        staged.users += 1
        return table, staged

    def _stage(self, table: SegmentLength, layout: Layout) -> StagedTable:
        segment, table_id = table.name, table.segment_id
        self._staged[table_id] = StagedTable(
            self.container, layout, lambda plan, committed: self._finished(segment, table_id, plan, committed)
        )
        return self._staged[table_id]

    def leave(self, table: SegmentLength, staged: StagedTable) -> None:
        """Undo `enter`."""
        staged.users -= 1
        self._forget_if_idle(table.segment_id)

    def same(self, table: Table) -> SegmentLength:
        """Return the table's current length. Raises WriteConflictError when another segment has its name."""
        return self.reader.check_same(table)

    async def current_buckets(self, table: Table, staged: StagedTable, ids: Collection[bytes]) -> dict[bytes, Bucket]:
        """Return the buckets after all changes in flight. While the caller holds the lock, they stay current.

        Raises:
            WriteConflictError: compaction moved an entry meanwhile.
        """
        buckets = staged.buckets(ids)
        cold = [attribute_id for attribute_id in ids if attribute_id not in buckets]
        try:
            if cold:
                buckets.update(await self.reader.buckets(table, cold, keep=True))
        except SegmentTruncatedError as error:
            raise WriteConflictError(str(error)) from error
        return buckets

    def warm_buckets(
        self, table: Table, staged: StagedTable, ids: Collection[bytes], ahead: Buckets
    ) -> dict[bytes, Bucket] | None:
        """Return the buckets after all changes in flight and those in `ahead`; None when some are not in memory."""
        buckets = staged.buckets(ids)
        buckets.update((attribute_id, ahead[attribute_id]) for attribute_id in ids if attribute_id in ahead)
        if cold := [attribute_id for attribute_id in ids if attribute_id not in buckets]:
            found = self.reader.warm_buckets(table, cold)
            if found is None:
                return None
            buckets.update(found)
        return buckets

    async def submit(self, segment: str, staged: StagedTable, plan: Plan) -> InFlight:
        """Submit a plan with the lock held. Raises WriteConflictError when the table differs from what it assumes."""
        try:
            return await staged.submit(segment, plan)
        except (BadAttributeError, BadOffsetError) as error:
            raise WriteConflictError(str(error)) from error

    def take_changed(self) -> list[str]:
        """Return the tables that changed since the last call."""
        changed, self.changed = self.changed, {}
        return list(changed)

    def add_changed(self, segment: str) -> None:
        """Have compaction look at a table; at most ``limits.TABLE_COMPACTION_CANDIDATES_MAX`` wait for that."""
        self.changed.setdefault(segment)
        if len(self.changed) > limits.TABLE_COMPACTION_CANDIDATES_MAX:
            del self.changed[next(iter(self.changed))]

    def _finished(self, segment: str, table_id: int, plan: Plan, committed: bool) -> None:
        self._forget_if_idle(table_id)
        if not committed:
            return
        for bucket in plan.buckets.values():
            self.reader.remember(table_id, bucket)
        self.changed.pop(segment, None)
        self.add_changed(segment)

    def _forget_if_idle(self, table_id: int) -> None:
        staged = self._staged.get(table_id)
        if staged is not None and staged.idle:
            del self._staged[table_id]
