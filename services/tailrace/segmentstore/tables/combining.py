"""Changes of a table that come together share one append (docs/adr/0048-changes-of-a-table-share-an-append.md).

One of them leads. At the end of the turn of the event loop, or once the table's lock is free, it plans all that wait,
each on the state that those before it leave, and submits the plans as one. Each change keeps its own conditions,
versions and outcome.

A change that needs something that is not in memory goes alone, so that the others do not wait for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import DataError, OverloadedError, TailraceError, WriteConflictError
from tailrace.segmentstore.api import AttributeUpdateType
from tailrace.segmentstore.tables.plan import Plan
from tailrace.segmentstore.tables.waiting import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.api import AttributeUpdate, SegmentLength
    from tailrace.segmentstore.tables.access import TableAccess
    from tailrace.segmentstore.tables.plan import Buckets
    from tailrace.segmentstore.tables.staging import StagedTable
    from tailrace.segmentstore.tables.waiting import Change


class Joined:
    """Plans that follow one another, as one."""

    def __init__(self, tail: int) -> None:
        self.members: list[Change] = []
        self._plan = Plan(tail)
        self._updates: dict[bytes, AttributeUpdate] = {}

    @property
    def end(self) -> int:
        """Return where the next plan begins."""
        return self._plan.tail + self._plan.length

    @property
    def buckets(self) -> Buckets:
        """Return the buckets that were changed."""
        return self._plan.buckets

    def has_room(self, planned: Plan) -> bool:
        """Return whether one append may have one more plan; a single one always fits."""
        return not self._updates or (
            len(self._updates) + len(planned.updates) <= limits.TABLE_BATCH_KEYS_MAX
            and self._plan.length + planned.length <= limits.TABLE_COMBINED_MAX_BYTES
        )

    def add(self, change: Change) -> None:
        """Add a change that was planned at `end`, or refused."""
        planned = change.planned
        self.members.append(change)
        self._plan.parts += planned.parts
        self._plan.length += planned.length
        self._plan.buckets.update(planned.buckets)
        for update in planned.updates:
            earlier = self._updates.get(update.attribute_id)
            self._updates[update.attribute_id] = update if earlier is None else _both(earlier, update)

    def finish(self) -> Plan:
        """Return the plan of all."""
        self._plan.updates = list(self._updates.values())
        return self._plan


def _both(earlier: AttributeUpdate, later: AttributeUpdate) -> AttributeUpdate:
    """Return one update that does what two do, one after the other."""
    if later.kind == AttributeUpdateType.ACCUMULATE:
        return later._replace(value=earlier.value + later.value)
    return later._replace(comparison=earlier.comparison)


async def lead(access: TableAccess, table: SegmentLength, staged: StagedTable, leader: Change) -> None:
    """Plan and submit one append of the changes that wait, and let another one lead the rest and what comes meanwhile.

    ``leader`` waits longest, so it is among them: its caller waits for no other append.
    """
    changes: list[Change] = []
    try:
        await asyncio.sleep(0)  # those of this turn of the loop join
        async with staged.lock:
            changes = staged.waiting.take()
            joined, count = _plan(access, table, staged, changes)
            staged.waiting.put_back(changes[count:])
            del changes[count:]
            await _submit(access, table.name, staged, joined)
    except BaseException:
        leader.turn.cancel()  # so that it is not to lead again
        raise
    finally:
        for change in changes:
            if not change.is_submitted:
                change.take(Step.GO_ALONE)
        staged.waiting.pass_on()


def _plan(
    access: TableAccess, table: SegmentLength, staged: StagedTable, changes: Sequence[Change]
) -> tuple[Joined, int]:
    """Plan changes whose buckets are in memory, as many as one append may have. Call with the lock held.

    Return their plans, and how many have had their turn: those without a plan go alone.
    """
    try:
        joined = Joined(staged.length(access.same(table).length))
    except TailraceError:
        return Joined(0), len(changes)  # each finds out for itself
    for number, change in enumerate(changes):
        if change.turn.done():
            continue  # its caller has given up
        buckets = _warm_buckets(access, table, staged, change, joined)
        if buckets is not None:
            if not joined.has_room(change.decide(table.name, staged.layout, buckets, joined.end)):
                return joined, number
            joined.add(change)
        elif number == 0:
            return joined, 1  # the leader goes alone, and waits for no others
    return joined, len(changes)


def _warm_buckets(
    access: TableAccess, table: SegmentLength, staged: StagedTable, change: Change, joined: Joined
) -> Buckets | None:
    try:
        return access.warm_buckets(table, staged, change.ids.values(), joined.buckets)
    except DataError:
        return None  # alone it meets what is damaged again, and the others do not


async def _submit(access: TableAccess, segment: str, staged: StagedTable, joined: Joined) -> None:
    """Submit the plan of all."""
    members, plan = joined.members, joined.finish()
    try:
        in_flight = None if plan.is_empty else await access.submit(segment, staged, plan)
    except TailraceError as error:
        for change in members:
            # Of any other error each one finds out for itself whether it is its own.
            if len(members) == 1 or isinstance(error, WriteConflictError | OverloadedError):
                change.fail(error)
        return
    for change in members:
        # Reply only after the state is durable that the outcome rests on, even for a refusal.
        change.is_submitted = True
        staged.watch(in_flight, change.turn)
