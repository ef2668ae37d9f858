"""Read events as one member of a reader group, shared with Java readers or not.

See docs/design.md#reader-groups, docs/protocol/reader-group-state.md#distribution.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple, Self

from tailrace.client.group.membership import GroupMember, Taken
from tailrace.client.group.state.records import ENDED_OFFSET, Position, is_silent
from tailrace.client.group.synchronizer import GroupSynchronizer
from tailrace.client.group.view import positions_of
from tailrace.client.model import name_of
from tailrace.client.reader.read_ahead import ReadAhead
from tailrace.client.reader.segment_input import SegmentInput
from tailrace.client.reader.time_windows import TimeWindows
from tailrace.client.reader.truncations import Truncations
from tailrace.client.reader.turns import SegmentTurns
from tailrace.client.retry import without_traceback
from tailrace.client.writer.append_blocks import EVENT_HEADER_BYTES
from tailrace.common import limits, names
from tailrace.common.errors import (
    BadRequestError,
    IllegalStateError,
    NoSuchReaderGroupError,
    SegmentTruncatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.model import StreamName
    from tailrace.client.reader.time_windows import TimeWindow


class EventBatch(NamedTuple):
    """Consecutive events of one segment; the first begins at ``offset``.

    A batch with a ``checkpoint`` has no events: the reader's present position belongs to that checkpoint. The next read
    call acknowledges it.
    """

    segment: str
    offset: int
    events: list[bytes]
    checkpoint: str | None = None


class EventRead(NamedTuple):
    """One event, its segment and its start and end offsets; or a checkpoint without an event."""

    event: bytes
    segment: str
    offset: int
    end_offset: int
    checkpoint: str | None = None


class EventReader:
    """Read a share of a group's segments.

    Events of one routing key are read in order, by one reader at a time. An event counts as read when it is returned.
    After the end of a sealed segment, its successors follow at the next checkpoint. Not for concurrent use. Start with
    `await reader.start()` or ``async with``. A reader keeps its segments until it is closed or declared offline.

    Readers with `dead_after_s` write heartbeats and declare each other offline after that many seconds of silence. None
    turns both off for this reader.
    """

    def __init__(
        self,
        context: ClientContext,
        scope: str,
        group: str,
        reader: str,
        *,
        dead_after_s: float | None = limits.READER_DEAD_AFTER_S,
    ) -> None:
        self.reader = names.check_entity_name("reader", reader)
        self._context = context
        self._scope = scope
        self._group = group
        self._dead_after_s = dead_after_s
        self._member: GroupMember | None = None
        self._windows = TimeWindows(context)
        self._truncations = Truncations(context)
        self._truncated: SegmentTruncatedError | None = None
        self._ahead = ReadAhead()
        self._inputs: dict[str, SegmentInput] = {}
        self._ended: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._turns = SegmentTurns(self._changed.set)
        self._followed = -1
        """The version of the group's state whose assignment this reader follows."""
        self._answering: str | None = None
        self._last_given: EventBatch | EventRead | None = None
        self._leaving_at: dict[str, int] | None = None

    async def start(self, *, first_acquire_s: float = 0.0) -> Self:
        """Join the group. After a cancelled or unanswered call, `close` removes the reader if it joined.

        A reader of that name that wrote heartbeats is watched first, for the `dead_after_s` that it had: if it is
        silent, it is declared offline. Without `dead_after_s` this reader watches none.

        Raises NoSuchReaderGroupError; AlreadyExistsError when a reader of that name is online; UnavailableError.
        """
        synchronizer = await GroupSynchronizer.open(self._context, self._scope, self._group)
        await synchronizer.fetch()
        if not synchronizer.has_state:
            raise NoSuchReaderGroupError(f"reader group {self._scope}/{self._group} is not initialised")
        member = GroupMember(self._context, synchronizer, self._scope, self._group, self.reader, self._dead_after_s)
        try:
            await member.join(first_acquire_s)
        except (asyncio.CancelledError, UnavailableError):
            self._member, self._leaving_at = member, {}  # it may have joined: `close` removes it from the group
            raise
        self._member = member
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- reading ------------------------------------------------------------------------------------------------

    async def read_batch(self, max_events: int, timeout_ms: int) -> EventBatch | None:
        """Return up to `max_events` events of one segment, or a checkpoint; None when none arrived within `timeout_ms`.

        This is the fastest way to read many events.

        Raises:
            ReinitializationRequiredError: the group was reset, or the reader was declared offline.
            StreamTruncatedError: events were truncated before they were read; the next calls read after the gap.
            DataError: a segment cannot be read. Later calls raise it again when other segments have no events in time.
        """
        if not 1 <= max_events <= limits.READER_EVENTS_PER_READ_MAX:
            raise BadRequestError(f"max_events is {max_events}, allowed are 1 to {limits.READER_EVENTS_PER_READ_MAX}")
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + timeout_ms / 1000
        self._last_given = None
        while True:
            self._changed.clear()
            checkpoint = await self._keep_up()
            if checkpoint is not None:
                self._answering = checkpoint
                self._last_given = EventBatch("", 0, [], checkpoint)
            else:
                self._last_given = await self._next_batch(max_events)
            if self._last_given is not None:
                return self._last_given
            if loop.time() >= ends_at_s:
                self._raise_again()
                return None
            await self._wait(min(ends_at_s, self._joined().next_look_s()))

    async def read_events(self, max_events: int, timeout_ms: int) -> list[EventRead]:
        """Read a batch and return one value per event; a checkpoint is a single value without an event."""
        batch = await self.read_batch(max_events, timeout_ms)
        if batch is None:
            return []
        if batch.checkpoint is not None:
            return [EventRead(b"", "", 0, 0, batch.checkpoint)]
        result = []
        offset = batch.offset
        for event in batch.events:
            end = offset + EVENT_HEADER_BYTES + len(event)
            result.append(EventRead(event, batch.segment, offset, end))
            offset = end
        return result

    async def read_event(self, timeout_ms: int) -> EventRead | None:
        """Return the next event or checkpoint; None when none arrived in time."""
        found = await self.read_events(1, timeout_ms)
        return found[0] if found else None

    async def events(self, *, idle_ms: int) -> AsyncIterator[EventRead]:
        """Yield events until none arrived for `idle_ms`; acknowledge checkpoints without yielding them.

        An event counts as read when it is yielded, so the loop may be left at any event.
        """
        loop = asyncio.get_running_loop()
        idle_at_s = loop.time() + idle_ms / 1000
        while True:
            item = await self.read_event(max(0, int((idle_at_s - loop.time()) * 1000)))
            if item is not None and item.checkpoint is None:
                # The loop's body may take long: the group waits for this reader, and so does its heartbeat. But a look
                # may take long, too.
                look_s = max(self._joined().next_look_s(), loop.time() + limits.READER_LOOK_PAUSE_S)
                yield item
                source = self._inputs.get(item.segment)
                for _ in range(limits.READER_EVENTS_PER_LOOK - 1):
                    item = self._next_fetched(item.segment, source) if loop.time() < look_s else None
                    if item is None:
                        break
                    yield item
                idle_at_s = loop.time() + idle_ms / 1000
            if loop.time() >= idle_at_s:
                return

    def _next_fetched(self, segment: str, source: SegmentInput | None) -> EventRead | None:
        """Return the next fetched event of a segment without a look at the group; None when there is none.

        The application may have used the reader otherwise since the last one.
        """
        if source is None or self._inputs.get(segment) is not source or self._answering is not None:
            return None
        offset = source.offset
        event = source.take_fetched()
        if event is None:
            return None
        self._last_given = found = EventRead(event, segment, offset, source.offset)
        return found

    def take_back(self) -> None:
        """Undo the last read call, whose result the application did not get: the next one returns it again."""
        given, self._last_given = self._last_given, None
        if given is None:
            return
        if given.checkpoint is not None:
            self._answering = None
        elif given.segment in self._inputs:
            events = [given.event] if isinstance(given, EventRead) else given.events
            self._inputs[given.segment].take_back(events)
            self._turns.notice(given.segment)

    async def _next_batch(self, max_events: int) -> EventBatch | None:
        """Return what `_take` does. Of a truncated stream only the first error is raised, with all that is missed."""
        if self._truncated is None:
            try:
                return self._take(max_events)
            except SegmentTruncatedError as error:
                self._truncated = error  # until it is reported, also by a later call
        positions = {**positions_of(self._joined().state), **self._positions()}
        whole = await self._truncations.report(self._truncated, positions)
        self._truncated = None
        if whole is not None:
            raise whole
        self._changed.set()  # look at the other segments at once
        return None

    def _take(self, max_events: int) -> EventBatch | None:
        """Return events of the next segment that has some, round robin."""
        while (segment := self._turns.begin(self._inputs)) is not None:
            source = self._inputs[segment]
            offset = source.offset
            events = source.take(max_events)
            if events:
                self._joined().note_event(segment)
                return EventBatch(segment, offset, events)
        return None

    def _raise_again(self) -> None:
        """Raise the error of a segment that cannot be read; the others have no events."""
        for source in self._inputs.values():
            if source.failure is not None:
                raise without_traceback(source.failure)

    async def _wait(self, until_s: float) -> None:
        timeout_s = until_s - asyncio.get_running_loop().time()
        if timeout_s > 0 and not self._changed.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return

    # -- the group ----------------------------------------------------------------------------------------------

    async def _keep_up(self) -> str | None:
        """Follow the group's state; return a checkpoint that the application must see."""
        member = self._joined()
        await self._note_ends()
        if self._answering is not None:
            await self._acknowledge(member, self._answering)
        await member.look()
        await self._follow_assignment(member)
        while (due := member.due_checkpoint()) is not None:
            if not is_silent(due):
                return due
            await member.answer(due, self._positions())
        for taken in await member.acquire(self._positions):
            self._begin(taken)
        await member.tell_positions(self._positions)
        await member.begin_checkpoint()
        return None

    async def _acknowledge(self, member: GroupMember, checkpoint: str) -> None:
        """Acknowledge a checkpoint that the application has passed, then do the work that waited for it.

        See docs/protocol/reader-group-state.md#checkpoints.

        After a failure or cancellation, the next read call does what is left.
        """
        await member.answer(checkpoint, self._positions())
        for segment in list(self._ended):
            if await member.complete(segment):
                del self._ended[segment]
        released = await member.release_one(self._positions())
        if released is not None:
            await self._drop(released)
        member.publish()
        self._answering = None

    async def _follow_assignment(self, member: GroupMember) -> None:
        """Read exactly the segments that the group's state assigns to this reader."""
        owned, version = member.owned, member.version
        if version == self._followed:
            return
        for segment in [name for name in (*self._inputs, *self._ended) if name not in owned]:
            await self._drop(segment)
        for segment in owned:
            if segment not in self._inputs and segment not in self._ended:
                self._begin(member.taken(segment))
        self._followed = version

    def _begin(self, taken: Taken) -> None:
        if taken.offset < 0 or taken.offset >= taken.end_offset:
            self._ended[taken.segment] = taken.offset
            return
        self._inputs[taken.segment] = SegmentInput(
            self._context,
            taken.segment,
            taken.offset,
            end_offset=taken.end_offset,
            ahead=self._ahead,
            changed=functools.partial(self._turns.notice, taken.segment),
        )

    async def _note_ends(self) -> None:
        """Keep segments that were read to their end until the next checkpoint, at offset −1 or their end offset."""
        ended = self._turns.look(self._inputs)
        try:
            while ended:
                segment = ended.pop()
                source = self._inputs[segment]
                self._ended[segment] = source.offset if source.offset >= source.end_offset else ENDED_OFFSET
                await self._drop_input(segment)
        finally:
            for segment in ended:  # a call that was cancelled leaves them to the next one
                self._turns.notice(segment)

    async def _drop(self, segment: str) -> None:
        self._ended.pop(segment, None)
        await self._drop_input(segment)

    async def _drop_input(self, segment: str) -> None:
        source = self._inputs.pop(segment, None)
        if source is not None:
            await source.close()

    def _positions(self) -> dict[str, int]:
        return {**{segment: source.offset for segment, source in self._inputs.items()}, **self._ended}

    def _joined(self) -> GroupMember:
        if self._member is None or self._leaving_at is not None:
            raise IllegalStateError(f"reader {self.reader} is not started or is closed")
        return self._member

    # -- position and end ---------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Return the position after all returned events, for `ReaderGroup.reader_offline` if this reader fails."""
        state = self._joined().state
        positions = self._positions()
        return Position(positions, {segment: state.range_of(segment) for segment in positions})

    async def time_window(self, stream: str | StreamName) -> TimeWindow:
        """Return between which times the group's next events of a stream are (docs/client.md#time-windows).

        By the positions that the other readers reported last. Looks for new watermarks every 5 s at most.

        Raises:
            BadRequestError: the group does not read the stream. NoSuchStreamError, UnavailableError.
        """
        name = name_of(stream)
        state = self._joined().state
        if str(name) not in state.config.starting:
            raise BadRequestError(f"reader group {self._scope}/{self._group} does not read stream {name}")
        positions = {**positions_of(state), **self._positions()}
        return await self._windows.window(name, positions, {segment: state.range_of(segment) for segment in positions})

    @property
    def ended_segments(self) -> tuple[str, ...]:
        """Return the segments that were read to their sealed ends; successors are read after the next checkpoint."""
        return tuple(segment for segment, offset in self._ended.items() if offset == ENDED_OFFSET)

    @property
    def unassigned_segments(self) -> int:
        """Return the number of the group's segments that no reader has."""
        return len(self._joined().state.unassigned)

    @property
    def end_of_data(self) -> bool:
        """Return whether the group has read everything up to its end cuts."""
        return self._joined().state.end_of_data

    async def close(self) -> None:
        """Leave the group; other readers continue where this one stopped.

        After a failure or cancellation the reader still belongs to the group: call `close` again.
        """
        member = self._member
        if member is None:
            return
        if self._leaving_at is None:
            self._leaving_at = self._positions()
        for segment in list(self._inputs):
            await self._drop_input(segment)
        self._ended.clear()
        await member.leave(self._leaving_at)
        self._member = None
