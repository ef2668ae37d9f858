"""Tracks the changes in flight of a table: updates are pipelined although they depend on each other.

See docs/design.md#table-segments.

Updates of one table are submitted in sequence, under a lock that is released once the container has accepted the
append. Its outcome is certain by then (a container commits what it has staged, or stops). So the next update builds on
it: on its buckets, and on the length after it. Each append is conditional on that length and on the index values that
it replaces, so an update on a wrong assumption fails and is retried, without harm.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadAttributeError, BadOffsetError, OverloadedError, WriteConflictError
from tailrace.segmentstore.api import AppendRequest, SegmentContainer
from tailrace.segmentstore.tables.turns import Turns
from tailrace.segmentstore.tables.waiting import WaitingChanges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tailrace.segmentstore.tables.layout import Layout
    from tailrace.segmentstore.tables.plan import Bucket, Plan


class InFlight:
    """A submitted plan. Its submitter awaits ``done``, others `watch` it; a cancelled waiter affects no other."""

    __slots__ = ("_error", "_is_finished", "_others", "done", "plan", "taken")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.taken = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._others: list[asyncio.Future[None]] = []
        self._is_finished = False  # ``done`` may be done before: its submitter may have been cancelled
        self._error: Exception | None = None

    def watch(self, other: asyncio.Future[None]) -> None:
        """Let a future have the outcome, too."""
        if self._is_finished:
            _settle(other, self._error)
        else:
            self._others.append(other)

    def finish(self, error: Exception | None) -> None:
        """Wake all waiters with the outcome."""
        self._is_finished, self._error = True, error
        for waiter in (self.done, *self._others):
            _settle(waiter, error)


def _settle(waiter: asyncio.Future[None], error: Exception | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
        waiter.exception()  # mark as retrieved: the waiter may have been cancelled


class StagedTable:
    """The layout and the in-flight changes of one table segment; it exists while it has users or changes in flight."""

    def __init__(self, container: SegmentContainer, layout: Layout, finished: Callable[[Plan, bool], None]) -> None:
        """``finished(plan, committed)`` is called after each submitted change."""
        self._container = container
        self.layout = layout
        self._finished = finished
        self._buckets: dict[bytes, tuple[Bucket, InFlight]] = {}
        self._in_flight = 0
        self._length = 0
        self._last: InFlight | None = None
        self.lock = Turns()
        self.waiting = WaitingChanges()
        self.users = 0

    @property
    def idle(self) -> bool:
        """Return whether the object has no users and no changes in flight."""
        return self.users == 0 and self._in_flight == 0

    @property
    def is_quiet(self) -> bool:
        """Return whether no change is planned or in flight: one that comes now need not wait for others."""
        return not (self._in_flight or self.lock.locked())

    def watch(self, change: InFlight | None, outcome: asyncio.Future[None]) -> None:
        """Let a future have the outcome of a change; None: that of the last one in flight."""
        if change is None and self._in_flight:
            change = self._last
        if change is None:
            _settle(outcome, None)
        else:
            change.watch(outcome)

    def length(self, committed: int) -> int:
        """Return the length that the next append will find. `committed`: the table's length."""
        return max(self._length, committed)

    def buckets(self, attribute_ids: Iterable[bytes]) -> dict[bytes, Bucket]:
        """Return the buckets that changes in flight leave; for other attributes the committed value is current."""
        if not self._buckets:
            return {}
        return {
            attribute_id: self._buckets[attribute_id][0]
            for attribute_id in attribute_ids
            if attribute_id in self._buckets
        }

    async def settled(self) -> None:
        """Wait until all submitted changes are committed; raise the error of the last one."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.watch(None, outcome)
        await outcome

    async def submit(self, segment: str, plan: Plan) -> InFlight:
        """Submit a plan to the container. Call with the lock held; it may be released afterwards.

        Raises:
            OverloadedError: the container has no room.
            TailraceError: the container refused the append; nothing was changed.
        """
        change = InFlight(plan)

        def completed(request: AppendRequest) -> None:
            if request.offset == plan.tail:
                self._finish(change, None)
            else:
                self._finish(change, BadOffsetError(segment, plan.tail, request.offset))

        def failed(_: AppendRequest, error: Exception) -> None:
            self._finish(change, error)

        request = AppendRequest(
            segment, plan.parts, plan.length, plan.updates, completed, failed, expected_offset=plan.tail
        )
        await self._hand_over(request)
        if change.done.done():
            change.done.result()
            return change
        change.taken = True
        self._in_flight += 1
        self._length = plan.tail + plan.length
        self._last = change
        for attribute_id, bucket in plan.buckets.items():
            self._buckets[attribute_id] = (bucket, change)
        return change

    async def _hand_over(self, request: AppendRequest) -> None:
        room = self._container.submit_append(request)
        if room is None:
            return
        try:
            async with asyncio.timeout(limits.REQUEST_DEADLINE_S):
                while room is not None:
                    await room
                    room = self._container.submit_append(request)
        except TimeoutError as error:
            raise OverloadedError(f"no room for an update of {request.segment}") from error

    def _finish(self, change: InFlight, error: Exception | None) -> None:
        """Remove a change that is committed or failed, and wake its waiters."""
        if change.taken:
            self._in_flight -= 1
            for attribute_id in change.plan.buckets:
                staged = self._buckets.get(attribute_id)
                if staged is not None and staged[1] is change:
                    del self._buckets[attribute_id]
        if error is not None and not self._in_flight:
            # The next change reads the container's length. While others are in flight, only theirs is the right one:
            # either the failed change was never staged, or those are built on it and fail too.
            self._length = 0
        self._finished(change.plan, error is None)
        change.finish(error)


async def outcome(settled: Awaitable[None]) -> None:
    """Wait for a change in flight. Raises WriteConflictError when it was built on a change that failed."""
    try:
        await settled
    except (BadAttributeError, BadOffsetError) as error:
        raise WriteConflictError(str(error)) from error
