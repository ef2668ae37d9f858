"""When a container checkpoints, and what its log may forget after that (design §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.segmentstore import checkpoint
from tailrace.segmentstore import operations as ops

if TYPE_CHECKING:
    from tailrace.common.ports import Clock
    from tailrace.log.port import DurableLog
    from tailrace.segmentstore.commits import Committer
    from tailrace.segmentstore.pipeline import Pipeline
    from tailrace.segmentstore.state import ContainerState


class Checkpointer:
    """Bounds the replay of one container's log."""

    def __init__(
        self, state: ContainerState, pipeline: Pipeline, log: DurableLog, committer: Committer, clock: Clock
    ) -> None:
        self._state = state
        self._pipeline = pipeline
        self._log = log
        self._committer = committer
        self._clock = clock
        self._bytes = 0
        self._operations = 0
        self._running = False

    async def run_if_due(self, *, force: bool = False) -> None:
        """Write a checkpoint when enough was logged since the last one, then truncate the log below what is needed."""
        written, count = self._pipeline.written_bytes, self._pipeline.operations
        due = (
            written - self._bytes >= limits.CHECKPOINT_INTERVAL_BYTES
            or count - self._operations >= limits.CHECKPOINT_INTERVAL_OPERATIONS
        )
        if self._running or not (force or due):
            return
        self._running = True
        try:
            self._state.forget_merged(self._clock.now_ms() - int(limits.MERGED_SOURCES_REMEMBERED_S * 1000))
            last = self._committer.last_frame
            keep_from = 0
            if last is not None:
                keep_from = last.sequence + 1 if last.span_start is None else last.span_start.sequence
            body = checkpoint.encode(self._state)
            future = self._pipeline.stage_control(ops.Checkpoint(self._state.committed_sequence, body))
            self._bytes, self._operations = written, count
            await future
            await self._truncate_log(keep_from)
        finally:
            self._running = False

    async def _truncate_log(self, keep_from: int) -> None:
        for segment in self._state.segments.values():
            if segment.pending:
                keep_from = min(keep_from, min(item.frame_sequence for item in segment.pending))
        if keep_from > self._log.log_start:
            await self._log.truncate(keep_from)
