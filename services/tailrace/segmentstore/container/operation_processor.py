"""The operation processor: strict order, group commit, completion in order (docs/design.md#write-path).

Staging is synchronous: it numbers an operation and writes its record to the current frame. Frames go to the log as soon
as the log has capacity; operations that arrive meanwhile share the next frame. The log says how many frames may be in
flight, and how many of them before a part-filled frame waits for more operations. When a frame is durable, the
operations that end in it are committed in order. A staged operation is never withdrawn: it commits, or the container
stops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError, OutcomeUnknownError, TailraceError
from tailrace.segmentstore.metadata import operation_log
from tailrace.segmentstore.metadata import operations as ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.log.port import DurableLog
    from tailrace.segmentstore.api import AppendRequest
    from tailrace.segmentstore.container.arena_pool import ArenaPool
    from tailrace.segmentstore.metadata.fields import Attributes
    from tailrace.segmentstore.metadata.segment import Segment

Buffer: TypeAlias = bytes | bytearray | memoryview

_ARENA_BYTES = limits.LOG_FRAME_MAX_BYTES
_ARENAS_FREE = 3  # buffers that any container may use: one that is written, one that waits, one that is filled
_NO_ARENA = memoryview(b"")


class StagedAppend:
    """An append that is staged and not committed yet.

    ``pieces`` are views of the frames that hold its data. ``begin`` is the frame where its record begins; it may hold
    none of the data.
    """

    __slots__ = (
        "attributes",
        "begin",
        "crc",
        "length",
        "offset",
        "pieces",
        "request",
        "segment",
        "sequence",
        "size",
    )

    def __init__(self, request: AppendRequest, segment: Segment, offset: int, crc: int, attributes: Attributes) -> None:
        self.request = request
        self.segment = segment
        self.offset = offset
        self.length = request.length
        self.crc = crc
        self.attributes = attributes
        self.sequence = 0
        self.size = 0
        self.pieces: list[tuple[Frame, memoryview]] = []
        self.begin: Frame


class StagedControl:
    """Any other operation that is staged and not committed yet."""

    __slots__ = ("future", "operation", "sequence", "size")

    def __init__(self, operation: ops.ControlOperation, future: asyncio.Future[None]) -> None:
        self.operation = operation
        self.future = future
        self.sequence = 0
        self.size = 0


Staged: TypeAlias = StagedAppend | StagedControl


class Frame:
    """A frame that is filled, written or synced.

    ``span_start`` is the frame where the operation began that continues in the next frame; None when none does.
    ``handed_over_s`` is when the log got it, by the event loop's clock. ``waiting`` counts the appends whose data is in
    this frame and that end in a later one: they read it when they commit.

    Frames and items name each other only until the frame is complete: its memory is free without a garbage collection.
    """

    __slots__ = (
        "arena",
        "complete",
        "handed_over_s",
        "items",
        "keep_from",
        "sequence",
        "span_start",
        "used",
        "waiting",
    )

    def __init__(self) -> None:
        self.arena = _NO_ARENA
        self.used = 0
        self.items: list[Staged] = []
        self.sequence = -1
        self.span_start: Frame | None = None
        self.waiting = 0
        self.complete = False
        self.handed_over_s = 0.0
        self.keep_from = 0
        """Once it is durable: the first frame of which a checkpoint as of this frame needs the bytes."""


class OperationProcessor:
    """Numbers operations, writes them to the log in frames, and completes them.

    It calls ``commit(frame)`` for each durable frame, in order, and ``lost(error)`` when the log or the staging of an
    operation fails: the receiver must then call `stop`. The frames' buffers are of ``arenas``, which the containers of
    a process share.
    """

    def __init__(
        self,
        log: DurableLog,
        arenas: ArenaPool,
        next_sequence: int,
        commit: Callable[[Frame], None],
        lost: Callable[[Exception], None],
    ) -> None:
        self._log = log
        self._arenas = arenas
        self._arenas_used = 0
        self._next_sequence = next_sequence
        self._commit = commit
        self._lost = lost
        self._frame_max = min(_ARENA_BYTES, log.frame_target_bytes)
        self._frame = Frame()
        self._queued: deque[Frame] = deque()
        self._writing: deque[tuple[Frame, asyncio.Future[int]]] = deque()
        self._writing_bytes = 0
        self._unfinished: list[Frame] = []  # durable, but their commit failed halfway
        self._flush_scheduled = False
        self._stopped: Exception | None = None
        self._room: asyncio.Future[None] | None = None
        self.staged_bytes = 0
        self.unwritten_bytes = 0  # the part of staged_bytes that the log has not received yet
        self.operations = 0
        self.written_bytes = 0
        self.control_bytes = 0
        """Bytes of all operations but appends, and checkpoints."""

    @property
    def next_sequence(self) -> int:
        """Sequence number of the next operation."""
        return self._next_sequence

    @property
    def idle(self) -> bool:
        """Whether every staged operation is durable."""
        return not self._writing and not self._queued and not self._frame.used

    def unwritten(self, body_bytes: int) -> tuple[int, int]:
        """Return how many payload bytes and frames, at most, the log lacks once such an operation is staged."""
        fragments = 2 + body_bytes // (self._frame_max - operation_log.RECORD.size)
        return self.unwritten_bytes + body_bytes + fragments * operation_log.RECORD.size, len(self._queued) + fragments

    def has_room(self) -> bool:
        """Return whether another operation may be staged.

        The bound is on their bytes, and on the buffers of all containers' frames, which may be half empty. A container
        that has few of them has room in any case: only its own completed frames wake those that wait for it.
        """
        bound = limits.ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES
        return self.staged_bytes < bound and (self._arenas_used <= _ARENAS_FREE or self._arenas.used_bytes < bound)

    def room(self) -> asyncio.Future[None]:
        """Return a future that is done when `has_room` may have become true."""
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    # -- staging -------------------------------------------------------------------------------------------------

    def stage_append(self, item: StagedAppend, header: bytes, data: Sequence[Buffer]) -> None:
        """Write an append's record, with a copy of its data, to the current frame.

        When that fails, the staged state has an operation that no frame has, so the container stops. The error itself
        is raised: a background task that repeats what was unavailable must end, too.
        """
        try:
            self._write_append(item, header, data)
        except Exception as error:
            self._lost(error)
            raise

    def _write_append(self, item: StagedAppend, header: bytes, data: Sequence[Buffer]) -> None:
        item.sequence = self._take_sequence()
        frame = self._frame
        size = operation_log.RECORD.size + len(header) + item.length
        if frame.used + size > self._frame_max and size <= self._frame_max:
            self._close_frame()
            frame = self._frame
        if frame.used + size > self._frame_max:
            self._stage_spanning(ops.OperationType.APPEND, item, [header, *data], len(header))
            return
        if frame.arena is _NO_ARENA:
            self._take_arena(frame)
        arena, at = frame.arena, frame.used
        body_length = size - operation_log.RECORD.size
        operation_log.RECORD.pack_into(
            arena, at, ops.OperationType.APPEND, operation_log.BEGIN | operation_log.END, 0, body_length, item.sequence
        )
        at += operation_log.RECORD.size
        arena[at : at + len(header)] = header
        at += len(header)
        data_start = at
        for buffer in data:
            arena[at : at + len(buffer)] = buffer
            at += len(buffer)
        item.pieces = [(frame, arena[data_start:at])]
        item.begin = frame
        frame.used = at
        self._enqueue(frame, item, size)

    def stage_control(self, operation: ops.ControlOperation) -> asyncio.Future[None]:
        """Write any other operation's record; the returned future is done when the operation is committed.

        Fails as `stage_append` does.
        """
        if self._stopped is not None:
            raise self._stopped
        try:
            return self._write_control(operation)
        except Exception as error:
            self._lost(error)
            raise

    def _write_control(self, operation: ops.ControlOperation) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = StagedControl(operation, future)
        item.sequence = self._take_sequence()
        body = operation.encode()
        if operation.TYPE is not ops.OperationType.CHECKPOINT:
            self.control_bytes += len(body)
        size = operation_log.RECORD.size + len(body)
        frame = self._frame
        if frame.used + size > self._frame_max and size <= self._frame_max:
            self._close_frame()
            frame = self._frame
        if frame.used + size > self._frame_max:
            self._stage_spanning(operation.TYPE, item, [body], len(body))
            return future
        if frame.arena is _NO_ARENA:
            self._take_arena(frame)
        flags = operation_log.BEGIN | operation_log.END
        operation_log.RECORD.pack_into(frame.arena, frame.used, operation.TYPE, flags, 0, len(body), item.sequence)
        frame.arena[frame.used + operation_log.RECORD.size : frame.used + size] = body
        frame.used += size
        self._enqueue(frame, item, size)
        return future

    def _take_sequence(self) -> int:
        sequence = self._next_sequence
        self._next_sequence += 1
        return sequence

    def _enqueue(self, frame: Frame, item: Staged, size: int) -> None:
        frame.items.append(item)
        item.size = size
        self.staged_bytes += size
        self.unwritten_bytes += size
        self.operations += 1
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _stage_spanning(self, kind: ops.OperationType, item: Staged, body: Sequence[Buffer], skip: int) -> None:
        """Write a record in fragments over several frames; the first `skip` bytes of the body are its header."""
        total = sum(len(part) for part in body)
        begin: Frame | None = None
        size = 0
        position = 0
        parts = deque(memoryview(part) for part in body)
        while position < total:
            if self._frame_max - self._frame.used <= operation_log.RECORD.size:
                self._close_frame(begin)
            frame = self._frame
            if frame.arena is _NO_ARENA:
                self._take_arena(frame)
            begin = begin or frame
            take = min(total - position, self._frame_max - frame.used - operation_log.RECORD.size)
            first, last = position == 0, position + take == total
            flags = (operation_log.BEGIN if first else 0) | (operation_log.END if last else 0)
            operation_log.RECORD.pack_into(frame.arena, frame.used, kind, flags, 0, take, item.sequence)
            start = frame.used + operation_log.RECORD.size
            _fill(frame.arena, start, take, parts)
            if isinstance(item, StagedAppend) and position == 0:
                item.begin = frame
            if isinstance(item, StagedAppend) and position + take > skip:
                item.pieces.append((frame, frame.arena[start + max(skip - position, 0) : start + take]))
                frame.waiting += 1
            frame.used = start + take
            size += take + operation_log.RECORD.size
            position += take
        self._enqueue(self._frame, item, size)

    # -- frames --------------------------------------------------------------------------------------------------

    def _take_arena(self, frame: Frame) -> None:
        self._arenas_used += 1
        frame.arena = memoryview(self._arenas.take(self._frame_max))

    def _close_frame(self, span_start: Frame | None = None) -> None:
        self._frame.span_start = span_start
        if self._frame.used:
            self._queued.append(self._frame)
            self._frame = Frame()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._stopped is not None:
            return
        log = self._log
        while len(self._writing) < log.frames_in_flight_max:
            if self._writing_bytes + self._frame_max > limits.LOG_UNACKNOWLEDGED_MAX_BYTES:
                return
            if self._queued:
                frame = self._queued.popleft()
            elif self._frame.used and len(self._writing) < log.part_frames_in_flight_max:
                frame = self._frame
                self._frame = Frame()
            else:
                return
            frame.sequence = log.next_sequence
            frame.handed_over_s = asyncio.get_running_loop().time()
            self.written_bytes += frame.used
            self.unwritten_bytes -= frame.used
            self._writing_bytes += frame.used
            future = log.append([frame.arena[: frame.used]])
            self._writing.append((frame, future))
            future.add_done_callback(self._written)

    def _written(self, _: asyncio.Future[int]) -> None:
        if self._stopped is not None:
            return
        while self._writing and self._writing[0][1].done():
            frame, future = self._writing[0]
            error = ContainerStoppedError("the log was closed") if future.cancelled() else future.exception()
            if error is not None:
                self._lost(error if isinstance(error, Exception) else ContainerStoppedError(str(error)))
                return
            self._writing.popleft()
            self._writing_bytes -= frame.used
            try:
                self._complete(frame)
            except Exception as failure:
                # State and log disagree: any later operation would build on a state that lacks one.
                self._unfinished.append(frame)
                self._lost(failure)
                return
        self._flush()

    def _complete(self, frame: Frame) -> None:
        for item in frame.items:
            self.staged_bytes -= item.size
        frame.keep_from = frame.sequence + 1 if frame.span_start is None else frame.span_start.sequence
        self._commit(frame)
        frame.span_start = None
        frame.complete = True
        for item in frame.items:
            if isinstance(item, StagedAppend) and item.begin is not frame:
                for earlier, _ in item.pieces:
                    earlier.waiting -= 1
                    self._recycle(earlier)
        frame.items.clear()
        self._recycle(frame)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _recycle(self, frame: Frame) -> None:
        """Return the buffer of a frame that is complete and that no append waits for."""
        if self._stopped is None and frame.complete and not frame.waiting and frame.arena is not _NO_ARENA:
            arena = frame.arena.obj
            frame.arena = _NO_ARENA
            self._arenas_used -= 1
            self._arenas.give(arena)  # type: ignore[arg-type]  # the object behind a view of ours is a bytearray

    # -- stop ------------------------------------------------------------------------------------------------

    def stop(self, cause: Exception) -> list[Staged]:
        """Refuse operations from now on; return those whose outcome is unknown."""
        if self._stopped is not None:
            return []
        stopped = cause if isinstance(cause, TailraceError) else ContainerStoppedError(str(cause))
        self._stopped = stopped
        frames = [*(frame for frame, _ in self._writing), *self._unfinished, *self._queued, self._frame]
        for _, future in self._writing:
            future.remove_done_callback(self._written)
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()  # mark it as retrieved: `cause` reports it
        items = [item for frame in frames for item in frame.items]
        for frame in frames:
            frame.items, frame.span_start = [], None
        # The log may still read them: they are freed when it does not.
        self._arenas.forget(self._arenas_used * self._frame_max)
        self._frame = Frame()
        self._unfinished.clear()
        self._writing.clear()
        self._queued.clear()
        for item in items:
            if isinstance(item, StagedControl) and not item.future.done():
                item.future.set_exception(OutcomeUnknownError(f"the container stopped: {stopped}"))
                item.future.exception()  # mark it as retrieved: the caller may be gone
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return items


def _fill(arena: memoryview, at: int, length: int, parts: deque[memoryview]) -> None:
    end = at + length
    while at < end:
        part = parts[0]
        take = min(len(part), end - at)
        arena[at : at + take] = part[:take]
        at += take
        if take == len(part):
            parts.popleft()
        else:
            parts[0] = part[take:]
