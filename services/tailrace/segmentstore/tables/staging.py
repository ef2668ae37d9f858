"""What is in flight for a table: lets updates be pipelined although each depends on the state before it (design §7).

Updates of one table are submitted one after the other, under a lock that is let go as soon as the container has taken
the append. Their outcome is certain by then (a container commits what it has staged, or stops), so the next update
builds on it: on the buckets that they leave and on the length that they lead to. Each append is conditional on that
length and on the index values it replaces, so a wrong guess fails and is repeated, and never does harm.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadAttributeError, BadOffsetError, OverloadedError, WriteConflictError
from tailrace.segmentstore.api import AppendRequest, SegmentContainer, SegmentProperties

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tailrace.segmentstore.tables.plan import Bucket, Plan


class InFlight:
    """A submitted plan. Its submitter waits for ``done``, others by `settled`; each may give up without the others."""

    __slots__ = ("_others", "done", "plan", "taken")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.taken = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._others: list[asyncio.Future[None]] = []

    async def settled(self) -> None:
        """Wait until the plan is committed; raises why it failed."""
        other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._others.append(other)
        await other

    def finish(self, error: Exception | None) -> None:
        """Tell everybody."""
        for waiter in (self.done, *self._others):
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
                waiter.exception()  # the loop must not complain when the caller was cancelled meanwhile


class StagedTable:
    """The in-flight changes of one table segment. Exists while somebody uses it."""

    def __init__(self, container: SegmentContainer, finished: Callable[[Plan, bool], None]) -> None:
        """``finished(plan, committed)`` is called after each change that was submitted."""
        self._container = container
        self._finished = finished
        self._buckets: dict[bytes, tuple[Bucket, InFlight]] = {}
        self._in_flight = 0
        self._length = 0
        self._last: InFlight | None = None
        self.lock = asyncio.Lock()
        self.users = 0

    @property
    def idle(self) -> bool:
        """Whether nobody needs this object any more."""
        return self.users == 0 and self._in_flight == 0

    def length(self, table: SegmentProperties) -> int:
        """The length that the next append will find."""
        return max(self._length, table.length)

    def buckets(self, attribute_ids: Iterable[bytes]) -> dict[bytes, Bucket]:
        """The buckets that changes in flight leave; of the other attributes the committed value is the newest."""
        if not self._buckets:
            return {}
        return {
            attribute_id: self._buckets[attribute_id][0]
            for attribute_id in attribute_ids
            if attribute_id in self._buckets
        }

    async def settled(self) -> None:
        """Wait until everything submitted so far is committed; raises what the last of it failed with."""
        if self._in_flight and self._last is not None:
            await self._last.settled()

    async def submit(self, segment: str, plan: Plan) -> InFlight:
        """Hand a plan to the container. Call with the lock held; the lock may be let go afterwards.

        Raises:
            OverloadedError: the container takes nothing.
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
                    await asyncio.shield(room)
                    room = self._container.submit_append(request)
        except TimeoutError as error:
            raise OverloadedError(f"no room for an update of {request.segment}") from error

    def _finish(self, change: InFlight, error: Exception | None) -> None:
        """Forget a change that is committed or failed, and tell those who wait for it."""
        if change.taken:
            self._in_flight -= 1
            for attribute_id in change.plan.buckets:
                staged = self._buckets.get(attribute_id)
                if staged is not None and staged[1] is change:
                    del self._buckets[attribute_id]
        if error is not None:
            self._length = 0  # what was to follow will fail too; the next change asks the container again
        self._finished(change.plan, error is None)
        change.finish(error)


async def outcome(settled: Awaitable[None]) -> None:
    """Wait for a change in flight. Raises WriteConflictError when it was built on a state that did not come true."""
    try:
        await settled
    except (BadAttributeError, BadOffsetError) as error:
        raise WriteConflictError(str(error)) from error
