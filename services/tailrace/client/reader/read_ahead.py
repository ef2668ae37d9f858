"""Divide a reader's memory for events that were fetched and not yet returned between its segments."""

from __future__ import annotations

import asyncio
from collections import deque

from tailrace.common import limits


class ReadAhead:
    """The bytes that the segments of one reader hold, together.

    Half of them are shared evenly: a request for the share of a segment is always allowed. The other half is *spare*,
    for segments that have more to read at once, and for events larger than the share. One event at a time may overdraw
    the spare bytes. So each event is read, whatever its size and whatever the other segments hold.
    """

    def __init__(self, total_bytes: int = limits.READER_READ_AHEAD_BYTES) -> None:
        self._shared_bytes = total_bytes // 2
        self._spare_bytes = total_bytes - self._shared_bytes
        self._parts = 0
        self._overdrawn_by: ReadAheadPart | None = None
        self._waiting: deque[tuple[ReadAheadPart, int, asyncio.Future[None]]] = deque()

    def part(self) -> ReadAheadPart:
        """Return the part of another segment; close it at the end."""
        self._parts += 1
        return ReadAheadPart(self)

    @property
    def share_bytes(self) -> int:
        """Return what a segment may always request.

        It holds four times as much at most: events, and a reply that waits until they are returned, each behind the
        beginning of an event that an earlier reply ended with.
        """
        share = self._shared_bytes // (4 * max(1, self._parts))
        return min(limits.READER_REQUEST_BYTES, max(limits.READER_SHARE_MIN_BYTES, share))

    def take_spare(self, wanted: int) -> int:
        """Take up to so many spare bytes, none before those who wait for some; return how many."""
        taken = 0 if self._waiting else min(wanted, max(0, self._spare_bytes))
        self._spare_bytes -= taken
        return taken

    async def wait_for_spare(self, part: ReadAheadPart, wanted: int) -> None:
        """Take spare bytes for an event, in the order of the calls."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = part, wanted, turn
        self._waiting.append(entry)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(entry)
                self._serve()
            else:
                self.give_back(wanted)
                self.settle(part)
            raise

    def give_back(self, count: int) -> None:
        """Return spare bytes."""
        self._spare_bytes += count
        self._serve()

    def settle(self, part: ReadAheadPart) -> None:
        """Let another event overdraw if one of this part did: that was returned or dropped."""
        if self._overdrawn_by is part:
            self._overdrawn_by = None
        self._serve()

    def overdrawn_by(self, part: ReadAheadPart) -> bool:
        """Return whether an event of this part overdraws."""
        return self._overdrawn_by is part

    def leave(self) -> None:
        """Remove a part."""
        self._parts -= 1

    def _serve(self) -> None:
        while self._waiting:
            part, wanted, turn = self._waiting[0]
            if turn.cancelled():
                return  # it leaves, and serves the others then
            if wanted > self._spare_bytes:
                if self._overdrawn_by is not None:
                    return
                self._overdrawn_by = part
            self._waiting.popleft()
            self._spare_bytes -= wanted
            turn.set_result(None)


class ReadAheadPart:
    """What one segment holds beyond its share: of its fetched bytes, and of the events parsed from them."""

    def __init__(self, ahead: ReadAhead) -> None:
        self._ahead = ahead
        self._fetched_bytes = 0
        self._events_bytes = 0
        self._events_overdraw = False

    def request_bytes(self, fetched: int, *, has_more: bool) -> int:
        """Return the length of the next request, behind so many fetched bytes that are the beginning of an event.

        ``has_more``: the request will not wait at the tail, where it would keep spare bytes.
        """
        share = self._ahead.share_bytes
        allowed = share + max(0, self._fetched_bytes - max(0, fetched - share))
        if has_more and allowed < limits.READER_REQUEST_BYTES:
            taken = self._ahead.take_spare(limits.READER_REQUEST_BYTES - allowed)
            self._fetched_bytes += taken
            allowed += taken
        return min(limits.READER_REQUEST_BYTES, allowed)

    async def room_for(self, event_bytes: int) -> None:
        """Wait for room for an event of that size."""
        missing = event_bytes - self._ahead.share_bytes - self._fetched_bytes
        if missing > 0:
            await self._ahead.wait_for_spare(self, missing)
            self._fetched_bytes += missing

    def keep(self, needed: int) -> None:
        """Give back what the fetched bytes, or the event that they begin, do not need."""
        surplus = min(self._fetched_bytes, max(0, self._fetched_bytes + self._ahead.share_bytes - needed))
        if surplus:
            self._fetched_bytes -= surplus
            self._ahead.give_back(surplus)

    def parsed(self, left: int) -> None:
        """Account for events that were parsed, all but `left` of the fetched bytes; those before were returned."""
        kept = min(self._fetched_bytes, max(0, left - self._ahead.share_bytes))
        self._events_bytes, self._fetched_bytes = self._fetched_bytes - kept, kept
        self._events_overdraw = self._ahead.overdrawn_by(self)

    def returned(self) -> None:
        """Give back what the parsed events held."""
        given, self._events_bytes = self._events_bytes, 0
        if given:
            self._ahead.give_back(given)
        if self._events_overdraw:
            self._events_overdraw = False
            self._ahead.settle(self)

    def drop_fetched(self) -> None:
        """Give back what the bytes that are not parsed held: they were dropped."""
        given, self._fetched_bytes = self._fetched_bytes, 0
        if given:
            self._ahead.give_back(given)
        if not self._events_overdraw:
            self._ahead.settle(self)

    def close(self) -> None:
        """Give back everything."""
        self.returned()
        self.drop_fetched()
        self._ahead.leave()
