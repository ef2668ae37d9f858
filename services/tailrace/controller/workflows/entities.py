"""Run the workflows of reader groups, key-value tables and scopes, one at a time for each (docs/design.md#controller).

A workflow is listed as pending in the metadata before it begins, by a mark of its controller: what another one lists
or ends about the same entity takes no mark away. A step is idempotent and repeated until it succeeds, also by another
controller (`adoption.py`). While an intent may still be written whose call failed, or whose controller died, the mark
stays; the workflow looks for the intent at once and again after that time (`PendingMark.doubt`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import restart_deadline, without_deadline
from tailrace.common.errors import DeadlineError, OverloadedError, TailraceError, UnavailableError
from tailrace.controller.metadata.metadata_store import PENDING_TABLE
from tailrace.controller.workflows.pending_mark import PendingMark, remove_mark

if TYPE_CHECKING:
    from tailrace.controller.metadata.ports import Stored
    from tailrace.controller.metadata.records import PendingRecord
    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)
T = TypeVar("T")

READER_GROUP: Final = "group"
TABLE: Final = "table"
SCOPE: Final = "scope"

Step = Callable[[str, str], Awaitable[None]]


class Entity(NamedTuple):
    """A reader group, table or scope; ``name`` is unique for its kind in the scope."""

    kind: str
    scope: str
    name: str


@dataclass(slots=True)
class _Place:
    """What this controller remembers of an entity while its workflow runs, or its intent may still be written."""

    mark: PendingMark
    adopted: dict[bytes, int] = field(default_factory=dict)
    """Marks of dead controllers with their versions; they are removed after the own one."""
    look: asyncio.TimerHandle | None = None
    """Runs the workflow again when no such intent can be written any more."""


class EntityDriver:
    """Run the workflows of reader groups, tables and scopes."""

    def __init__(self, context: WorkflowContext) -> None:
        self._context = context
        self._steps: dict[str, Step] = {}
        self._running: dict[Entity, asyncio.Task[object]] = {}
        self._places: dict[Entity, _Place] = {}
        self._callers: dict[Entity, set[asyncio.Future[str]]] = {}
        """Calls that wait for a workflow; each learns the reason when its steps fail for long."""
        self._closed = False
        self.failed_steps = 0
        """How many steps have failed since the start; each is repeated."""

    @property
    def active(self) -> int:
        """Return the number of workflows of groups, tables and scopes that run."""
        return len(self._running)

    def register(self, kind: str, step: Step) -> None:
        """Register ``step(scope, name)``, which brings an entity of that kind to the state that its record demands."""
        self._steps[kind] = step

    def adopt(self, record: PendingRecord, mark: Stored | None) -> None:
        """Resume the workflow of an entity that another controller left, or this one before it had room for it.

        `mark` is the entry of the record, which is removed when the workflow has ended; None: its controller may live.

        Raises:
            OverloadedError: too many workflows are running.
        """
        entity = Entity(record.what, record.scope, record.name)
        if self._closed or record.what not in self._steps or entity in self._running:
            return
        left = mark if record.instance != self._context.instance else None
        place = self._places.get(entity)
        if place is not None and (left is None or left.key in place.adopted):
            return  # it is looked at again
        if place is None and len(self._places) >= self._context.config.entities_max:
            raise OverloadedError(f"{self._context.config.entities_max} workflows are running, which is the maximum")
        self._resume(entity)
        if left is not None:
            place = self._places[entity]
            place.adopted[left.key] = left.version
            place.mark.doubt()  # what its controller wrote last may still come

    async def close(self) -> None:
        """Stop; the next controller resumes the workflows."""
        self._closed = True
        for place in self._places.values():
            if place.look is not None:
                place.look.cancel()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def perform(self, entity: Entity, persist: Callable[[], Awaitable[T]], *, nested: bool = False) -> T:
        """Wait for the entity's other workflows, `persist` the intent, run its workflow; return `persist`'s result.

        `nested`: a step of another workflow begins it, one at a time, and waits for it. It runs without a place of its
        own among `entities_max`: workflows that hold all places, and each need a second one, would never end.

        Raises:
            DeadlineError: the deadline passed; the workflow continues. UnavailableError: its steps fail, and continue.
            Errors of `persist`, with nothing done.
        """
        try:
            async with asyncio.timeout(self._context.config.blocking_deadline_s):
                while (running := self._running.get(entity)) is not None:
                    await self._until_ended(entity, running)
                    restart_deadline()  # else the wait would leave the requests of this call no time
                task = self._launch(entity, persist, nested=nested)
                await self._until_ended(entity, task)
        except TimeoutError as error:
            raise DeadlineError(
                f"{entity.kind} {entity.scope}/{entity.name} is still busy; its workflow continues"
            ) from error
        finally:
            restart_deadline()
        if task.cancelled():
            raise DeadlineError("the controller stops; another controller resumes the workflow")
        return task.result()

    async def _until_ended(self, entity: Entity, task: asyncio.Task[Any]) -> None:
        """Wait for the task. Raises UnavailableError when its steps fail for too long."""
        trouble: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        callers = self._callers.setdefault(entity, set())
        callers.add(trouble)
        try:
            await asyncio.wait([task, trouble], return_when=asyncio.FIRST_COMPLETED)
        finally:
            callers.discard(trouble)
            if not callers and self._callers.get(entity) is callers:
                del self._callers[entity]
        if not task.done():
            raise UnavailableError(f"{entity.kind} {entity.scope}/{entity.name} waits: {trouble.result()}")

    def _launch(self, entity: Entity, persist: Callable[[], Awaitable[T]], *, nested: bool) -> asyncio.Task[T]:
        if self._closed:
            raise OverloadedError("the controller stops; call another one")
        most = self._context.config.entities_max
        if entity not in self._places and len(self._places) >= most and not nested:
            raise OverloadedError(f"{most} workflows are running, which is the maximum; retry")
        return self._track(entity, self._perform(entity, persist))

    def _track(self, entity: Entity, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        place = self._places.get(entity)
        if place is None:
            self._places[entity] = _Place(PendingMark(self._context, *entity))
        elif place.look is not None:
            place.look.cancel()
        task = asyncio.get_running_loop().create_task(work, name=f"{entity.kind} {entity.scope}/{entity.name}")
        self._running[entity] = task

        def ended(done: asyncio.Task[T]) -> None:
            if self._running.get(entity) is task:
                del self._running[entity]
                self._leave(entity)
            if not done.cancelled() and done.exception() is not None:
                _LOG.debug("workflow refused", entity=entity.name, reason=str(done.exception()))

        task.add_done_callback(ended)
        return task

    def _leave(self, entity: Entity) -> None:
        """Free the entity's place, unless an intent may still be written: look again when that is over."""
        place = self._places[entity]
        if place.mark.is_doubted and not self._closed:
            after_s = place.mark.doubted_for_s
            place.look = asyncio.get_running_loop().call_later(after_s, self._resume, entity)
        else:
            del self._places[entity]

    async def _perform(self, entity: Entity, persist: Callable[[], Awaitable[T]]) -> T:
        place = self._places[entity]
        (before,) = await self._context.store.metadata.get(PENDING_TABLE, [place.mark.key])
        # the mark is of a workflow that this controller had no room to resume, or whose intent may still be written
        has_other_work = before is not None or place.mark.is_doubted
        await place.mark.write()
        try:
            result = await persist()
        except Exception as error:
            is_refused = isinstance(error, TailraceError) and not isinstance(error, UnavailableError)
            if is_refused and not has_other_work:
                await self._settle(place)
                raise
            if not is_refused:
                place.mark.doubt()  # the intent may be written, now or later
            self._resume(entity)
            raise
        without_deadline()  # of the call: from here on the work continues without it
        await self._repeat(entity, place.mark.ensure)  # another controller may have removed it while that took long
        await self._repeat(entity, lambda: self._steps[entity.kind](entity.scope, entity.name))
        await self._settle(place)
        return result

    def _resume(self, entity: Entity) -> None:
        """Run the workflow that the entity's record demands, if any, in the background.

        An adopted entity has been given a place; any other one goes on in the place of the call that it replaces.
        """
        if self._closed:
            return  # it stays pending, and is adopted later

        async def resume() -> None:
            without_deadline()
            place = self._places[entity]
            await self._repeat(entity, place.mark.write)
            await self._repeat(entity, lambda: self._steps[entity.kind](entity.scope, entity.name))
            await self._settle(place)

        self._track(entity, resume())

    async def _repeat(self, entity: Entity, step: Callable[[], Awaitable[T]]) -> T:
        failures = 0
        late_s = asyncio.get_running_loop().time() + self._context.config.requests_deadline_s
        while True:
            try:
                async with asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
                    return await step()
            except Exception as error:  # any error is retried: the work must be finished
                failures += 1
                self.failed_steps += 1
                longest_s = min(
                    limits.WORKFLOW_BACKOFF_INITIAL_S * 2.0 ** min(failures, 16), limits.WORKFLOW_BACKOFF_MAX_S
                )
                pause_s = longest_s * (0.5 + 0.5 * self._context.entropy.uniform())
                _LOG.warning(
                    "workflow step failed, will be repeated",
                    kind=entity.kind,
                    name=f"{entity.scope}/{entity.name}",
                    error=f"{type(error).__name__}: {error}",
                    pause_s=round(pause_s, 3),
                    exc_info=not isinstance(error, TailraceError | TimeoutError),
                )
                if asyncio.get_running_loop().time() >= late_s:
                    for caller in self._callers.get(entity, ()):
                        if not caller.done():
                            caller.set_result(f"{type(error).__name__}: {error}; its workflow continues")
                await asyncio.sleep(pause_s)

    async def _settle(self, place: _Place) -> None:
        """Remove the marks of a workflow that has ended, unless an intent may still be written."""
        if place.mark.is_doubted:
            return
        await place.mark.remove()
        for key, version in place.adopted.items():
            await remove_mark(self._context, key, version)
