"""Write events by routing key to a set of segments, with bounded bytes in flight (docs/protocol/naming.md#routing)."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from tailrace.client.hashing import key_position
from tailrace.client.retry import without_traceback
from tailrace.client.writer.append_blocks import EVENT_HEADER_BYTES, Run, as_bytes, packed_size
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, IllegalStateError, OverloadedError, TailraceError
from tailrace.common.ranges import KeyRange

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.writer.segment_writer import SegmentWriter


class RoutedWriter:
    """The common part of writers of streams and of transactions.

    `write_event` and `write_events` buffer events at once and return a future that completes when they are durable. The
    buffer is bounded: await `ready` before a call, else a call beyond WRITER_BUFFERED_MAX_BYTES raises OverloadedError.
    """

    def __init__(self, context: ClientContext, target: str) -> None:
        self._context = context
        self._target = target
        self._writers: dict[int, SegmentWriter] = {}
        self._ranges: list[KeyRange] = []
        self._highs: list[float] = []
        self._owners: list[SegmentWriter] = []
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._error: TailraceError | None = None

    async def start(self) -> Self:
        """Start the writer; each kind of writer defines how."""
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abandon()

    # -- writing ------------------------------------------------------------------------------------------------

    def write_event(self, event: bytes, routing_key: str | None = None) -> asyncio.Future[None]:
        """Write one event of any size; ``await`` the result until it is durable.

        Events of one routing key keep their order; events without a key have none.

        Raises:
            OverloadedError: the buffer is full (`ready`). BadRequestError: not bytes, or too large.
        """
        if type(event) is not bytes:
            (event,) = as_bytes((event,))
        return self._write((event,), len(event) + EVENT_HEADER_BYTES, routing_key)

    def write_events(self, events: Sequence[bytes], routing_key: str | None = None) -> asyncio.Future[None]:
        """Write events of one routing key, in order; the future completes when all are durable.

        Up to EVENT_MAX_BYTES in total they are stored atomically, next to each other.

        Raises:
            OverloadedError: the buffer is full (`ready`). BadRequestError: no events.
        """
        if not events:
            raise BadRequestError("the list of events is empty")
        events = as_bytes(events)
        size = packed_size(events)
        if len(events) == 1 or size <= limits.EVENT_MAX_BYTES + EVENT_HEADER_BYTES:
            return self._write(events, size, routing_key)
        return self._write_in_parts(events, routing_key)

    def _write(self, events: Sequence[bytes], size: int, routing_key: str | None) -> asyncio.Future[None]:
        if self._error is not None:
            raise without_traceback(self._error)
        _check_size(size)
        self._check_room()
        if routing_key is None:
            key = self._context.entropy.uniform()
        elif isinstance(routing_key, str):
            key = key_position(routing_key)
        else:
            raise BadRequestError(f"the routing key is of type {type(routing_key).__name__}, not str")
        if not self._owners:
            raise IllegalStateError(f"the writer of {self._target} is not started")
        run = Run(key, len(events), size, asyncio.get_running_loop().create_future())
        self._buffered_bytes += size
        if self._buffered_bytes >= limits.WRITER_BUFFERED_MAX_BYTES:
            self._room.clear()
        self._owners[bisect_right(self._highs, key)].add(run, events)
        return run.future

    def _check_room(self) -> None:
        if not self._room.is_set():
            raise OverloadedError(
                f"{self._buffered_bytes} bytes to {self._target} are not durable yet; await ready() before writing"
            )

    def _write_in_parts(self, events: Sequence[bytes], routing_key: str | None) -> asyncio.Future[None]:
        """Write a batch that is too large for one append: all its parts are taken when the buffer has any room."""
        self._check_room()
        _check_size(max(map(len, events)) + EVENT_HEADER_BYTES)  # before any part is taken
        key = routing_key if routing_key is not None else str(self._context.entropy.uniform())
        total = packed_size(events)
        if self._buffered_bytes + total > limits.WRITER_BUFFERED_MAX_BYTES + limits.WRITER_EVENT_MAX_BYTES:
            raise OverloadedError(
                f"a batch of {total} bytes does not fit into the buffer of the writer of {self._target}; split it"
            )
        futures: list[asyncio.Future[None]] = []
        start = size = 0
        for index, event in enumerate(events):
            length = len(event) + EVENT_HEADER_BYTES
            if size and size + length > limits.WRITER_BLOCK_MAX_BYTES:
                futures.append(self._force(events[start:index], size, key))
                start, size = index, 0
            size += length
        futures.append(self._force(events[start:], size, key))
        return _joined(futures)

    def _force(self, events: Sequence[bytes], size: int, key: str) -> asyncio.Future[None]:
        self._room.set()
        return self._write(events, size, key)

    @property
    def active(self) -> bool:
        """Return whether the writer takes events."""
        return self._error is None

    async def ready(self) -> None:
        """Wait until the buffer has room. Raises the error that ended the writer.

        An event that is written next, without another await in between, is taken, also when many tasks wait.
        """
        while not self._room.is_set():
            await self._room.wait()
        if self._error is not None:
            raise without_traceback(self._error)

    async def flush(self) -> None:
        """Wait until everything written before this call is durable. Raises the error of a failed event.

        That includes events whose futures were cancelled, also during this call: they are written as well.
        """
        runs = [run for writer in self._writers.values() for run in writer.runs()]
        for run in runs:
            while not (future := run.settled()).done():
                await asyncio.wait([future])
        for run in runs:
            if (error := run.settled().exception()) is not None:
                raise error
        if self._error is not None:
            raise without_traceback(self._error)

    async def close(self) -> None:
        """Flush and stop. Raises the errors of `flush`; the writer stops in any case."""
        try:
            await self.flush()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Stop. Events that are not durable yet fail, and may be stored or not.

        The effect is immediate, also when the call is cancelled; the call only waits for the tasks to end.
        """
        if self._error is None:
            self._error = IllegalStateError(f"the writer of {self._target} is closed")
        self._room.set()
        writers, self._writers = self._writers, {}
        tasks = [task for writer in writers.values() for task in writer.stop()]
        if tasks:
            await asyncio.wait(tasks)

    def _progressed(self, size: int) -> None:
        self._buffered_bytes -= size
        if self._buffered_bytes < limits.WRITER_BUFFERED_MAX_BYTES:
            self._room.set()

    # -- routing ------------------------------------------------------------------------------------------------

    def _set_routes(self, routes: Iterable[tuple[KeyRange, SegmentWriter]]) -> None:
        ordered = _joined_routes(sorted(routes, key=lambda route: route[0]))
        self._ranges = [key_range for key_range, _ in ordered]
        self._highs = [key_range.high for key_range, _ in ordered]
        self._owners = [writer for _, writer in ordered]

    def _fail(self, error: TailraceError) -> None:
        """End the writer: refuse events, and fail the buffered ones."""
        self._error = error
        for writer in self._writers.values():
            writer.fail(error)
        self._room.set()


def _check_size(size: int) -> None:
    if size > limits.WRITER_EVENT_MAX_BYTES:
        raise BadRequestError(f"an event of {size} bytes is too large, at most {limits.WRITER_EVENT_MAX_BYTES}")


def _joined_routes(routes: Iterable[tuple[KeyRange, SegmentWriter]]) -> list[tuple[KeyRange, SegmentWriter]]:
    """Join neighbouring parts of one segment, so that scales do not add parts without bound."""
    joined: list[tuple[KeyRange, SegmentWriter]] = []
    for key_range, writer in routes:
        if joined and joined[-1][1] is writer and joined[-1][0].high == key_range.low:
            key_range = KeyRange(joined.pop()[0].low, key_range.high)
        joined.append((key_range, writer))
    return joined


def _joined(futures: Sequence[asyncio.Future[None]]) -> asyncio.Future[None]:
    """Return a future that completes when all have completed, with the first error if there is one."""
    joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(futures)

    def done(future: asyncio.Future[None]) -> None:
        nonlocal left
        left -= 1
        if joined.done():
            return
        error = None if future.cancelled() else future.exception()
        if error is not None:
            joined.set_exception(error)
            joined.exception()  # flush() also raises it
        elif left == 0:
            joined.set_result(None)

    for future in futures:
        future.add_done_callback(done)
    return joined
