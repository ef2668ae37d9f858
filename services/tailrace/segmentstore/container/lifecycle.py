"""The life of a container: recovery, service, the end; and what all of its operations share (design §3)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    ContainerStoppedError,
    DataError,
    FencedError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    OverloadedError,
    TailraceError,
)
from tailrace.segmentstore.attributes.attribute_store import AttributeStore, PageRoom
from tailrace.segmentstore.background.chunk_compaction import ChunkCompaction
from tailrace.segmentstore.background.orphan_sweep import OrphanSweep
from tailrace.segmentstore.background.snapshotter import SnapshotPorts, Snapshotter
from tailrace.segmentstore.background.storage_writer import StorageWriter
from tailrace.segmentstore.cache.segment_reader import SegmentReader
from tailrace.segmentstore.container.checkpointer import Checkpointer
from tailrace.segmentstore.container.committer import Committer
from tailrace.segmentstore.container.log_admission import LogAdmission
from tailrace.segmentstore.container.operation_processor import OperationProcessor, StagedAppend
from tailrace.segmentstore.container.ownership_check import OwnershipCheck
from tailrace.segmentstore.container.recovery import Recovery
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tailrace.common.ports import Clock, Entropy
    from tailrace.log.port import DurableLog
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.storage.port import ObjectStore

_logger = structlog.get_logger()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ContainerPorts:
    """What a container is made of; all of it can be simulated.

    The containers of a process share ``upload_slots`` and ``pages``, and they recover one after another (design §8):
    ``turn``.
    """

    log: DurableLog
    store: ObjectStore
    cache: CacheManager
    clock: Clock
    entropy: Entropy
    cluster_id: bytes
    upload_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.UPLOADS_MAX))
    pages: PageRoom | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ContainerLife:
    """Opens the log, recovers, keeps the parts together, and stops when one of them fails."""

    def __init__(self, container_id: int, epoch: int, ports: ContainerPorts) -> None:
        self._id = container_id
        self._epoch = epoch
        self._ports = ports
        self._cache = ports.cache
        self._log = ports.log
        self._clock = ports.clock
        self.state = ContainerState(container_id)
        self._phase = "new"
        self._leaving = False
        self._reason = ""
        self._stop_cause: Exception | None = None
        self._stopped = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}  # not sets: they are cancelled in order
        self._flushes: dict[asyncio.Task[None], None] = {}  # asked for by callers, who hear how they end
        self._loading: dict[tuple[int, bytes], asyncio.Future[None]] = {}
        self._tier2 = ChunkObjects(
            ports.store, ports.cluster_id, container_id, epoch, ports.entropy, confirm_owner=self._confirm_or_stop
        )
        self._attributes = AttributeStore(self._tier2, ports.pages)
        self._reader = SegmentReader(ports.cache, ports.log, self._tier2, self._spawn)
        self._writer = StorageWriter(self, self._reader, self._attributes, self._tier2, ports.upload_slots)
        self._sweep = OrphanSweep(self, self._tier2, self._has_leisure)
        self._compaction = ChunkCompaction(self, self._tier2, ports.upload_slots, self._has_leisure)
        self._committer = Committer(self.state, ports.cache, ports.clock, self._writer.appended)
        self._snapshots = Snapshotter(
            self,
            SnapshotPorts(
                ports.store,
                self._tier2,
                ports.cache,
                ports.clock,
                ports.entropy,
                ports.cluster_id,
                ports.upload_slots,
            ),
        )
        self._processor: OperationProcessor
        self._owner = OwnershipCheck(container_id, ports.log, self._stop)
        self._space: LogAdmission
        self._checkpointer: Checkpointer

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self, nonce: bytes) -> None:
        """Take the log, recover, and begin to serve.

        Raises:
            FencedError: the log has a newer owner. DataError: the data cannot be proved; the container stays stopped.
        """
        self._phase = "recovering"
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await self._log.open(self._epoch, nonce)
            log_opened_s = loop.time()
            recovery = Recovery(self._log, self.state, self._cache)
            async with self._ports.turn:
                await recovery.run()
            await self._snapshots.check_newest_if_told()
            recovered_s = loop.time()
        except (DataError, FencedError) as error:
            self._stop(error)
            raise
        self._processor = OperationProcessor(
            self._log, self.state.next_sequence, self._committer.commit_frame, self._stop
        )
        self._space = LogAdmission(self._id, self._log, self._processor, self._writer.pressure)
        self._checkpointer = Checkpointer(
            self.state, self._processor, self._log, self._committer, self._clock, self._space
        )
        self._phase = "running"
        self._cache.on_pressure(self._writer.pressure)
        await self.commit_control(ops.Recovered(self._epoch, self.state.next_sequence))
        for segment in list(self.state.segments.values()):
            if segment.pending or segment.dirty:
                self._writer.appended(segment)
        if self._log.epochs_at_opening >= limits.LOG_EPOCHS_PER_CHECKPOINT:
            self._writer.pressure()  # owners die before they flush: what they left would hold the log for ever
        self._spawn(self._writer.run())
        self._spawn(self._sweep.run())
        self._spawn(self._compaction.run())
        self._spawn(self._owner.run())
        self._spawn(self._snapshots.run())
        _logger.info(
            "container_recovered",
            container=self._id,
            epoch=self._epoch,
            operations=recovery.operations,
            segments=len(self.state.segments),
            log_ms=round((log_opened_s - began_s) * 1000),
            recovery_ms=round((recovered_s - log_opened_s) * 1000),
            first_commit_ms=round((loop.time() - recovered_s) * 1000),
        )

    async def close(self, *, flush: bool = False) -> None:
        """Stop serving; with `flush`, first move everything to Tier 2 and checkpoint, so that recovery is short.

        Requests are refused at once. A flush that fails or takes longer than ``limits.CONTAINER_LEAVE_DEADLINE_S`` is
        told and left: whatever it did not move is in the log.
        """
        self.leave()
        if flush and self._phase == "running":
            try:
                async with asyncio.timeout(limits.CONTAINER_LEAVE_DEADLINE_S):
                    await self.flush_to_storage()
            except (TailraceError, OSError, TimeoutError) as error:
                reason = str(error) or f"it takes longer than {limits.CONTAINER_LEAVE_DEADLINE_S:g} s"
                _logger.warning("container_not_flushed", container=self._id, reason=reason)
        if self._phase == "running" and not self._writer.last_error:
            await self._snapshots.take_last(self._barrier)
        self._stop(ContainerStoppedError(f"container {self._id} was closed"))
        if self._tasks or self._flushes:
            await asyncio.wait([*self._tasks, *self._flushes])
        await self._log.close()
        self._attributes.close()
        for segment in self.state.segments.values():
            self._cache.drop_all(segment.read_index)

    def leave(self) -> None:
        """Refuse requests from now on, waiting reads included; what is staged goes on to its commit."""
        self._leaving = True
        for segment in self.state.segments.values():
            segment.wake()

    async def wait_stopped(self) -> Exception:
        """Wait until the container stops by itself or is closed; returns why."""
        await self._stopped.wait()
        assert self._stop_cause is not None
        return self._stop_cause

    def _stop(self, cause: Exception) -> None:
        if self._stop_cause is not None:
            return
        self._stop_cause = cause
        was_running = self._phase == "running"
        self._phase = "stopped"
        self._reason = str(cause)
        if not isinstance(cause, ContainerStoppedError):
            _logger.error("container_stopped", container=self._id, reason=self._reason)
        if was_running:
            self._cache.remove_listener(self._writer.pressure)
            for item in self._processor.stop(cause):
                if isinstance(item, StagedAppend):
                    self._cache.release(item.blocks)
                    item.request.failed(item.request, OutcomeUnknownError(str(self._stopped_error())))
        self._committer.stop(self._stopped_error())
        self._owner.stop()
        for segment in self.state.segments.values():
            segment.wake()
        for task in (*self._tasks, *self._flushes):
            if task is not asyncio.current_task():
                task.cancel()
        self._stopped.set()

    def _stopped_error(self) -> ContainerStoppedError:
        return ContainerStoppedError(f"container {self._id} stopped: {self._reason}")

    def _check_running(self) -> None:
        if self._phase != "running":
            raise self._stopped_error() if self._stop_cause else ContainerStoppedError(f"container {self._id} recovers")

    def _check_serving(self) -> None:
        self._check_running()
        if self._leaving:
            raise ContainerStoppedError(f"container {self._id} leaves this worker")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._stop(error)

    # -- lookups -------------------------------------------------------------------------------------------------

    @property
    def container_id(self) -> int:
        """Number of the container."""
        return self._id

    @property
    def epoch(self) -> int:
        """Epoch of this owner."""
        return self._epoch

    def may_answer(self) -> bool:
        """See `SegmentContainer.may_answer`."""
        return self._owner.may_answer()

    async def wait_owner(self) -> None:
        """See `SegmentContainer.wait_owner`."""
        self._check_running()
        await self._owner.wait()
        self._check_running()

    def _committed(self, name: str) -> Segment:
        self._check_serving()
        segment = self.state.by_name.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        return segment

    def _staged(self, name: str) -> Segment:
        self._check_serving()
        segment = self.state.staged_by_name.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        return segment

    def _alive(self, segment: Segment) -> bool:
        self._check_running()
        return self.state.segments.get(segment.segment_id) is segment

    def _of_living(self, segment: Segment, found: _T) -> _T:
        """What was read of a segment, unless it was deleted while it was read."""
        if not self._alive(segment):
            raise NoSuchSegmentError(segment.name)
        return found

    # -- control operations ---------------------------------------------------------------------------------------

    async def _barrier(self) -> None:
        """Wait until everything staged before this call is committed."""
        await self._committer.committed(self._processor.next_sequence - 1)

    async def commit_control(self, operation: ops.ControlOperation) -> None:
        """Put an operation through the pipeline and wait for its commit."""
        self._check_running()
        await self._space.wait_background(len(operation.encode()))
        self._check_running()
        await self._processor.stage_control(operation)

    def _has_leisure(self) -> bool:
        """Whether what only tidies up may be done: not while the log's disk is full."""
        return not self._space.full_reason

    async def _control_room(self, *, gives_space: bool = False) -> None:
        """Wait for room, and refuse when the log's disk is full, before an operation is staged."""
        self._check_serving()
        await self._space.wait(limits.CONTROL_OPERATION_MAX_BYTES, reserved=gives_space)
        self._check_serving()

    # -- Tier 2, checkpoints and snapshots -------------------------------------------------------------------------

    def may_delete(self, object_key: str) -> bool:
        """Whether no restore needs a dereferenced object."""
        return self._snapshots.may_delete(object_key)

    async def confirm_owner(self) -> None:
        """See DurableLog.confirm_owner."""
        await self._log.confirm_owner()

    @property
    def snapshot_sequence(self) -> int:
        """The operation that this owner's newest snapshot stands for; -1: it has none."""
        return self._snapshots.sequence

    async def _confirm_or_stop(self) -> None:
        """`confirm_owner` for whoever misses what a later owner may have deleted; with one, nothing goes on here."""
        try:
            await self.confirm_owner()
        except FencedError as error:
            self._stop(error)
            raise

    async def take_snapshot(self) -> bool:
        """Store a snapshot in Tier 2 now; errors and result as of `Snapshotter.take`."""
        self._check_running()
        await self._barrier()
        return await self._snapshots.take()

    async def checkpoint_if_due(self, *, force: bool = False) -> None:
        """Write a checkpoint and truncate the log, if enough happened since the last one."""
        self._space.look_again()
        await self._checkpointer.run_if_due(force=force)

    def checkpoint_wants_flush(self) -> bool:
        """See `Checkpointer.wants_flush`."""
        return self._checkpointer.wants_flush()

    async def flush_to_storage(self) -> None:
        """See `SegmentContainer.flush_to_storage`."""
        self._check_running()
        await self._barrier()
        if len(self._flushes) >= limits.FLUSHES_ASKED_FOR_MAX:
            raise OverloadedError(f"container {self._id} has {len(self._flushes)} flushes under way")
        # A task of the container's own: were a flush to end with its caller between the staging and the commit of an
        # index root, the next flush would write the same range of the index once more.
        flush = asyncio.get_running_loop().create_task(self._flush_and_checkpoint())
        self._flushes[flush] = None
        flush.add_done_callback(self._flush_done)
        await asyncio.wait([flush])
        if flush.cancelled():
            raise self._stopped_error()
        flush.result()

    def _flush_done(self, flush: asyncio.Task[None]) -> None:
        self._flushes.pop(flush, None)
        if not flush.cancelled():
            flush.exception()  # seen: its caller hears of it, if there still is one

    async def _flush_and_checkpoint(self) -> None:
        await self._writer.flush_all(self._log.next_sequence - 1)
        await self.checkpoint_if_due(force=True)
        await self._snapshots.take()
