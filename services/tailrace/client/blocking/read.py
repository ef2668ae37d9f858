"""Blocking readers: events and bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, TypeVar

from tailrace.client.blocking.portal import next_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tailrace.client.blocking.portal import Portal
    from tailrace.client.byte_stream import ByteStreamReader
    from tailrace.client.group.state.records import Position
    from tailrace.client.model import StreamName
    from tailrace.client.reader.event_reader import EventBatch, EventRead, EventReader
    from tailrace.client.reader.time_windows import TimeWindow

T = TypeVar("T")


class BlockingEventReader:
    """The blocking form of `EventReader`.

    A read whose caller was interrupted, as by Ctrl-C, may end with a result that no caller gets. The next call takes it
    back first, so that no event is lost.
    """

    def __init__(self, portal: Portal, reader: EventReader) -> None:
        self._run = portal.run
        self.reader = reader.reader
        self._reader = reader
        self._turn = asyncio.Lock()  # an interrupted call may still be ending when the next one begins
        self._undelivered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_batch(self, max_events: int, timeout_ms: int) -> EventBatch | None:
        """Return up to `max_events` events of one segment, or a checkpoint: the fastest way to read many events."""
        return self._read(lambda: self._reader.read_batch(max_events, timeout_ms))

    def read_events(self, max_events: int, timeout_ms: int) -> list[EventRead]:
        """Return events of one segment, or one checkpoint; nothing when none arrived in time."""
        return self._read(lambda: self._reader.read_events(max_events, timeout_ms))

    def read_event(self, timeout_ms: int) -> EventRead | None:
        """Return the next event or checkpoint."""
        return self._read(lambda: self._reader.read_event(timeout_ms))

    def events(self, *, idle_ms: int) -> Iterator[EventRead]:
        """Yield events until none arrived for `idle_ms`."""
        source = self._reader.events(idle_ms=idle_ms)
        while (item := self._read(lambda: next_of(source))) is not None:
            yield item

    def _read(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run a read call; what it returns counts as delivered when it has arrived in the caller's thread."""

        async def work() -> T:
            result = await make()
            self._undelivered = True
            return result

        result = self._run(self._after_the_last_call(work))
        self._undelivered = False
        return result

    async def _after_the_last_call(self, make: Callable[[], Awaitable[T]]) -> T:
        async with self._turn:
            if self._undelivered:
                self._undelivered = False
                self._reader.take_back()
            return await make()

    @property
    def position(self) -> Position:
        """Return the position after all returned events."""
        return self._look(lambda: self._reader.position)

    def time_window(self, stream: str | StreamName) -> TimeWindow:
        """Return between which times the group's next events of a stream are (docs/client.md#time-windows)."""
        return self._run(self._after_the_last_call(lambda: self._reader.time_window(stream)))

    @property
    def ended_segments(self) -> tuple[str, ...]:
        """Return the segments that were read to their sealed ends; successors are read after the next checkpoint."""
        return self._look(lambda: self._reader.ended_segments)

    @property
    def unassigned_segments(self) -> int:
        """Return the number of the group's segments that no reader has."""
        return self._look(lambda: self._reader.unassigned_segments)

    @property
    def end_of_data(self) -> bool:
        """Return whether the group has read everything up to its end cuts."""
        return self._look(lambda: self._reader.end_of_data)

    def _look(self, see: Callable[[], T]) -> T:
        """Return what a property of the reader is when no call runs."""

        async def work() -> T:
            return see()

        return self._run(self._after_the_last_call(work))

    def close(self) -> None:
        """Leave the group."""
        self._run(self._after_the_last_call(self._reader.close))


class BlockingByteStreamReader:
    """The blocking form of `ByteStreamReader`.

    A read whose caller was interrupted, as by Ctrl-C, may end with bytes that no caller gets. So each read begins
    behind the bytes that arrived in the caller's thread, wherever the reader stopped.
    """

    def __init__(self, portal: Portal, reader: ByteStreamReader) -> None:
        self._run = portal.run
        self._reader = reader
        self._turn = asyncio.Lock()  # an interrupted call may still be ending when the next one begins
        self._offset = reader.offset
        self.stream = reader.stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    def offset(self) -> int:
        """Return where the next read begins."""
        return self._offset

    def head(self) -> int:
        """Return the offset of the first byte."""
        return self._run(self._reader.head())

    def tail(self) -> int:
        """Return the offset of the end."""
        return self._run(self._reader.tail())

    def seek(self, offset: int) -> None:
        """Continue reading at `offset`. Raises BadRequestError for a negative one."""
        self._reader.seek(offset)
        self._offset = offset

    def read(self, max_bytes: int, *, timeout_s: float | None = None) -> bytes:
        """Return up to `max_bytes` bytes; waits at the end of the stream."""
        return self._read(lambda: self._reader.read(max_bytes, timeout_s=timeout_s))

    def read_exactly(self, count: int, *, timeout_s: float | None = None) -> bytes:
        """Return `count` bytes, fewer at the end of a sealed stream only. A failed or interrupted call takes none."""
        return self._read(lambda: self._reader.read_exactly(count, timeout_s=timeout_s))

    def _read(self, make: Callable[[], Awaitable[bytes]]) -> bytes:
        begin = self._offset
        data = self._run(self._read_at(begin, make))
        self._offset = begin + len(data)
        return data

    async def _read_at(self, offset: int, make: Callable[[], Awaitable[bytes]]) -> bytes:
        async with self._turn:
            self._reader.seek(offset)
            return await make()
