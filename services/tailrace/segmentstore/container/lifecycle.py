"""Opens, recovers and closes a container."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    ContainerStoppedError,
    DataError,
    FencedError,
    TailraceError,
)
from tailrace.segmentstore.container.recovery import Recovery
from tailrace.segmentstore.metadata import operations as ops

if TYPE_CHECKING:
    from tailrace.segmentstore.attributes.attribute_store import AttributeStore
    from tailrace.segmentstore.container.background_tasks import BackgroundTasks
    from tailrace.segmentstore.container.core import ContainerCore

_logger = structlog.get_logger()


class Lifecycle:
    """The start and the end of one container."""

    def __init__(self, core: ContainerCore, attributes: AttributeStore, background: BackgroundTasks) -> None:
        self._core = core
        self._attributes = attributes
        self._background = background

    async def start(self, nonce: bytes) -> None:
        """Take over the log, recover from it, and begin to serve.

        A log that has no room for the first operation is read; appends are refused until it has room.

        Raises:
            FencedError: the log has a newer owner. DataError: the data cannot be proved; the container stays stopped.
        """
        core = self._core
        core.phase = "recovering"
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await core.log.open(core.epoch, nonce)
            log_opened_s = loop.time()
            recovery = Recovery(core.log, core.state, core.cache)
            async with core.ports.recovery_lock:
                await recovery.run()
                await self._background.checkpointer.measure()
            await self._background.snapshotter.check_newest_if_reachable()
            recovered_s = loop.time()
        except (DataError, FencedError) as error:
            core.stop(error)
            raise
        core.begin()
        self._background.checkpointer.begin(recovery.replayed_bytes, recovery.replayed_operations)
        has_room = await self._begin_epoch()
        self._background.start()
        _logger.info(
            "container_recovered",
            container=core.container_id,
            epoch=core.epoch,
            operations=recovery.operations,
            segments=len(core.state.segments),
            log_ms=round((log_opened_s - began_s) * 1000),
            recovery_ms=round((recovered_s - log_opened_s) * 1000),
            first_commit_ms=round((loop.time() - recovered_s) * 1000),
            log_has_room=has_room,
        )

    async def _begin_epoch(self) -> bool:
        """Commit this epoch's first operation; return False when it is staged only, because the disk is full.

        It is the first operation in either case. The log is recorded as opened once it holds that operation: before,
        the log of an owner that was killed would seem to have lost its end.
        """
        core = self._core
        operation = ops.Recovered(core.epoch, core.state.next_sequence)
        has_room = core.admission.has_room(len(operation.encode()))
        committed = core.processor.stage_control(operation)
        if has_room:
            await self._record_opening(committed)
        else:
            core.spawn(self._record_opening(committed))
        return has_room

    async def _record_opening(self, committed: asyncio.Future[None]) -> None:
        await committed
        self._core.ports.log_opened(self._core.epoch)

    async def close(self, flush: bool, at_once: bool) -> None:
        """Stop serving; with `flush`, first move everything to Tier 2 and checkpoint, so that recovery is short.

        Without a flush a checkpoint is written, where much was logged since the last one: the deadline of that is
        ``limits.CHECKPOINT_LAST_DEADLINE_S``.
        With `flush`, clients are served until most of it is in Tier 2, for a bounded time, so that they wait for the
        rest only; otherwise requests are refused at once. A flush that fails or takes longer than
        ``limits.CONTAINER_LEAVE_DEADLINE_S`` is logged and given up: the log holds everything that it did not move.
        With `at_once` there is no flush, last checkpoint or last snapshot, and requests that wait for the log are
        refused now: the object store does not answer.
        """
        core = self._core
        begins_at_s = asyncio.get_running_loop().time()
        flush = flush and not at_once
        if flush and core.phase == "running":
            with contextlib.suppress(TailraceError, OSError, TimeoutError):  # the flush below says why
                async with asyncio.timeout_at(begins_at_s + limits.CONTAINER_LEAVE_AHEAD_S):
                    await self._background.flush_ahead()
        self.leave()
        if flush and core.phase == "running":
            try:
                async with asyncio.timeout_at(begins_at_s + limits.CONTAINER_LEAVE_DEADLINE_S):
                    await self._background.flush_to_storage()
            except (TailraceError, OSError, TimeoutError) as error:
                reason = str(error) or f"the flush did not end within {limits.CONTAINER_LEAVE_DEADLINE_S:g} s"
                _logger.warning("container_not_flushed", container=core.container_id, reason=reason)
        elif core.phase == "running" and not at_once:
            await self._checkpoint_last()
        if core.phase == "running" and not at_once and not self._background.writer.last_error:
            await self._background.snapshotter.take_last(core.barrier)
        core.stop(ContainerStoppedError(f"container {core.container_id} was closed"))
        await core.wait_tasks()
        try:
            await core.log.close()
        finally:  # else the container's part of what all share would be lost
            self._attributes.close()
            for segment in core.state.segments.values():
                core.cache.drop_all(segment.read_index)
            core.state.leave_room()

    async def _checkpoint_last(self) -> None:
        """Write the last checkpoint within a deadline; log a failure and continue. `stop` ends one that is late."""
        core = self._core
        checkpoint = core.spawn_for_caller(self._background.checkpointer.run_last())
        await asyncio.wait([checkpoint], timeout=limits.CHECKPOINT_LAST_DEADLINE_S)
        if not checkpoint.done():
            reason = f"not durable within {limits.CHECKPOINT_LAST_DEADLINE_S:g} s"
        elif checkpoint.cancelled() or (error := checkpoint.exception()) is None:
            return
        else:
            reason = str(error) or repr(error)
        _logger.warning("last_checkpoint_not_written", container=core.container_id, reason=reason)

    def leave(self) -> None:
        """Refuse requests from now on, also those that wait; operations that are staged are still committed."""
        self._core.leaving = True
        self._core.waits.end()
        for segment in self._core.state.segments.values():
            segment.wake()

    async def wait_stopped(self) -> Exception:
        """Wait until the container stops by itself or is closed; return why."""
        await self._core.stopped.wait()
        assert self._core.stop_cause is not None
        return self._core.stop_cause
