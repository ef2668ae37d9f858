"""Serves requests other than appends: each is a task that sends one reply or closes the connection.

See docs/protocol/wire.md#replies.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tailrace.common import limits, names
from tailrace.common.auth import AccessLevel
from tailrace.common.errors import (
    BadRequestError,
    DataError,
    DiskFullError,
    NoSuchSegmentError,
    ProtocolError,
    TailraceError,
)
from tailrace.segmentstore.server import segments
from tailrace.segmentstore.server.answers import HANDLERS, answer, as_owner, container_of
from tailrace.segmentstore.server.calls import Call, Handler
from tailrace.segmentstore.server.replies import Failure, failure_reply
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tailrace.common.auth import Principal
    from tailrace.segmentstore.api import SegmentContainer
    from tailrace.segmentstore.server.appends import AppendProcessor
    from tailrace.segmentstore.server.budgets import ConnectionBudget
    from tailrace.segmentstore.server.context import ServerContext
    from tailrace.segmentstore.server.outbox import Outbox
    from tailrace.segmentstore.server.writers import WriterState
    from tailrace.wire.command import Command


class RequestProcessor:
    """Serves the requests of one connection. `fail` closes it with a reason; ``peer`` is the client's host."""

    def __init__(
        self,
        context: ServerContext,
        principal: Principal,
        peer: str,
        outbox: Outbox,
        budget: ConnectionBudget,
        fail: Callable[..., None],
    ) -> None:
        self._context = context
        self._principal = principal
        self.peer = peer
        self._outbox = outbox
        self._budget = budget
        self._fail = fail
        self._tasks: dict[asyncio.Task[None], bool] = {}
        self._closed = False
        self._large_turn = asyncio.Lock()
        self._large_bytes = 0
        self._large_done = asyncio.Event()
        self._transients: dict[str, SegmentContainer] = {}
        self._had_writer = False
        context.unanswered.join(self)
        context.places.join(self)

    @property
    def count(self) -> int:
        """Number of requests without a reply."""
        return len(self._tasks)

    def give_up(self, reason: str) -> None:
        """Close the connection."""
        self._fail(reason)

    def start(self, command: Command, length_bytes: int) -> None:
        """Serve a request of `length_bytes` on the wire.

        Raises:
            ProtocolError: the command is not a request, or too many requests have no reply.
        """
        handler = HANDLERS.get(type(command))
        if handler is None:
            raise ProtocolError(f"{type(command).__name__} is not a request")
        length_bytes *= handler.copies
        # A read leaves nothing undone when its connection closes.
        is_read = handler.waits or handler.reply_bytes is not None
        if handler.changes or not handler.segment_field:
            self._run(self._answer_to(command, handler), length_bytes, cancel_with_connection=is_read)
            return
        segment: str = getattr(command, handler.segment_field)
        work = self._when_opened(segment, length_bytes, lambda: self._answer_to(command, handler))
        self._run(work, length_bytes, cancel_with_connection=is_read)

    def start_setup(self, command: c.SetupAppend, appends: AppendProcessor, length_bytes: int) -> None:
        """Serve a SetupAppend; as `start`."""
        writer = appends.begin_setup(command)
        work = self._when_opened(command.segment, length_bytes, lambda: self._setup(command, writer, appends))
        self._run(work, length_bytes, cancel_with_connection=True)

    def close(self) -> None:
        """End after the connection closed: cancel reads, complete other requests, delete transient segments.

        Changes that wait for long, such as for a log that does not answer, are cancelled when there are too many.
        """
        unanswered = self._context.unanswered
        unanswered.leave(self)
        self._context.places.leave(self)
        self._closed = True
        changes = [task for task, cancel_with_connection in self._tasks.items() if not cancel_with_connection]
        room = max(0, limits.REQUESTS_ORPHANED_MAX - unanswered.orphans)
        unanswered.orphans += len(changes)
        reads = [task for task, cancel_with_connection in self._tasks.items() if cancel_with_connection]
        for task in (*reads, *changes[room:]):
            task.cancel()
        self._context.background(self._delete_transients(list(self._tasks)))

    def _run(self, work: Coroutine[Any, Any, None], length_bytes: int, *, cancel_with_connection: bool) -> None:
        if len(self._tasks) >= limits.REQUESTS_PER_CONNECTION_MAX:
            work.close()
            raise ProtocolError(f"more than {limits.REQUESTS_PER_CONNECTION_MAX} unanswered requests")
        unanswered = self._context.unanswered
        if not unanswered.begin(self):
            work.close()
            raise ProtocolError(f"all connections together have {unanswered.requests} unanswered requests")
        if not self._tasks:
            self._context.places.works(self)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = cancel_with_connection
        unanswered.orphans += self._closed and not cancel_with_connection

        def done(task: asyncio.Task[None]) -> None:
            unanswered.end(self)
            unanswered.orphans -= self._closed and not self._tasks[task]
            del self._tasks[task]
            self._budget.release(length_bytes)
            if not self._tasks and not self._transients and not self._had_writer:
                self._context.places.rests(self)

        task.add_done_callback(done)
        self._budget.charge(length_bytes)

    def _when_opened(
        self, segment: str, length_bytes: int, begin: Callable[[], Coroutine[Any, Any, None]]
    ) -> Coroutine[Any, Any, None]:
        """Return the work of `begin`, preceded by a wait if the segment's container is about to open here."""
        if length_bytes <= limits.PENDING_CONTAINER_REQUEST_MAX_BYTES and self._context.registry.is_pending(segment):
            return self._after_opening(segment, begin)
        return begin()

    async def _after_opening(self, segment: str, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        unanswered = self._context.unanswered
        if unanswered.pending < limits.PENDING_CONTAINER_REQUESTS_MAX:
            unanswered.pending += 1
            try:
                await self._context.registry.wait_opened(segment)
            finally:
                unanswered.pending -= 1
        await begin()

    def _answer_to(self, command: Command, handler: Handler) -> Coroutine[Any, Any, None]:
        if handler.reply_bytes is None:
            return self._serve(command, handler)
        return self._serve_in_turn(command, handler, handler.reply_bytes(command))

    async def _serve_in_turn(self, command: Any, handler: Handler, reply_bytes: int) -> None:
        """Serve a request with a large reply: a few per connection at a time, in order of receipt."""
        async with self._large_turn:
            while self._large_bytes and self._large_bytes + reply_bytes > limits.LARGE_REPLIES_PER_CONNECTION_MAX_BYTES:
                self._large_done.clear()
                await self._large_done.wait()
            self._large_bytes += reply_bytes
        try:
            await self._serve(command, handler, reply_bytes)
        finally:
            self._large_bytes -= reply_bytes
            self._large_done.set()

    async def _serve(self, command: Any, handler: Handler, reply_bytes: int = 0) -> None:
        segment: str = getattr(command, handler.segment_field) if handler.segment_field else ""
        try:
            async with asyncio.timeout(None if handler.waits else limits.REQUEST_DEADLINE_S):
                if not handler.waits:
                    await self._outbox.room(reply_bytes)
                with self._outbox.reserved(reply_bytes):
                    reply = await answer(self._call(command, segment, handler), command, handler)
            if isinstance(reply, bytes):
                self._outbox.send(reply)
            else:
                self._outbox.reply(reply)
        except TailraceError as error:
            offset = command.offset if isinstance(command, c.ReadSegment) else -1
            self._refuse(Failure(error, command.request_id, segment, type(command).__name__, offset))
        except TimeoutError:
            self._fail(f"{type(command).__name__} of {segment} took longer than {limits.REQUEST_DEADLINE_S:g} s")
        except Exception as error:
            self._fail(f"{type(command).__name__} of {segment} failed: {type(error).__name__}: {error}", error)

    def _call(self, command: Command, segment: str, handler: Handler) -> Call:
        """Authorize and account the request, and find its container. Raises their errors."""
        container = container_of(self._context, self._principal, command, segment, handler)
        return Call(self._context, container, self._outbox, self._transients)

    async def _setup(self, command: c.SetupAppend, writer: WriterState, appends: AppendProcessor) -> None:
        context, segment = self._context, command.segment
        try:
            async with asyncio.timeout(limits.REQUEST_DEADLINE_S):
                names.check_segment_name(segment)
                segments.refuse_core_attribute(command.writer_id)
                context.authorize(self._principal, command.token, segment, AccessLevel.READ_UPDATE)
                context.account(writer.scope, 0, 1)
                container = context.registry.container_for(segment)
                number = await as_owner(container, _writer_state(container, segment, command.writer_id))
            appends.finish_setup(writer, container, number)
            self._had_writer = True
            self._outbox.reply(c.AppendSetup(command.request_id, segment, command.writer_id, number))
        except TailraceError as error:
            appends.abandon_setup(writer)
            self._refuse(Failure(error, command.request_id, segment, "SetupAppend"))
        except TimeoutError:
            self._fail(f"SetupAppend of {segment} took longer than {limits.REQUEST_DEADLINE_S:g} s")
        except Exception as error:
            self._fail(f"SetupAppend of {segment} failed: {type(error).__name__}: {error}", error)

    def _refuse(self, failure: Failure) -> None:
        if isinstance(failure.error, DataError):
            self._context.report_damage(failure.operation, failure.segment, failure.error)
        reply = failure_reply(failure)
        if reply is None:
            error = failure.error
            logged = isinstance(error, DiskFullError)  # the container logs it once for all refused requests
            reason = f"{failure.operation} of {failure.segment} failed: {type(error).__name__}: {error}"
            self._fail(reason, logged=logged)
            return
        try:
            self._outbox.reply(reply)
        except BadRequestError as error:  # the name that it repeats is longer in its encoding
            self._fail(f"{failure.operation} failed, and the reply that says so: {error}")

    async def _delete_transients(self, tasks: list[asyncio.Task[None]]) -> None:
        # Requests in progress may still create or merge such segments: delete only what remains after them.
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=limits.REQUEST_DEADLINE_S)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        for name, container in list(self._transients.items()):
            try:
                async with asyncio.timeout(limits.REQUEST_DEADLINE_S):
                    await container.delete(name)
            except NoSuchSegmentError:
                continue
            except (TailraceError, TimeoutError) as error:
                # The container deletes idle transient segments itself, later (`TransientSweep`).
                self._context.log.warning("transient segment not deleted", segment=name, reason=str(error))


async def _writer_state(container: SegmentContainer, segment: str, writer_id: bytes) -> int:
    await segments.refuse_table(container, segment)
    return await container.writer_state(segment, writer_id)
