"""Prefetch events of one segment: return them from memory while the next read is in flight.

See docs/protocol/wire.md#reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tailrace.client.retry import as_known, without_traceback
from tailrace.client.writer.append_blocks import EVENT_HEADER_BYTES
from tailrace.common import limits
from tailrace.common.errors import (
    CorruptionError,
    DataError,
    NoSuchSegmentError,
    SegmentGoneError,
    SegmentTruncatedError,
    TailraceError,
)
from tailrace.kernel import split_events_bytes

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.reader.read_ahead import ReadAhead

UNLIMITED_OFFSET: Final = 2**63 - 1


class SegmentInput:
    """Events of a segment from an offset on, with one read in flight.

    ``offset`` is where the next event to return begins. ``changed`` is called when the results of `take` or `ended` may
    change. ``failure`` is the permanent error that `take` has raised, and will raise again.
    """

    def __init__(
        self,
        context: ClientContext,
        segment: str,
        offset: int,
        *,
        end_offset: int = UNLIMITED_OFFSET,
        ahead: ReadAhead,
        changed: Callable[[], None],
    ) -> None:
        self.segment = segment
        self.offset = offset
        self.end_offset = end_offset
        self.failure: DataError | None = None
        self._context = context
        self._changed = changed
        self._part = ahead.part()
        self._events: list[bytes] = []
        self._next = 0
        self._rest = bytearray()
        self._fetched_to = offset
        self._has_more = False
        self._closed = False
        self._sealed_end = False
        self._error: TailraceError | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._task = asyncio.create_task(self._fill(), name=f"read {segment}")

    @property
    def ended(self) -> bool:
        """Return whether everything up to the sealed end or the end offset was returned."""
        if self.offset >= self.end_offset:
            return True
        return self._sealed_end and self._error is None and self._next == len(self._events)

    @property
    def ready(self) -> bool:
        """Return whether `take` has events or an error."""
        return self._next < len(self._events) or self._error is not None

    def take(self, max_events: int) -> list[bytes]:
        """Return up to `max_events` prefetched events, which then count as read.

        Raises:
            SegmentTruncatedError: events were truncated before they were read; the next call reads after the gap.
            UnavailableError and others: reading failed; the next call retries. DataError: permanent.
        """
        if self._next == len(self._events) and self._error is not None:
            raise without_traceback(self._passed(self._error))
        first, self._next = self._next, min(len(self._events), self._next + max_events)
        taken = self._events[first : self._next]
        if self.end_offset != UNLIMITED_OFFSET:
            taken = self._before_end(taken)
        self.offset += sum(map(len, taken)) + EVENT_HEADER_BYTES * len(taken)
        if self._next == len(self._events):
            self._returned()
        return taken

    def take_fetched(self) -> bytes | None:
        """Return the next prefetched event, which then counts as read; None when there is none before the end."""
        if self._next == len(self._events) or self.offset >= self.end_offset:
            return None
        event = self._events[self._next]
        self._next += 1
        self.offset += len(event) + EVENT_HEADER_BYTES
        if self._next == len(self._events):
            self._returned()
        return event

    def _returned(self) -> None:
        """Make room: all parsed events were returned."""
        self._events, self._next = [], 0
        self._room.set()
        self._part.returned()

    def take_back(self, events: list[bytes]) -> None:
        """Undo the last `take`, which returned these events: the next one returns them again."""
        self.offset -= sum(map(len, events)) + EVENT_HEADER_BYTES * len(events)
        self._events, self._next = events + self._events[self._next :], 0

    def _before_end(self, events: list[bytes]) -> list[bytes]:
        """Return the events that begin before the end offset."""
        offset = self.offset
        for index, event in enumerate(events):
            if offset >= self.end_offset:
                return events[:index]
            offset += EVENT_HEADER_BYTES + len(event)
        return events

    def _passed(self, error: TailraceError) -> TailraceError:
        """Return the error to raise, and prepare the next read: after a gap, or at the same offset."""
        if isinstance(error, DataError):
            self.failure = error
            return error
        self._error = None
        if isinstance(error, NoSuchSegmentError):
            self._sealed_end = True
            return SegmentGoneError(self.segment, self.offset)
        if isinstance(error, SegmentTruncatedError):
            error = SegmentTruncatedError(self.segment, error.start_offset, self.offset)
            self.offset = error.start_offset
        self._fetched_to = self.offset
        self._has_more = False
        self._task = asyncio.create_task(self._fill(), name=f"read {self.segment}")
        return error

    async def close(self) -> None:
        """Stop reading."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self._closed:
            self._closed = True
            self._part.close()

    # -- fetching -----------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Read ahead until the end; buffer at most one batch of events and one reply."""
        try:
            while not self._sealed_end and self._fetched_to - len(self._rest) < self.end_offset:
                end = await self._fetch()
                await self._parse()
                self._sealed_end = end  # not before all events are parsed: see `ended`
                if self._sealed_end and self._rest:
                    raise CorruptionError(f"{self.segment} at {self._fetched_to}", "the last event is cut off")
                if self._sealed_end or self._events:
                    self._changed()
        except Exception as error:  # the next `take` raises it
            self._rest.clear()
            self._part.drop_fetched()
            self._error = as_known(error, f"the reading of {self.segment}")
            self._changed()

    async def _fetch(self) -> bool:
        """Read what follows, as much as the segment's part of the reader's memory allows; return whether it ends."""
        await self._part.room_for(self._bytes_of_next_event())
        length = self._part.request_bytes(len(self._rest), has_more=self._has_more)
        read = await self._context.segments.read(self.segment, self._fetched_to, length)
        self._fetched_to += len(read.data)
        self._rest += read.data
        self._has_more = not read.at_tail
        self._part.keep(max(len(self._rest), self._bytes_of_next_event()))
        return read.end

    async def _parse(self) -> None:
        """Parse the fetched bytes when all earlier events were returned."""
        if len(self._rest) < self._bytes_of_next_event():
            return
        while self._events:
            self._room.clear()
            self._changed()
            await self._room.wait()
        try:
            events, consumed = split_events_bytes(self._rest, 0, len(self._rest), limits.WRITER_EVENT_MAX_BYTES)
        except ValueError as error:
            place = f"{self.segment} from {self._fetched_to - len(self._rest)}"
            raise CorruptionError(place, str(error)) from error
        del self._rest[:consumed]
        self._events, self._next = events, 0
        self._part.parsed(len(self._rest))

    def _bytes_of_next_event(self) -> int:
        """Return the size of the next event, so that a large one is not parsed for every piece of it."""
        if len(self._rest) < EVENT_HEADER_BYTES:
            return EVENT_HEADER_BYTES
        length = int.from_bytes(self._rest[4:8], "big")
        if any(self._rest[:4]) or length > limits.WRITER_EVENT_MAX_BYTES:
            return EVENT_HEADER_BYTES  # no event begins here: parsing raises the error
        return EVENT_HEADER_BYTES + length
