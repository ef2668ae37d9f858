"""Exactly-once appends to one segment (wire §5).

Blocks are numbered by the events written so far. After a lost connection the writer asks the segment for its last
number (SetupAppend), counts everything up to it as acknowledged and sends the rest again under the same numbers, so
nothing is lost and nothing is stored twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from tailrace.client.retry import Backoff
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
from tailrace.common.ports import new_uuid
from tailrace.kernel import pack_events
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from tailrace.client.connections.connection import Connection
    from tailrace.client.context import ClientContext

LANE: Final = "append"
_UNKNOWN_WRITER: Final = -(2**63)


class SegmentWriter:
    """Writes to one segment.

    ``gone`` is called, once and last, when the segment is sealed or missing or cannot be written to for another
    reason; it takes the events back with `take_back` or fails them. ``progress`` is told how many bytes left the
    writer, acknowledged or failed. ``pack`` makes a block's bytes of its events.
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
        self._pending: deque[Block] = deque()
        self._in_flight: deque[Block] = deque()
        self._in_flight_bytes = 0
        self._connection: Connection | None = None
        self._flow = 0
        self._trouble: asyncio.Future[TailraceError] | None = None
        self._task: asyncio.Task[None] | None = None
        self._large: asyncio.Task[None] | None = None
        self._pump_scheduled = False
        self._progressed_here = False
        self._wanted = asyncio.Event()
        self._stuck_since_s = 0.0

    # -- taking events ------------------------------------------------------------------------------------------

    def add(self, run: Run, events: Sequence[bytes]) -> None:
        """Take events; they are sent on the next turn of the loop or when there is room."""
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
        """Everything that is not acknowledged, in order."""
        return [run for queue in (self._in_flight, self._pending) for block in queue for run in block.runs]

    def take_back(self) -> list[tuple[Run, list[bytes]]]:
        """Remove everything that is not acknowledged, in order, to be written elsewhere."""
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
        """Stop; what is not acknowledged fails. Returns the tasks that are ending, to be waited for."""
        tasks = [task for task in (self._task, self._large) if task is not None]
        self._task = self._large = None
        for task in tasks:
            task.cancel()
        self._leave()
        self.fail(ConnectionLostError(f"the writer of {self.segment} was closed"))
        return tasks

    async def close(self) -> None:
        """`stop`, and wait until it has."""
        if tasks := self.stop():
            await asyncio.wait(tasks)

    # -- sending ------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what may be sent now.

        While blocks are in flight, a block that is not full waits for more events: under load appends grow, when idle
        each is sent at once.
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
            await append_large_event(self._context, self._connection, self.segment, self._pack(block.events))
        except TailraceError as error:
            self._large = None
            self._report(error)
            return
        self._large = None
        if self._pending and self._pending[0] is block:
            self._pending.popleft()
            self._progressed_here = True
            self._complete(block)
        self._pump()

    # -- answers ------------------------------------------------------------------------------------------------

    def appended(self, event_number: int, segment_length: int) -> None:
        """Everything up to `event_number` is durable."""
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
        """An append was refused."""
        self._report(self._context.segments.refusal(self.segment, reply))

    def disconnected(self, error: ConnectionLostError) -> None:
        """The connection is gone."""
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
        """Keep the writer connected while there is something to write, until its segment is gone or it is closed."""
        backoff = Backoff(self._context.entropy)
        while True:
            await self._wanted.wait()
            error = await self._connect_and_serve()
            if self._progressed_here:
                backoff.reset()
            if self._has_given_up() or not isinstance(error, UnavailableError | BadEventNumberError):
                if self._large is not None:
                    await asyncio.wait([self._large])  # else its event would be stored there and written on elsewhere
                await self._gone(self, error)
                return
            if isinstance(error, WrongHostError | ConnectionLostError):
                self._context.segments.forget(self.segment)
            if not self._in_flight and not self._pending:
                self._wanted.clear()
            await asyncio.sleep(backoff.next_delay_s())

    def _has_given_up(self) -> bool:
        """Whether something has waited for too long without progress; a time in which nothing waits does not count."""
        if not self._in_flight and not self._pending:
            return False
        return asyncio.get_running_loop().time() - self._stuck_since_s > limits.WRITER_GIVE_UP_S

    async def _connect_and_serve(self) -> TailraceError:
        """Connect, send, and return what ended it."""
        self._progressed_here = False
        self._trouble = asyncio.get_running_loop().create_future()
        try:
            await self._set_up()
        except TailraceError as error:
            return error
        self._pump()
        return await self._trouble

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
        if not connection.is_open:
            raise ConnectionLostError(f"connection to {endpoint} ended")
        self._flow = connection.open_flow(self)
        self._connection = connection
        if reply.last_event_number != _UNKNOWN_WRITER:
            self._acknowledge(reply.last_event_number)
        self._pending.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        self._in_flight_bytes = 0
