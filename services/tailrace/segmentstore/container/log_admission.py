"""Admission to a container's log: an operation is staged only when the log has room for it, and memory for its records.

See docs/design.md#faults-of-the-log.

So no staged operation gets stuck on a full disk. Refused operations are counted and logged in two lines: when the disk
becomes full, and when it has room again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import DiskFullError

if TYPE_CHECKING:
    from tailrace.log.port import DurableLog
    from tailrace.segmentstore.background.flush_queue import FlushQueue
    from tailrace.segmentstore.container.operation_processor import OperationProcessor
    from tailrace.segmentstore.metadata.untiered_room import UntieredRoom

_logger = structlog.get_logger()


class LogAdmission:
    """Decides what may be staged.

    It calls ``flush_queue.flush_now`` whenever it refuses one. Callers' operations leave room for a flush of
    everything and for the checkpoint after it: only so can a full log truncate itself.
    """

    def __init__(
        self,
        container_id: int,
        log: DurableLog,
        processor: OperationProcessor,
        untiered: UntieredRoom,
        flush_queue: FlushQueue,
    ) -> None:
        self._container_id = container_id
        self._log = log
        self._processor = processor
        self._untiered = untiered
        self._flush_queue = flush_queue
        self._refused = 0
        self._refused_bytes = 0  # of the longest one
        self._checkpoint_bytes = 0
        self._control_bytes = 0
        self.full_reason = ""

    def checkpointed(self, body_bytes: int, control_bytes: int) -> None:
        """Keep room for a checkpoint that is as long as the last one: so many bytes.

        ``control_bytes``: what the processor had counted when it was begun; what came later may lengthen the next one.
        """
        self._checkpoint_bytes = body_bytes
        self._control_bytes = control_bytes

    @property
    def kept_bytes(self) -> int:
        """How much room a flush and the next checkpoint may need, beyond what the log's reserve has for them.

        An operation may add twice its own length to a checkpoint: a merge, which leaves a name, is the largest.
        """
        grown = limits.CHECKPOINT_GROWTH_FACTOR * (self._processor.control_bytes - self._control_bytes)
        flushes = limits.CHECKPOINT_FLUSH_BYTES * self._flush_queue.pending_segments
        return max(0, self._checkpoint_bytes + grown + flushes - limits.LOG_RESERVE_BYTES // 2)

    def check(self, body_bytes: int, *, internal: bool = False, reserved: bool = False) -> asyncio.Future[None] | None:
        """Return None when an operation may be staged now, else a future: check again when it is done.

        ``internal``: it may use the room for records that is kept for internal segments. ``reserved``: the operation
        frees space, so it may use the reserve.

        Raises:
            DiskFullError: the disk is full.
        """
        processor = self._processor
        if not processor.has_room():
            return processor.room()
        untiered = self._untiered
        if not (untiered.has_room or reserved):
            if not internal:
                return untiered.room()
            if not untiered.has_internal_room:
                return untiered.internal_room()
        try:
            needed = body_bytes if reserved else body_bytes + self.kept_bytes
            more_space = self._log.check_space(*processor.unwritten(needed), reserved=reserved)
        except DiskFullError as error:
            self._refuse(error, body_bytes)
            raise
        if more_space is None:
            return None
        return processor.room() if processor.unwritten_bytes else more_space

    def check_background(self, body_bytes: int) -> asyncio.Future[None] | None:
        """As `check`, for an operation of the container's own that frees space: bounded in number, not refused.

        Raises:
            DiskFullError: the reserve is used up.
        """
        more_space = self._log.check_space(*self._processor.unwritten(body_bytes), reserved=True)
        if more_space is None:
            return None
        return self._processor.room() if self._processor.unwritten_bytes else more_space

    async def wait_background(self, body_bytes: int) -> None:
        """Wait until `check_background` admits the operation, also while the disk stays full."""
        while True:
            try:
                again = self.check_background(body_bytes)
            except DiskFullError:
                await asyncio.sleep(limits.LOG_PREALLOCATE_RETRY_S)
                continue
            if again is None:
                return
            await asyncio.shield(again)  # others wait for the same future

    def has_room(self, body_bytes: int) -> bool:
        """Return whether an operation of the container's own fits now or soon; without room the disk counts as full."""
        try:
            self.check_background(body_bytes)
        except DiskFullError as error:
            self._refuse(error, body_bytes)
            return False
        return True

    # -- full disk ------------------------------------------------------------------------------------------------

    def _refuse(self, error: DiskFullError, body_bytes: int) -> None:
        self._refused += 1
        self._refused_bytes = max(self._refused_bytes, body_bytes)
        if not self.full_reason:
            self.full_reason = str(error)
            _logger.error("log_disk_full", container=self._container_id, reason=self.full_reason)
        self._flush_queue.flush_now()

    def check_disk_again(self) -> None:
        """Count a full disk as full no more when it has room for what was refused."""
        if not self.full_reason:
            return
        try:
            needed = max(limits.CONTROL_OPERATION_MAX_BYTES, self._refused_bytes) + self.kept_bytes
            more_space = self._log.check_space(*self._processor.unwritten(needed))
        except DiskFullError:
            return
        if more_space is None:
            _logger.warning("log_disk_has_room", container=self._container_id, refused_operations=self._refused)
            self._refused = self._refused_bytes = 0
            self.full_reason = ""
