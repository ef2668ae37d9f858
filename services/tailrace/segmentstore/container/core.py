"""What all parts of a container share: its state, its log's operations, its phase and its tasks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError, FencedError, NoSuchSegmentError, OutcomeUnknownError
from tailrace.segmentstore.container.arena_pool import ArenaPool
from tailrace.segmentstore.container.committer import Committer
from tailrace.segmentstore.container.log_admission import LogAdmission
from tailrace.segmentstore.container.operation_processor import OperationProcessor, StagedAppend
from tailrace.segmentstore.container.ownership_check import OwnershipCheck
from tailrace.segmentstore.container.request_waits import RequestWaits
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.metadata.untiered_room import UntieredRoom
from tailrace.segmentstore.metadata.value_room import ValueRoom
from tailrace.storage.put_window import PutWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tailrace.common.ports import Clock, Entropy
    from tailrace.log.port import DurableLog
    from tailrace.segmentstore.attributes.attribute_store import AttributeStore
    from tailrace.segmentstore.attributes.pages import PageRoom
    from tailrace.segmentstore.background.flush_queue import FlushQueue
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.cache.segment_reader import SegmentReader
    from tailrace.segmentstore.metadata import operations as ops
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects
    from tailrace.storage.port import ObjectStore

_logger = structlog.get_logger()
_T = TypeVar("_T")


def _record_nothing(epoch: int) -> None:
    """No-op where no file says that the log exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPorts:
    """What a container is made of; all of it can be simulated.

    ``upload_slots`` bounds the uploads in memory, ``upload_window`` those that are sent at a time (ChunkObjects).
    ``log_opened(epoch)`` records that the log exists and holds an operation of this epoch.
    The containers of a process share all that has a default. One is ``recovery_lock``, so that they recover one
    after another (docs/design.md#cache).
    """

    log: DurableLog
    store: ObjectStore
    cache: CacheManager
    clock: Clock
    entropy: Entropy
    cluster_id: bytes
    upload_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.UPLOADS_MAX))
    upload_window: PutWindow = field(default_factory=lambda: PutWindow(limits.UPLOADS_MAX))
    pages: PageRoom | None = None
    arenas: ArenaPool = field(default_factory=ArenaPool)
    index_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.INDEX_UPLOADS_MAX))
    untiered: UntieredRoom = field(default_factory=UntieredRoom)
    values: ValueRoom = field(default_factory=ValueRoom)
    recovery_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    log_opened: Callable[[int], None] = _record_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStorage:
    """Where a container's committed bytes and attributes are read, and written to Tier 2."""

    tier2: ChunkObjects
    attributes: AttributeStore
    reader: SegmentReader


class ContainerCore:
    """The shared centre of one container; its parts receive it and know nothing of each other.

    ``processor`` and ``admission`` exist from `begin` on: they need the recovered state.
    """

    processor: OperationProcessor
    admission: LogAdmission

    def __init__(self, container_id: int, epoch: int, ports: ContainerPorts, flush_queue: FlushQueue) -> None:
        self.container_id = container_id
        self.epoch = epoch
        self.ports = ports
        self.cache = ports.cache
        self.log = ports.log
        self.clock = ports.clock
        self.flush_queue = flush_queue
        self.state = ContainerState(container_id, ports.untiered, ports.values)
        self.committer = Committer(self.state, ports.cache, ports.clock, flush_queue.appended)
        self.ownership = OwnershipCheck(container_id, ports.log, self.stop)
        self.waits = RequestWaits()
        self.phase = "new"
        self.leaving = False
        self.reason = ""
        self.stop_cause: Exception | None = None
        self.stopped = asyncio.Event()
        self.tasks: dict[asyncio.Task[None], None] = {}  # not sets: they are cancelled in order
        self.caller_tasks: dict[asyncio.Task[Any], None] = {}

    # -- phase ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Accept operations, behind the recovered state."""
        arenas, next_sequence = self.ports.arenas, self.state.next_sequence
        self.processor = OperationProcessor(self.log, arenas, next_sequence, self.committer.commit_frame, self.stop)
        self.admission = LogAdmission(
            self.container_id, self.log, self.processor, self.ports.untiered, self.flush_queue
        )
        self.phase = "running"
        self.cache.on_pressure(self.flush_queue.flush_now)
        self.ports.untiered.on_pressure(self.flush_queue.flush_now)
        if not self.ports.untiered.has_room:
            self.flush_queue.flush_now()  # others wait, and recovery filled it

    def stop(self, cause: Exception) -> None:
        """Stop the container; the first cause counts. Fail what is not durable with OutcomeUnknownError."""
        if self.stop_cause is not None:
            return
        self.stop_cause = cause
        was_running = self.phase == "running"
        self.phase = "stopped"
        self.reason = str(cause)
        if not isinstance(cause, ContainerStoppedError):
            _logger.error("container_stopped", container=self.container_id, reason=self.reason)
        if was_running:
            self.cache.remove_listener(self.flush_queue.flush_now)
            self.ports.untiered.remove_listener(self.flush_queue.flush_now)
            for item in self.processor.stop(cause):
                if isinstance(item, StagedAppend):
                    item.request.failed(item.request, OutcomeUnknownError(str(self.stopped_error())))
            for segment in (*self.state.segments.values(), *self.state.staged_creates.values()):
                self.cache.unstage(segment.read_index)
        self.committer.stop(self.stopped_error())
        self.ownership.stop()
        self.waits.end()
        for segment in self.state.segments.values():
            segment.wake()
        for task in (*self.tasks, *self.caller_tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self.stopped.set()

    def stopped_error(self) -> ContainerStoppedError:
        """Return the error for requests of a container that stopped."""
        return ContainerStoppedError(f"container {self.container_id} stopped: {self.reason}")

    def check_running(self) -> None:
        """Raise ContainerStoppedError unless the container runs."""
        if self.phase != "running":
            raise self._not_running()

    def check_serving(self) -> None:
        """Raise ContainerStoppedError unless the container takes requests: it runs and does not leave."""
        if self.phase != "running":
            raise self._not_running()
        if self.leaving:
            raise ContainerStoppedError(f"container {self.container_id} is closing on this worker")

    def _not_running(self) -> ContainerStoppedError:
        if self.stop_cause is not None:
            return self.stopped_error()
        return ContainerStoppedError(f"container {self.container_id} is recovering")

    def disk_full_reason(self) -> str:
        """Return why appends are refused on a full disk; empty when they are not."""
        return self.admission.full_reason if self.phase == "running" else ""

    # -- tasks ---------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run background work until the container stops. An error of it stops the container."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.stop(error)

    def spawn_for_caller(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run work that a caller awaits, and that continues when the caller is cancelled. The caller gets its error."""
        task = asyncio.get_running_loop().create_task(work)
        self.caller_tasks[task] = None
        task.add_done_callback(self._caller_task_done)
        return task

    def _caller_task_done(self, task: asyncio.Task[Any]) -> None:
        self.caller_tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the caller may be gone

    async def wait_tasks(self) -> None:
        """Wait until all tasks have ended; call it after `stop`."""
        if self.tasks or self.caller_tasks:
            await asyncio.wait([*self.tasks, *self.caller_tasks])

    # -- segments ------------------------------------------------------------------------------------------------

    def committed_segment(self, name: str) -> Segment:
        """Return a segment that is committed. Raises NoSuchSegmentError, ContainerStoppedError."""
        self.check_serving()
        segment = self.state.by_name.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        return segment

    def staged_segment(self, name: str) -> Segment:
        """Return a segment as of the last staged operation. Raises NoSuchSegmentError, ContainerStoppedError."""
        self.check_serving()
        segment = self.state.staged_by_name.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        return segment

    def is_live(self, segment: Segment) -> bool:
        """Return whether the segment was neither deleted nor merged. Raises ContainerStoppedError."""
        self.check_running()
        return self.state.segments.get(segment.segment_id) is segment

    # -- operations ----------------------------------------------------------------------------------------------

    async def barrier(self) -> None:
        """Wait until every operation that was staged before this call is committed."""
        await self.committer.committed(self.processor.next_sequence - 1)

    async def commit_control(self, operation: ops.ControlOperation) -> None:
        """Stage an operation of the container's own and wait for its commit."""
        self.check_running()
        await self.admission.wait_background(len(operation.encode()))
        self.check_running()
        await self.processor.stage_control(operation)

    async def admit_control(self, *, internal: bool = True, gives_space: bool = False) -> None:
        """Wait for room in the log for a caller's operation. Raises DiskFullError, ContainerStoppedError.

        ``internal``: it may use the room for records that internal segments have. ``gives_space``: it may use the
        reserve of a full disk, because it frees space.
        """
        self.check_serving()
        body_bytes, admission = limits.CONTROL_OPERATION_MAX_BYTES, self.admission
        while (again := admission.check(body_bytes, internal=internal, reserved=gives_space)) is not None:
            await self.waits.behind(again)
            self.check_serving()

    def may_do_maintenance(self) -> bool:
        """Return whether maintenance that can wait may run: not while the log's disk is full."""
        return not self.admission.full_reason

    # -- ownership -----------------------------------------------------------------------------------------------

    async def confirm_owner(self) -> None:
        """Raise FencedError when the log has a later owner."""
        await self.log.confirm_owner()

    async def confirm_owner_or_stop(self) -> None:
        """Confirm ownership when an object is missing; stop if fenced.

        A later owner may have deleted the object. Without one the object is lost.
        """
        try:
            await self.confirm_owner()
        except FencedError as error:
            self.stop(error)
            raise
