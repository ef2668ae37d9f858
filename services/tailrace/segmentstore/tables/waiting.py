"""The changes of a table that wait to be planned together, and what each does next (`combining.py`)."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadOffsetError, ConditionFailedError
from tailrace.segmentstore.tables.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.common.errors import TailraceError
    from tailrace.segmentstore.tables.layout import Layout
    from tailrace.segmentstore.tables.plan import Buckets, Ids, PlanBatch


class Step(enum.Enum):
    """What a change does once its turn has come."""

    ANSWER = enum.auto()
    """It is durable, or refused."""
    GO_ALONE = enum.auto()
    LEAD = enum.auto()


class Change:
    """A change that waits to be planned with others. ``ids``: the attribute of each key.

    ``turn`` is done when ``step`` is to be taken, or has the error that its append failed with.
    """

    __slots__ = ("ids", "is_submitted", "plan", "planned", "refused", "step", "table_offset", "turn")

    def __init__(self, ids: Ids, table_offset: int, plan: PlanBatch) -> None:
        self.ids = ids
        self.table_offset = table_offset
        self.plan = plan
        self.is_submitted = False
        self.planned = Plan(0)
        self.refused: ConditionFailedError | None = None
        self.step = Step.ANSWER
        self.wait()

    def wait(self) -> None:
        """Wait for another turn."""
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, step: Step) -> None:
        """Let its task take a step."""
        if not self.turn.done():
            self.step = step
            self.turn.set_result(None)

    def fail(self, error: TailraceError) -> None:
        """Let its task raise the error of the append."""
        if not self.turn.done():
            self.turn.set_exception(error)

    def decide(self, segment: str, layout: Layout, buckets: Buckets, tail: int) -> Plan:
        """Plan it on this state, or refuse it; a refused one has an empty plan."""
        self.planned, self.refused = Plan(tail), None
        try:
            if self.table_offset not in (-1, tail):
                raise BadOffsetError(segment, self.table_offset, tail)
            self.planned = self.plan(layout, self.ids, buckets, tail)
        except ConditionFailedError as error:
            self.refused = error
        return self.planned

    def answer(self) -> Plan:
        """Return its plan. Raises the refusal."""
        if self.refused is not None:
            raise self.refused
        return self.planned


class WaitingChanges:
    """The changes of one table that wait to be combined. There are as many as requests without a reply."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque()
        self._is_led = False

    def join(self, change: Change) -> bool:
        """Add a change; return whether it leads."""
        self._changes.append(change)
        leads, self._is_led = not self._is_led, True
        return leads

    def take(self) -> list[Change]:
        """Remove and return those that wait longest."""
        count = min(len(self._changes), limits.TABLE_TURNS_MAX)
        return [self._changes.popleft() for _ in range(count)]

    def put_back(self, changes: Sequence[Change]) -> None:
        """Let changes that `take` returned wait again, before all others."""
        self._changes.extendleft(reversed(changes))

    def pass_on(self) -> None:
        """Let another one lead, if any is left."""
        while self._changes and self._changes[0].turn.done():
            self._changes.popleft()  # its caller has given up
        if self._changes:
            self._changes[0].take(Step.LEAD)
        else:
            self._is_led = False
