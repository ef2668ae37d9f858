"""Append to one segment exactly once (docs/protocol/wire.md#appends).

Blocks are numbered by the events written so far. After a lost connection the writer requests the segment's last number
(SetupAppend), takes everything up to it as acknowledged and sends the rest again under the same numbers. So no event is
lost or stored twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from tailrace.client.retry import Backoff, as_known
from tailrace.client.writer.append_blocks import Block, Run
from tailrace.client.writer.large_events import append_large_event
from tailrace.common import limits
from tailrace.common.errors import (
    BadEventNumberError,
    ConnectionLostError,
    TailraceError,
    UnavailableError,
    WrongHostError,
)
from tailrace.common.logs import LibraryLog
from tailrace.common.ports import new_uuid
from tailrace.kernel import pack_events
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from tailrace.client.connections.connection import Connection
    from tailrace.client.context import ClientContext
    from tailrace.client.types import Endpoint

_LOG = LibraryLog(__name__)
LANE: Final = "append"
_UNKNOWN_WRITER: Final = -(2**63)


class SegmentWriter:
    """Write to one segment.

    ``gone`` is called as the last callback, when the segment cannot be written to, for example because it is sealed; it
    takes the events back with `take_back` or fails them. If it raises an error, it is called again with that one.
    ``progress`` gets the number of bytes that were acknowledged or failed. ``pack`` encodes the events of a block.
    """

    def __init__(
        self,
        context: ClientContext,
        segment: str,
        identifier: int,
        *,
        gone: Callable[[SegmentWriter, TailraceError], Awaitable[None]],
        progress: Callable[[int], None],
        pack: Callable[[Sequence[bytes]], bytes] = pack_events,
    ) -> None:
        self.segment = segment
        self.identifier = identifier
        self.acknowledged_length = -1
        self._context = context
        self._gone = gone
        self._progress = progress
        self._pack = pack
        self._writer_id = new_uuid(context.entropy).bytes
        self._number = 0
        self._stored_number = _UNKNOWN_WRITER
        self._pending: deque[Block] = deque()
        self._in_flight: deque[Block] = deque()
        self._in_flight_bytes = 0
        self._connection: Connection | None = None
        self._endpoint: Endpoint | None = None
        self._flow = 0
        self._trouble: asyncio.Future[TailraceError] | None = None
        self._task: asyncio.Task[None] | None = None
        self._large: asyncio.Task[None] | None = None
        self._large_failure: TailraceError | None = None
        self._pump_scheduled = False
        self._progressed_here = False
        self._wanted = asyncio.Event()
        self._stuck_since_s = 0.0
        self._noticed = False

    # -- buffered events ------------------------------------------------------------------------------------------

    def add(self, run: Run, events: Sequence[bytes]) -> None:
        """Buffer events and send them in the next iteration of the event loop, or when there is room."""
        if not self._pending and not self._in_flight:
            self._stuck_since_s = asyncio.get_running_loop().time()
        if (
            not self._pending
            or not self._pending[-1].has_room_for(run.count, run.size)
            or self._pending[-1].last_number
        ):
            self._pending.append(Block())
        self._pending[-1].add(run, events)
        self._wanted.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"write {self.segment}")
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def runs(self) -> list[Run]:
        """Return everything that is not acknowledged, in order."""
        return [run for queue in (self._in_flight, self._pending) for block in queue for run in block.runs]

    def take_back(self) -> list[tuple[Run, list[bytes]]]:
        """Remove and return everything that is not acknowledged, in order, to write it to another segment."""
        blocks = [*self._in_flight, *self._pending]
        self._in_flight.clear()
        self._pending.clear()
        self._in_flight_bytes = 0
        return [item for block in blocks for item in block.split()]

    def fail(self, error: TailraceError) -> None:
        """Fail everything that is not acknowledged."""
        for run, _ in self.take_back():
            run.fail(error)
            self._progress(run.size)

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop, and fail what is not acknowledged. Return the tasks that are ending."""
        tasks = [task for task in (self._task, self._large) if task is not None]
        self._task = self._large = None
        for task in tasks:
            task.cancel()
        self._leave()
        self.fail(ConnectionLostError(f"the writer of {self.segment} was closed"))
        return tasks

    async def close(self) -> None:
        """Stop, and wait until the tasks have ended."""
        if tasks := self.stop():
            await asyncio.wait(tasks)

    # -- sending ------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send the blocks that are due.

        While blocks are in flight, a block that is not full waits for more events. So appends grow under load, and an
        idle writer sends each event at once.
        """
        self._pump_scheduled = False
        while self._pending and self._connection is not None and self._large is None:
            block = self._pending[0]
            if self._in_flight_bytes >= limits.WRITER_IN_FLIGHT_MAX_BYTES:
                return
            if block.is_large:
                if not self._in_flight:
                    self._large = asyncio.create_task(self._send_large(block), name=f"large event to {self.segment}")
                return
            waits = len(self._pending) == 1 and not block.is_full and not block.last_number
            if waits and len(self._in_flight) >= limits.WRITER_EAGER_BLOCKS:
                return
            if not self._connection.writable:
                self._wait_for_room(self._connection)
                return
            self._pending.popleft()
            self._send(self._connection, block)

    def _send(self, connection: Connection, block: Block) -> None:
        data = self._pack(block.events)
        if not block.last_number:
            self._number += len(block.events)
            block.last_number = self._number
        self._in_flight.append(block)
        self._in_flight_bytes += block.size
        try:
            connection.send_append(self._flow, self._writer_id, data, len(block.events), block.last_number)
        except ConnectionLostError as error:
            self.disconnected(error)

    def _wait_for_room(self, connection: Connection) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            connection.call_when_writable(self._pump)

    async def _send_large(self, block: Block) -> None:
        assert self._connection is not None
        try:
            length = await append_large_event(self._context, self._connection, self.segment, self._pack(block.events))
        except Exception as error:
            self._large = None
            known = as_known(error, f"the writing of a large event to {self.segment}")
            if not isinstance(known, UnavailableError | BadEventNumberError):
                self._large_failure = known  # it ends the writer, also when no session is there to report it to
            self._report(known)
            return
        self._large = None
        self.acknowledged_length = max(self.acknowledged_length, length)
        if self._pending and self._pending[0] is block:
            self._pending.popleft()
            self._progressed_here = True
            self._complete(block)
        self._pump()

    # -- replies ------------------------------------------------------------------------------------------------

    def appended(self, event_number: int, segment_length: int) -> None:
        """Complete the events up to `event_number`: they are durable."""
        self.acknowledged_length = max(self.acknowledged_length, segment_length)
        self._progressed_here = True
        self._acknowledge(event_number)
        self._pump()

    def _acknowledge(self, event_number: int) -> None:
        while self._in_flight and self._in_flight[0].last_number <= event_number:
            block = self._in_flight.popleft()
            self._in_flight_bytes -= block.size
            self._complete(block)

    def _complete(self, block: Block) -> None:
        self._stuck_since_s = asyncio.get_running_loop().time()
        for run in block.runs:
            run.succeed()
        self._progress(block.size)

    def append_failed(self, reply: c.Command) -> None:
        """End the connection's session: an append was refused."""
        self._report(self._context.segments.refusal(self.segment, reply))

    def disconnected(self, error: ConnectionLostError) -> None:
        """End the connection's session: the connection is lost."""
        self._report(error)

    def _report(self, error: TailraceError) -> None:
        self._leave()
        if self._trouble is not None and not self._trouble.done():
            self._trouble.set_result(error)

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close_flow(self._flow)
        self._connection = None

    # -- connecting ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Write until the segment is gone or the writer is closed."""
        try:
            await self._end(await self._write())
        except Exception as error:
            self._leave()
            await self._end(as_known(error, f"the writer of {self.segment}"))

    async def _end(self, reason: TailraceError) -> None:
        """Hand over what is not stored.

        The last set-up may have reported more as stored than is acknowledged: what came after its reply failed. Such
        events would be stored twice, or be reported as failed.
        """
        self._acknowledge(self._stored_number)
        self._progressed_here = False  # from now on nothing progresses: the wait for a successor is noted once
        await self._gone(self, reason)

    async def _write(self) -> TailraceError:
        """Keep the writer connected while it has events; return why the segment cannot be written to any more."""
        backoff = Backoff(self._context.entropy)
        while True:
            await self._wanted.wait()
            error = self._large_failure or await self._connect_and_serve()
            if self._progressed_here:
                backoff.reset()
            if self._has_given_up() or not isinstance(error, UnavailableError | BadEventNumberError):
                if self._large is not None:
                    await asyncio.wait(
                        [self._large]
                    )  # else its event could be stored here and be written to another segment too
                return self._large_failure or error
            if isinstance(error, WrongHostError | ConnectionLostError):
                self._context.segments.forget(self.segment)
            self.notice(error)
            if not self._in_flight and not self._pending:
                self._wanted.clear()
            await asyncio.sleep(backoff.next_delay_s())

    def _has_given_up(self) -> bool:
        """Return whether events have waited too long without progress. Idle time does not count."""
        if not self._in_flight and not self._pending:
            return False
        return asyncio.get_running_loop().time() - self._stuck_since_s > limits.WRITER_GIVE_UP_S

    def notice(self, error: TailraceError) -> None:
        """Log once why events have waited for long; again after progress."""
        if self._progressed_here:
            self._noticed = False
        waited_s = asyncio.get_running_loop().time() - self._stuck_since_s
        if (self._in_flight or self._pending) and not self._noticed and waited_s >= limits.CLIENT_WAIT_NOTICE_S:
            self._noticed = True
            reason = f"{type(error).__name__}: {error}"
            _LOG.warning("write_waits", segment=self.segment, gives_up_after_s=limits.WRITER_GIVE_UP_S, reason=reason)

    async def _connect_and_serve(self) -> TailraceError:
        """Connect, send, and return the error that ended the connection."""
        self._progressed_here = False
        self._trouble = asyncio.get_running_loop().create_future()
        try:
            await self._set_up()
        except TailraceError as error:
            return self._large_failure or error
        if self._large_failure is not None:
            return self._large_failure
        self._pump()
        while not self._trouble.done():
            await asyncio.wait([self._trouble], timeout=limits.WRITER_ASK_AGAIN_S)
            if not self._trouble.done() and await self._is_served_elsewhere():
                self._report(ConnectionLostError(f"segment {self.segment} is served elsewhere by now"))
        return self._trouble.result()

    async def _is_served_elsewhere(self) -> bool:
        """Ask the controller whether the segment has moved, when appends have waited for an acknowledgement.

        A frozen worker keeps its connections; without this question its writers would wait for their silence limit.
        """
        waited_s = asyncio.get_running_loop().time() - self._stuck_since_s
        waits = self._in_flight or self._pending  # a connection that others have filled takes nothing more
        if not waits or self._large is not None or waited_s < limits.WRITER_ASK_AGAIN_S:
            return False
        self._context.segments.forget(self.segment)
        try:
            async with asyncio.timeout(limits.WRITER_ASK_AGAIN_S):
                return await self._context.segments.locate(self.segment) != self._endpoint
        except (TailraceError, TimeoutError):
            return False  # no controller answers: the connection is all there is

    async def _set_up(self) -> None:
        pool = self._context.pool
        endpoint = await self._context.segments.locate(self.segment)
        connection = await pool.get(endpoint, LANE)
        if not connection.may_set_up:
            pool.retire(endpoint, LANE, connection)
            connection = await pool.get(endpoint, LANE)
        setup = c.SetupAppend(0, self._writer_id, self.segment, await self._context.segments.token(self.segment))
        reply = await connection.request(setup)
        if not isinstance(reply, c.AppendSetup):
            raise self._context.segments.refusal(self.segment, reply)
        self._stored_number = reply.last_event_number
        await self._note_length(reply.last_event_number)
        if not connection.is_open:
            raise ConnectionLostError(f"connection to {endpoint} ended")
        self._endpoint = endpoint
        self._flow = connection.open_flow(self)
        self._connection = connection
        if reply.last_event_number != _UNKNOWN_WRITER:
            self._acknowledge(reply.last_event_number)
        self._pending.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        self._in_flight_bytes = 0

    async def _note_length(self, last_event_number: int) -> None:
        """Learn the segment's length when the set-up acknowledges events: its reply does not carry it.

        A time that is noted for these events needs a position behind them. No later event of this writer is stored yet.
        """
        if self._in_flight and self._in_flight[0].last_number <= last_event_number:
            info = await self._context.segments.segment_info(self.segment)
            self.acknowledged_length = max(self.acknowledged_length, info.length)
