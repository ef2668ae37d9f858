"""Decides when a container checkpoints, and truncates its log after a checkpoint (docs/design.md#tier-1)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import DiskFullError
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.checkpoint_encoding import CheckpointEncoding

if TYPE_CHECKING:
    from tailrace.segmentstore.container.core import ContainerCore


class Checkpointer:
    """Bounds how much of its log a container replays."""

    def __init__(self, core: ContainerCore) -> None:
        self._core = core
        self._state = core.state
        self._log = core.log
        self._committer = core.committer
        self._bytes = 0
        self._operations = 0
        self._frames = 0
        self._body_bytes = 0
        self._too_long_at = -1  # the operation as of which there was no room for a checkpoint
        self._keep_from = 0
        self._old_epochs = False
        self._running = asyncio.Lock()
        self._encoded = 0
        self._finished = 0
        """How many were encoded; the number of the newest one that is in the log, and whose truncation is done."""

    async def measure(self) -> None:
        """Find how long a checkpoint of the recovered state is; call it before `begin`."""
        self._body_bytes = len(await self._encode())

    def begin(self, replayed_bytes: int, replayed_operations: int) -> None:
        """Count what the log has since its last checkpoint, and keep room for one."""
        self._bytes = -replayed_bytes
        self._operations = -replayed_operations
        self._core.admission.checkpointed(self._body_bytes, self._core.processor.control_bytes)
        self._frames = self._log.log_start
        self._old_epochs = self._log.epochs_at_opening >= limits.LOG_EPOCHS_PER_CHECKPOINT

    async def run_if_due(self, *, force: bool = False) -> None:
        """Write a checkpoint when enough was logged since the last one, then truncate the log below what is needed.

        On a full disk a checkpoint is due earlier, and the log is truncated as soon as a flush allows it. With `force`
        return after a checkpoint of what is committed at the call: wait for one that runs; those who wait share the
        next one. Without `force` return at once while one runs.

        Raises:
            DiskFullError: there is no room for a forced checkpoint. Without `force` it is skipped until there is room.
        """
        self._core.admission.check_disk_again()
        if self._running.locked() and not force:
            return
        encoded = self._encoded
        async with self._running:
            if force:
                if self._finished <= encoded:
                    await self._run(force)
            elif self._due():
                await self._run(force)
            elif self._core.admission.full_reason:
                await self._truncate_log()

    async def run_last(self) -> None:
        """Write the checkpoint of a container that closes, where the next recovery saves more than this one costs.

        Without room in the log it is skipped.
        """
        async with self._running:
            since = self._core.processor.operations - self._operations
            worth = max(limits.CHECKPOINT_LAST_OPERATIONS_MIN, len(self._state.segments))
            if since >= worth and not self._core.admission.full_reason:
                await self._run(force=False)

    def _due(self) -> bool:
        interval_bytes = max(limits.CHECKPOINT_INTERVAL_BYTES, self._body_bytes)
        if self._core.admission.full_reason:
            interval_bytes = limits.CHECKPOINT_INTERVAL_BYTES // limits.CHECKPOINT_FULL_DISK_FACTOR
        processor = self._core.processor
        return (
            self._old_epochs
            or processor.written_bytes - self._bytes >= interval_bytes
            or processor.operations - self._operations >= limits.CHECKPOINT_INTERVAL_OPERATIONS
            or self._has_many_frames()
        )

    def _has_many_frames(self) -> bool:
        """Return whether recovery would take long because of the number of frames since the last checkpoint."""
        frames, worth = self._new_frames, self._body_bytes // limits.CHECKPOINT_BYTES_PER_FRAME
        if frames < self._log.frames_per_checkpoint(worth):
            return False
        if not self._log.frames_cost_requests:
            return True  # without a flush
        return frames >= self._log.frames_per_checkpoint(max(worth, self._flush_worth()))

    @property
    def _new_frames(self) -> int:
        return self._log.next_sequence - self._frames

    def _flush_worth(self) -> int:
        """Return how many frames cost as much as a flush: each segment gets a chunk, which compaction reads again."""
        pending = sum(1 for segment in self._state.segments.values() if segment.pending)
        return pending * limits.CHECKPOINT_FRAMES_PER_SEGMENT

    def wants_flush(self) -> bool:
        """Return whether to flush everything now, because the log has too many frames and each costs a request.

        A frame can be truncated only when Tier 2 holds all of its bytes.
        """
        costly = self._log.frames_cost_requests and self._has_many_frames()
        return costly and self._new_frames >= self._flush_worth()

    async def _run(self, force: bool) -> None:
        forgotten = self._state.forget_merged(
            self._core.clock.now_ms() - int(limits.MERGED_SOURCES_REMEMBERED_S * 1000),
            limits.MERGED_SOURCES_REMEMBERED_MAX,
        )
        # Without room for one as long as the last, encode none, unless it may be shorter.
        unchanged = not forgotten and self._too_long_at == self._state.committed_sequence
        if unchanged and not await self._room(self._body_bytes, force):
            return
        processor = self._core.processor
        written, count, frames = processor.written_bytes, processor.operations, self._log.next_sequence
        control_bytes = processor.control_bytes
        last = self._committer.last_frame
        keep_from = 0 if last is None else last.keep_from
        as_of = self._state.committed_sequence
        self._encoded = number = self._encoded + 1
        body = await self._encode()
        self._body_bytes = len(body)
        self._core.admission.checkpointed(len(body), control_bytes)
        self._too_long_at = as_of
        if not await self._room(len(body), force):
            return
        self._too_long_at = -1
        future = processor.stage_control(ops.Checkpoint(as_of, body))
        # Without its own bytes: else a long one would make the next one due.
        self._bytes = written + len(body)
        self._operations, self._frames, self._old_epochs = count, frames, False
        await future
        self._keep_from = keep_from
        await self._truncate_log()
        self._finished = number

    async def _encode(self) -> bytes:
        """Encode the state of now, in turns of the event loop."""
        with CheckpointEncoding(self._state) as encoding:
            for _ in encoding.steps():
                await asyncio.sleep(limits.CHECKPOINT_PAUSE_S)
        return encoding.body()

    async def _room(self, body_bytes: int, wait: bool) -> bool:
        """Return whether a checkpoint may be staged now; with `wait`, raise DiskFullError in place of False.

        Without room the log is truncated as far as the last checkpoint allows.
        """
        while True:
            try:
                again = self._core.admission.check_background(body_bytes)
            except DiskFullError:
                await self._truncate_log()
                if wait:
                    raise
                return False
            if again is None:
                return True
            await asyncio.shield(again)

    async def _truncate_log(self) -> None:
        keep_from = self._keep_from
        for segment in self._state.segments.values():
            if segment.pending:
                keep_from = min(keep_from, segment.pending.oldest_frame)
        if keep_from > self._log.log_start:
            await self._log.truncate(keep_from)
