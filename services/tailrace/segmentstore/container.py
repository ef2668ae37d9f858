"""The segment container: a group of segments, one log, one order of operations (design §3; segmentstore.api)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    BadOffsetError,
    BadRequestError,
    ContainerStoppedError,
    DataError,
    FencedError,
    NoSuchSegmentError,
    OverloadedError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TailraceError,
    UnavailableError,
)
from tailrace.common.names import check_segment_name
from tailrace.kernel import crc32c
from tailrace.segmentstore import attributestage
from tailrace.segmentstore import operations as ops
from tailrace.segmentstore.api import (
    CREATION_TIME,
    EVENT_COUNT,
    NULL_ATTRIBUTE,
    AppendRequest,
    AttributeUpdate,
    AttributeUpdateType,
    Buffer,
    ChunkListing,
    ContainerStatus,
    MergeResult,
    ReadResult,
    SegmentKind,
    SegmentProperties,
)
from tailrace.segmentstore.attributestore import AttributeStore
from tailrace.segmentstore.checkpointer import Checkpointer
from tailrace.segmentstore.commits import Committer
from tailrace.segmentstore.logspace import LogSpace
from tailrace.segmentstore.pipeline import Pipeline, StagedAppend
from tailrace.segmentstore.reads import SegmentReader
from tailrace.segmentstore.recovery import Recovery
from tailrace.segmentstore.state import ContainerState, Segment
from tailrace.segmentstore.storagewriter import StorageWriter
from tailrace.segmentstore.tier2 import Tier2

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tailrace.common.ports import Clock, Entropy
    from tailrace.log.port import DurableLog
    from tailrace.segmentstore.cachemanager import CacheManager
    from tailrace.segmentstore.fields import Attributes
    from tailrace.storage.port import ObjectStore

_logger = structlog.get_logger()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ContainerPorts:
    """What a container is made of; all of it can be simulated. The containers of a process share ``upload_slots``."""

    log: DurableLog
    store: ObjectStore
    cache: CacheManager
    clock: Clock
    entropy: Entropy
    cluster_id: bytes
    upload_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.UPLOADS_MAX))


class Container:
    """Implements `segmentstore.api.SegmentContainer` over a durable log, an object store and the worker's cache."""

    def __init__(self, container_id: int, epoch: int, ports: ContainerPorts) -> None:
        self._id = container_id
        self._epoch = epoch
        self._ports = ports
        self._cache = ports.cache
        self._log = ports.log
        self._clock = ports.clock
        self.state = ContainerState(container_id)
        self._phase = "new"
        self._reason = ""
        self._stop_cause: Exception | None = None
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushes: set[asyncio.Task[None]] = set()  # asked for by callers, who hear how they end
        self._loading: dict[tuple[int, bytes], asyncio.Future[None]] = {}
        self._tier2 = Tier2(ports.store, ports.cluster_id, container_id, epoch, ports.entropy)
        self._attributes = AttributeStore(self._tier2)
        self._reader = SegmentReader(ports.cache, ports.log, self._tier2, self._spawn)
        self._writer = StorageWriter(self, self._reader, self._attributes, self._tier2, ports.upload_slots)
        self._committer = Committer(self.state, ports.cache, ports.clock, self._writer.appended)
        self._pipeline: Pipeline
        self._space: LogSpace
        self._checkpointer: Checkpointer

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self, nonce: bytes) -> None:
        """Take the log, recover, and begin to serve.

        Raises:
            FencedError: the log has a newer owner. DataError: the data cannot be proved; the container stays stopped.
        """
        self._phase = "recovering"
        try:
            await self._log.open(self._epoch, nonce)
            recovery = Recovery(self._log, self.state, self._cache)
            await recovery.run()
        except (DataError, FencedError) as error:
            self._stop(error)
            raise
        self._pipeline = Pipeline(self._log, self.state.next_sequence, self._committer.commit_frame, self._stop)
        self._space = LogSpace(self._id, self._log, self._pipeline, self._writer.pressure)
        self._checkpointer = Checkpointer(
            self.state, self._pipeline, self._log, self._committer, self._clock, self._space
        )
        self._phase = "running"
        self._cache.on_pressure(self._writer.pressure)
        await self.commit_control(ops.Recovered(self._epoch, self.state.next_sequence))
        for segment in list(self.state.segments.values()):
            if segment.pending or segment.dirty:
                self._writer.appended(segment)
        self._spawn(self._writer.run())
        _logger.info(
            "container_recovered",
            container=self._id,
            epoch=self._epoch,
            operations=recovery.operations,
            segments=len(self.state.segments),
        )

    async def close(self, *, flush: bool = False) -> None:
        """Stop serving; with `flush`, first move everything to Tier 2 and checkpoint, so that recovery is short."""
        if flush and self._phase == "running":
            await self.flush_to_storage()
        self._stop(ContainerStoppedError(f"container {self._id} was closed"))
        if self._tasks or self._flushes:
            await asyncio.wait([*self._tasks, *self._flushes])
        await self._log.close()
        for segment in self.state.segments.values():
            self._cache.drop_all(segment.read_index)

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
            for item in self._pipeline.stop(cause):
                if isinstance(item, StagedAppend):
                    self._cache.release(item.blocks)
                    item.request.failed(item.request, self._stopped_error())
        self._committer.stop(self._stopped_error())
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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
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

    def _committed(self, name: str) -> Segment:
        self._check_running()
        segment = self.state.by_name.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        return segment

    def _staged(self, name: str) -> Segment:
        self._check_running()
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

    # -- appends -------------------------------------------------------------------------------------------------

    def submit_append(self, request: AppendRequest) -> asyncio.Future[None] | None:
        """See `SegmentContainer.submit_append`."""
        try:
            return self._submit(request)
        except TailraceError as error:
            request.failed(request, error)
            return None

    def _submit(self, request: AppendRequest) -> asyncio.Future[None] | None:
        segment = self._staged(request.segment)
        if segment.staged_sealed:
            raise SegmentSealedError(segment.name)
        attributestage.check_updates(segment, request.updates)
        offset = segment.staged_length
        if request.expected_offset >= 0 and request.expected_offset != offset:
            raise BadOffsetError(segment.name, request.expected_offset, offset)
        try:
            values = attributestage.final_values(segment, request.updates, offset)
        except attributestage.AttributesMissingError as missing:
            return self._load_attributes(segment, missing.attribute_ids)
        if (again := self._space.check(ops.append_body_max(request.length, len(values)))) is not None:
            return again
        blocks = 0
        if request.length:
            if (turn := self._cache.throttle.ask(request.length)) is not None:
                return turn
            blocks = self._cache.blocks_for(request.length, 1 + request.length // limits.FRAME_PIECE_MIN_BYTES)
            if not self._cache.reserve(blocks):
                return self._cache.room()
        crc = 0
        for part in request.data:
            crc = crc32c(part, crc)
        item = StagedAppend(request, segment, offset, crc, values, blocks)
        segment.staged_length = offset + request.length
        segment.latest.update(values)
        segment.inflight += 1
        header = ops.append_header(segment.segment_id, offset, request.length, crc, values)
        self._pipeline.stage_append(item, header, request.data)
        return None

    async def append(
        self,
        segment: str,
        data: Sequence[Buffer],
        updates: Sequence[AttributeUpdate] = (),
        *,
        expected_offset: int = -1,
    ) -> tuple[int, int]:
        """See `SegmentContainer.append`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def completed(_: AppendRequest) -> None:
            if not done.done():
                done.set_result(None)

        def failed(_: AppendRequest, error: Exception) -> None:
            if not done.done():
                done.set_exception(error)

        length = sum(len(part) for part in data)
        request = AppendRequest(segment, data, length, updates, completed, failed, expected_offset)
        while (wait := self.submit_append(request)) is not None:
            await asyncio.shield(wait)
        await done
        return request.offset, request.new_length

    def _load_attributes(self, segment: Segment, attribute_ids: list[bytes]) -> asyncio.Future[None]:
        key = (segment.segment_id, attribute_ids[0])
        loaded = self._loading.get(key)
        if loaded is None:
            # Not the task itself: when the container stops that is cancelled, its waiters must not be.
            loaded = self._loading[key] = asyncio.get_running_loop().create_future()
            running = self._spawn(self._load_until_there(segment, attribute_ids))
            running.add_done_callback(lambda _: self._loaded(key))
        return loaded

    def _loaded(self, key: tuple[int, bytes]) -> None:
        loaded = self._loading.pop(key)
        if not loaded.done():
            loaded.set_result(None)

    async def _load_until_there(self, segment: Segment, attribute_ids: list[bytes]) -> None:
        """Load attributes; while Tier 2 does not answer the append waits, nothing is failed (design §3)."""
        delay_s = limits.STORAGE_RETRY_MIN_S
        while True:
            try:
                return await self._attributes.load(segment, attribute_ids)
            except UnavailableError as error:
                _logger.warning("attributes_not_loaded", container=self._id, segment=segment.name, reason=str(error))
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, limits.STORAGE_RETRY_MAX_S)

    # -- control operations ---------------------------------------------------------------------------------------

    async def _barrier(self) -> None:
        """Wait until everything staged before this call is committed."""
        await self._committer.committed(self._pipeline.next_sequence - 1)

    async def commit_control(self, operation: ops.ControlOperation) -> None:
        """Put an operation through the pipeline and wait for its commit."""
        self._check_running()
        await self._space.wait_background(len(operation.encode()))
        self._check_running()
        await self._pipeline.stage_control(operation)

    async def _control_room(self, *, gives_space: bool = False) -> None:
        """Wait for room, and refuse when the log's disk is full, before an operation is staged."""
        self._check_running()
        await self._space.wait(limits.CONTROL_OPERATION_MAX_BYTES, reserved=gives_space)
        self._check_running()

    # -- segment operations --------------------------------------------------------------------------------------

    async def create_segment(
        self,
        segment: str,
        *,
        kind: SegmentKind = SegmentKind.STREAM,
        key_length: int = 0,
        attributes: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        """See `SegmentContainer.create_segment`."""
        check_segment_name(segment)
        if not 0 <= key_length <= limits.ATTRIBUTE_KEY_MAX_BYTES:
            raise BadRequestError(f"key length {key_length} is not between 0 and {limits.ATTRIBUTE_KEY_MAX_BYTES}")
        await self._control_room()
        if segment in self.state.staged_by_name:
            await self._barrier()
            raise SegmentExistsError(segment)
        if len(self.state.staged_by_name) >= limits.ACTIVE_SEGMENTS_PER_CONTAINER_MAX:
            raise OverloadedError(f"container {self._id} has {len(self.state.staged_by_name)} segments, its bound")
        now = self._clock.now_ms()
        identifier = self._pipeline.next_sequence
        values = [(CREATION_TIME, now), (EVENT_COUNT, 0), *attributes]
        created = Segment(identifier, segment, kind, key_length, now)
        created.latest.update(values)
        self.state.staged_by_name[segment] = self.state.staged_creates[identifier] = created
        await self._pipeline.stage_control(ops.Create(identifier, segment, kind, key_length, now, values))

    async def seal(self, segment: str) -> int:
        """See `SegmentContainer.seal`."""
        await self._control_room()
        target = self._staged(segment)
        if target.staged_sealed:
            await self._barrier()
            raise SegmentSealedError(segment)
        target.staged_sealed = True
        await self._pipeline.stage_control(ops.Seal(target.segment_id, self._clock.now_ms()))
        return target.length

    async def truncate(self, segment: str, offset: int) -> None:
        """See `SegmentContainer.truncate`."""
        await self._control_room(gives_space=True)
        target = self._staged(segment)
        if not target.staged_start <= offset <= target.staged_length:
            raise SegmentTruncatedError(segment, target.staged_start)
        if offset == target.staged_start:
            await self._barrier()
            return
        target.staged_start = offset
        await self._pipeline.stage_control(ops.Truncate(target.segment_id, offset))

    async def delete(self, segment: str) -> None:
        """See `SegmentContainer.delete`."""
        await self._control_room(gives_space=True)
        target = self._staged(segment)
        del self.state.staged_by_name[segment]
        target.staged_gone = target.staged_sealed = True
        await self._pipeline.stage_control(ops.Delete(target.segment_id))

    async def merge(self, target: str, source: str, updates: Sequence[AttributeUpdate] = ()) -> MergeResult:
        """See `SegmentContainer.merge`."""
        await self._control_room()
        while True:
            into = self._staged(target)
            origin = self.state.staged_by_name.get(source)
            if origin is None:
                return await self._merged_before(into, source)
            if origin is into:
                raise BadRequestError("a segment cannot be merged into itself")
            if (into.kind | origin.kind) & SegmentKind.TABLE:
                raise BadRequestError(f"{source} and {target} cannot be merged: one is a table segment")
            attributestage.check_updates(into, updates)
            added = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, self.state.merge_event_count(origin))
            if absent := attributestage.missing(into, updates):
                await self._attributes.load(into, absent)
                await self._control_room()
                continue
            break
        if into.staged_sealed:
            raise SegmentSealedError(target)
        if origin.staged_start:
            raise SegmentTruncatedError(source, origin.staged_start)
        own = [update for update in updates if update.attribute_id != EVENT_COUNT]
        values = attributestage.final_values(into, [*own, added], into.staged_length)
        return await self._stage_merge(into, origin, values)

    async def _stage_merge(self, into: Segment, origin: Segment, values: Attributes) -> MergeResult:
        offset, length = into.staged_length, origin.staged_length
        into.staged_length += length
        into.latest.update(values)
        into.inflight += 1
        del self.state.staged_by_name[origin.name]
        origin.staged_gone = origin.staged_sealed = True
        operation = ops.Merge(into.segment_id, origin.segment_id, offset, length, self._clock.now_ms(), values)
        await self._pipeline.stage_control(operation)
        return MergeResult(offset, offset + length)

    async def _merged_before(self, target: Segment, source: str) -> MergeResult:
        """The answer to a merge that happened already (it may still be on its way to the log)."""
        await self._barrier()
        known = self.state.merged.get(source)
        if known is None or known.target_id != target.segment_id:
            raise NoSuchSegmentError(source)
        return MergeResult(known.target_offset, target.length)

    # -- attributes ----------------------------------------------------------------------------------------------

    async def info(self, segment: str) -> SegmentProperties:
        """See `SegmentContainer.info`."""
        return self._committed(segment).properties()

    async def get_attributes(self, segment: str, attribute_ids: Sequence[bytes]) -> dict[bytes, int]:
        """See `SegmentContainer.get_attributes`."""
        target = self._committed(segment)
        values = await self._attributes.get(target, attribute_ids)
        return self._of_living(target, values)

    async def update_attributes(self, segment: str, updates: Sequence[AttributeUpdate]) -> None:
        """See `SegmentContainer.update_attributes`."""
        await self._control_room()
        while True:
            target = self._staged(segment)
            attributestage.check_updates(target, updates)
            absent = attributestage.missing(target, updates)
            if not absent:
                break
            await self._attributes.load(target, absent)
            await self._control_room()
        if target.staged_sealed:
            raise SegmentSealedError(segment)
        values = attributestage.final_values(target, updates, target.staged_length)
        target.latest.update(values)
        target.inflight += 1
        await self._pipeline.stage_control(ops.UpdateAttributes(target.segment_id, values))

    async def iterate_attributes(
        self, segment: str, from_id: bytes, to_id: bytes, limit: int
    ) -> list[tuple[bytes, int]]:
        """See `SegmentContainer.iterate_attributes`."""
        target = self._committed(segment)
        return self._of_living(target, await self._attributes.iterate(target, from_id, to_id, limit))

    async def writer_state(self, segment: str, writer_id: bytes) -> int:
        """See `SegmentContainer.writer_state`."""
        target = self._staged(segment)
        if target.kind & SegmentKind.TABLE:
            raise BadRequestError(f"{segment} is a table segment, it takes no events")
        if target.inflight or target.segment_id not in self.state.segments:
            await self._barrier()
        values = await self.get_attributes(segment, [writer_id])
        # Bring it into the pipeline's reach, so that the writer's first append need not wait.
        await self._attributes.load(target, [writer_id])
        return values.get(writer_id, NULL_ATTRIBUTE)

    # -- reads ---------------------------------------------------------------------------------------------------

    async def read(self, segment: str, offset: int, max_length: int, *, wait: bool) -> ReadResult:
        """See `SegmentContainer.read`."""
        target = self._committed(segment)
        while True:
            if not self._alive(target):
                raise NoSuchSegmentError(segment)
            if offset < target.start_offset:
                raise SegmentTruncatedError(segment, target.start_offset)
            if offset < target.length:
                return await self._reader.read(target, offset, max_length, self._alive)
            if target.sealed:
                if offset > target.length:
                    raise BadRequestError(f"offset {offset} is beyond the end {target.length} of sealed {segment}")
                return ReadResult(offset, (), 0, True, True, _nothing)
            if not wait:
                return ReadResult(offset, (), 0, True, False, _nothing)
            await target.changed()

    async def read_exact(self, segment: str, offset: int, length: int) -> bytes:
        """See `SegmentContainer.read_exact`."""
        target = self._committed(segment)
        if offset < target.start_offset:
            raise SegmentTruncatedError(segment, target.start_offset)
        return bytes(await self._reader.read_range(target, offset, offset + length, self._alive))

    # -- Tier 2 and checkpoints ----------------------------------------------------------------------------------

    async def checkpoint_if_due(self, *, force: bool = False) -> None:
        """Write a checkpoint and truncate the log, if enough happened since the last one."""
        self._space.look_again()
        await self._checkpointer.run_if_due(force=force)

    async def flush_to_storage(self) -> None:
        """See `SegmentContainer.flush_to_storage`."""
        self._check_running()
        await self._barrier()
        # A task of the container's own: were a flush to end with its caller between the staging and the commit of an
        # index root, the next flush would write the same range of the index once more.
        flush = asyncio.get_running_loop().create_task(self._flush_and_checkpoint())
        self._flushes.add(flush)
        flush.add_done_callback(self._flush_done)
        await asyncio.wait([flush])
        if flush.cancelled():
            raise self._stopped_error()
        flush.result()

    def _flush_done(self, flush: asyncio.Task[None]) -> None:
        self._flushes.discard(flush)
        if not flush.cancelled():
            flush.exception()  # seen: its caller hears of it, if there still is one

    async def _flush_and_checkpoint(self) -> None:
        await self._writer.flush_all(self._log.next_sequence - 1)
        await self.checkpoint_if_due(force=True)

    async def list_chunks(self, segment: str) -> list[ChunkListing]:
        """See `SegmentContainer.list_chunks`."""
        refs = list(self._committed(segment).chunks)
        return [
            ChunkListing(ref.object_key, ref.segment_offset, ref.length, await self._tier2.exists(ref)) for ref in refs
        ]

    # -- for the tools -------------------------------------------------------------------------------------------

    def segment_names(self) -> list[str]:
        """See `SegmentContainer.segment_names`."""
        return sorted(self.state.by_name)

    def status(self) -> ContainerStatus:
        """See `SegmentContainer.status`."""
        state = self.state
        details = {
            "tier2_bytes_written": self._tier2.bytes_written,
            "tier2_objects_written": self._tier2.objects_written,
            "tier2_objects": len(state.object_uses),
            "flushes": self._writer.flushes,
            "cache_hits": self._reader.cache_hits,
            "tier2_fetches": self._reader.fetches,
            "index_page_bytes": self._attributes.cached_page_bytes,
        }
        return ContainerStatus(
            self._id,
            self._phase,
            self._reason or self._writer.last_error or self._space.full_reason,
            self._epoch,
            len(state.segments),
            self._log.stored_bytes,
            sum(segment.pending_bytes for segment in state.segments.values()),
            len(state.pending_deletes),
            state.committed_sequence,
            details,
        )


def _nothing() -> None:
    """Nothing is pinned."""
