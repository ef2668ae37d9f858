"""Commits durable operations: metadata, cache, waiting readers, acknowledgements (docs/design.md#commit)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.segmentstore.cache.cache_manager import drop_truncated, mark_tiered
from tailrace.segmentstore.container.operation_processor import Frame, StagedAppend, StagedControl
from tailrace.segmentstore.metadata import operations as ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.common.ports import Clock
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState


class Committer:
    """Applies one durable frame after another to the committed state.

    ``appended`` is called for every segment that changed.
    """

    def __init__(
        self, state: ContainerState, cache: CacheManager, clock: Clock, appended: Callable[[Segment], None]
    ) -> None:
        self._state = state
        self._cache = cache
        self._clock = clock
        self._appended = appended
        self._touched: dict[int, Segment] = {}
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self.last_frame: Frame | None = None
        self.appends = 0
        self.appended_bytes = 0
        self.frames = 0
        self.log_write_s = 0.0
        """How long the log took for all frames together, each from when it got it."""

    def commit_frame(self, frame: Frame) -> None:
        """Commit the operations that end in a durable frame, in order; then wake readers and barriers.

        When an operation does not fit the state, raise; it and the operations behind it stay in the frame.
        """
        committed = 0
        try:
            for item in frame.items:
                if isinstance(item, StagedAppend):
                    self._commit_append(item)
                else:
                    self._commit_staged_control(item)
                committed += 1
        except Exception:
            del frame.items[:committed]
            raise
        self.last_frame = frame
        self.frames += 1
        self.log_write_s += asyncio.get_running_loop().time() - frame.handed_over_s
        touched, self._touched = self._touched, {}
        for segment in touched.values():
            segment.wake()
            self._appended(segment)
        if self._barriers:
            self._pass_barriers()

    def _commit_append(self, item: StagedAppend) -> None:
        segment, request = item.segment, item.request
        state = self._state
        state.committed_sequence = item.sequence
        state.next_sequence = item.sequence + 1
        if state.encodings:
            state.changing(segment)
        offset = item.offset
        if item.length:
            at = offset
            for _, piece in item.pieces:
                self._cache.append_tail(segment.read_index, at, piece)
                at += len(piece)
            segment.pending.add(offset, item.length, item.crc, item.begin.sequence)
            self.appends += 1
            self.appended_bytes += item.length
        segment.length = offset + item.length
        segment.set_attributes(item.sequence, item.attributes)
        segment.release(key for key, _ in item.attributes)
        segment.last_modified_ms = self._clock.now_ms()
        segment.inflight -= 1
        self._touched[segment.segment_id] = segment
        request.offset = offset
        request.new_length = segment.length
        request.completed(request)

    def _commit_staged_control(self, item: StagedControl) -> None:
        operation = item.operation
        state, cache = self._state, self._cache
        before = state.segments.get(getattr(operation, "source_id", getattr(operation, "segment_id", -1)))
        state.apply(item.sequence, operation)
        match operation:
            case ops.Merge():
                assert before is not None
                target = state.segments[operation.target_id]
                cache.move(before.read_index, target.read_index, operation.target_offset, target.length)
                target.inflight -= 1
                target.release(key for key, _ in operation.attributes)
                self._touched[target.segment_id] = target
                before.wake()
            case ops.Delete():
                assert before is not None
                cache.drop_all(before.read_index)
                before.wake()
            case ops.Truncate():
                segment = state.segments[operation.segment_id]
                drop_truncated(segment, cache)
                segment.wake()
            case ops.AddChunks():
                for identifier, ref in operation.refs:
                    resolved, shift = state.resolve(identifier)
                    mark_tiered(state.segments.get(resolved), ref.shifted(shift), cache)
            case ops.UpdateAttributes() | ops.Create() | ops.Seal():
                segment = state.segments[operation.segment_id]
                if isinstance(operation, ops.UpdateAttributes):
                    segment.inflight -= 1
                if not isinstance(operation, ops.Seal):
                    segment.release(key for key, _ in operation.attributes)
                self._touched[segment.segment_id] = segment
            case _:
                pass
        if not item.future.done():
            item.future.set_result(None)

    def _pass_barriers(self) -> None:
        committed = self._state.committed_sequence
        waiting = []
        for sequence, future in self._barriers:
            if sequence > committed:
                waiting.append((sequence, future))
            elif not future.done():
                future.set_result(None)
        self._barriers = waiting

    async def committed(self, sequence: int) -> None:
        """Wait until the operation with that number, and all before it, are committed."""
        if sequence > self._state.committed_sequence:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((sequence, future))
            await future

    def stop(self, error: Exception) -> None:
        """Fail the waiters with `error`: no further operation commits."""
        for _, future in self._barriers:
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark it as retrieved: the caller may be gone
        self._barriers.clear()
