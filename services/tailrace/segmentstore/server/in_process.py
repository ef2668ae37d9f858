"""Serves the requests of a controller that runs in this process, without a connection (ADR 0036).

The handlers are those of connections, and so are the replies: only encoding, decoding and the socket are left out.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.common import limits
from tailrace.common.auth import Principal
from tailrace.common.errors import ConnectionLostError, DataError, DeadlineError, ProtocolError, TailraceError
from tailrace.segmentstore.server.answers import HANDLERS, answer, begin, container_of
from tailrace.segmentstore.server.calls import Begun, Call
from tailrace.segmentstore.server.replies import Failure, failure_reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from tailrace.segmentstore.server.calls import Handler
    from tailrace.segmentstore.server.context import ServerContext
    from tailrace.wire.command import Command

R = TypeVar("R")


class InProcessRequests:
    """Takes the place of a client's connection for requests that have one reply and wait for nothing.

    At most ``limits.REQUESTS_PER_CONNECTION_MAX`` requests are served at a time, and of those with large replies
    ``limits.IN_PROCESS_LARGE_REPLIES_MAX``; others wait.
    """

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._principal = Principal("this process")
        self._room = asyncio.Semaphore(limits.REQUESTS_PER_CONNECTION_MAX)
        self._large_room = asyncio.Semaphore(limits.IN_PROCESS_LARGE_REPLIES_MAX)
        self._changes: dict[asyncio.Task[None], asyncio.Future[Any]] = {}
        self._closed = False

    async def request(self, command: Any, deadline_s: float | None = limits.CLIENT_REPLY_DEADLINE_S) -> Command:
        """Serve a request and return its reply of any kind.

        As over a connection, a change that was begun goes on when its caller leaves.

        Raises:
            ConnectionLostError: the server is closing, or it would close the connection: the outcome is unknown.
            DeadlineError: no reply in time. ProtocolError: the command needs a connection.
        """
        handler = self._handler_of(command)
        if not handler.changes:
            return await self._read(self._serve(command, handler, ends_before=_ends_before(deadline_s)), deadline_s)
        return await self._change(self._serve(command, handler), deadline_s)

    async def request_all(
        self, commands: Sequence[Any], deadline_s: float | None = limits.CLIENT_REPLY_DEADLINE_S
    ) -> list[Command | ConnectionLostError]:
        """Serve requests of one kind together and return their replies, or the error of those without one.

        Changes are staged one after the other and become durable together. Raises as `request`.
        """
        handler = self._handler_of(commands[0])
        if not handler.changes:
            return await self._read(self._serve_all(commands, handler), deadline_s)
        if handler.begin is None:
            raise ProtocolError(f"several {type(commands[0]).__name__} are not served together")
        return await self._change(self._begin_all(commands, handler), deadline_s)

    def _handler_of(self, command: Any) -> Handler:
        handler = HANDLERS.get(type(command))
        if handler is None or handler.waits or handler.segment_field == "parent_segment":
            raise ProtocolError(f"{type(command).__name__} is not served without a connection")
        if self._closed:
            raise ConnectionLostError("the segment store of this process is closed")
        return handler

    async def close(self) -> None:
        """Serve no more requests, and wait for a while for the changes that were begun, as the server does."""
        self._closed = True
        if self._changes:
            await asyncio.wait(self._changes, timeout=limits.CLOSE_FLUSH_DEADLINE_S)
        if left := dict(self._changes):
            for change in left:
                change.cancel()
            await asyncio.wait(left)
        for reply in left.values():
            _fail(reply, _closed_before())

    async def _change(self, work: Coroutine[Any, Any, R], deadline_s: float | None) -> R:
        """Do work that changes something; it goes on when its caller leaves."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        change = loop.create_task(self._run_change(work, result))
        self._changes[change] = result
        try:
            async with asyncio.timeout(deadline_s):
                return await result
        except TimeoutError as error:
            raise _unanswered(deadline_s) from error

    async def _run_change(self, work: Coroutine[Any, Any, R], result: asyncio.Future[R]) -> None:
        try:
            found = await work
        except Exception as error:  # any error is the caller's
            _fail(result, error)
        else:
            if not result.done():
                result.set_result(found)
        finally:
            if not result.done():  # when `close` cancels it
                _fail(result, _closed_before())
            change = asyncio.current_task()
            assert change is not None
            del self._changes[change]

    async def _read(self, work: Coroutine[Any, Any, R], deadline_s: float | None) -> R:
        """Do work that changes nothing; it ends with its caller."""
        try:
            async with asyncio.timeout(deadline_s):
                return await work
        except TimeoutError as error:
            raise _unanswered(deadline_s) from error

    async def _serve(self, command: Any, handler: Handler, *, ends_before: bool = False) -> Command:
        """Return the reply, also of a refusal. Raises ConnectionLostError where a connection would be closed.

        With `ends_before` the caller's deadline ends it before the server's would.
        """
        async with self._room_of(handler):
            if not handler.changes:  # a change has a task of its own
                # A reply never comes in the caller's own turn: a loop of requests must leave room for others.
                await asyncio.sleep(0)
            try:
                if ends_before:
                    return await self._answer(command, handler)
                async with asyncio.timeout(limits.REQUEST_DEADLINE_S):
                    return await self._answer(command, handler)
            except Exception as error:
                return self._reply_to(error, command, handler)

    async def _serve_all(self, commands: Sequence[Any], handler: Handler) -> list[Command | ConnectionLostError]:
        """Serve requests that change nothing, one after the other."""
        replies: list[Command | ConnectionLostError] = []
        async with self._room_of(handler), self._bounded(commands[0]):
            for number, command in enumerate(commands):
                if number % limits.IN_PROCESS_REQUESTS_PER_TURN == 0:
                    await asyncio.sleep(0)
                try:
                    replies.append(await self._answer(command, handler))
                except Exception as error:
                    replies.append(self._outcome_of(error, command, handler))
        return replies

    async def _begin_all(self, commands: Sequence[Any], handler: Handler) -> list[Command | ConnectionLostError]:
        """Stage changes one after the other, then wait until each is durable."""
        begun: list[Begun | Command | ConnectionLostError] = []
        async with self._room_of(handler), self._bounded(commands[0]):
            for number, command in enumerate(commands, 1):
                if number % limits.IN_PROCESS_REQUESTS_PER_TURN == 0:
                    await asyncio.sleep(0)
                try:
                    begun.append(await begin(self._call(command, handler), command, handler))
                except Exception as error:
                    begun.append(self._outcome_of(error, command, handler))
            replies: list[Command | ConnectionLostError] = []
            for item, command in zip(begun, commands, strict=True):
                try:
                    if isinstance(item, Begun):
                        await item.durable
                    replies.append(item.reply if isinstance(item, Begun) else item)
                except Exception as error:
                    replies.append(self._outcome_of(error, command, handler))
        return replies

    @asynccontextmanager
    async def _bounded(self, command: Any) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(limits.REQUEST_DEADLINE_S):
                yield
        except TimeoutError:
            name = type(command).__name__
            raise self._lost(f"several {name} took longer than {limits.REQUEST_DEADLINE_S:g} s") from None

    async def _answer(self, command: Any, handler: Handler) -> Command:
        registry = self._context.registry
        if not handler.changes and handler.segment_field:
            segment = _segment_of(command, handler)
            if registry.is_pending(segment):
                await registry.wait_opened(segment)
        reply = await answer(self._call(command, handler), command, handler)
        assert not isinstance(reply, bytes), "only replies of reads of events are encoded"
        return reply

    def _call(self, command: Any, handler: Handler) -> Call:
        """Authorize and account the request, and find its container. Raises their errors."""
        segment = _segment_of(command, handler)
        return Call(self._context, container_of(self._context, self._principal, command, segment, handler), None, {})

    def _room_of(self, handler: Handler) -> asyncio.Semaphore:
        return self._room if handler.reply_bytes is None else self._large_room

    def _reply_to(self, error: Exception, command: Any, handler: Handler) -> Command:
        """Return the reply that carries an error. Raises ConnectionLostError where a connection would be closed."""
        name, segment = type(command).__name__, _segment_of(command, handler)
        if isinstance(error, TailraceError):
            return self._refusal(Failure(error, command.request_id, segment, name))
        if isinstance(error, TimeoutError):
            raise self._lost(f"{name} of {segment} took longer than {limits.REQUEST_DEADLINE_S:g} s") from None
        reason = f"{name} of {segment} failed: {type(error).__name__}: {error}"
        raise self._lost(reason, error) from error

    def _outcome_of(self, error: Exception, command: Any, handler: Handler) -> Command | ConnectionLostError:
        try:
            return self._reply_to(error, command, handler)
        except ConnectionLostError as lost:
            return lost

    def _refusal(self, failure: Failure) -> Command:
        error = failure.error
        if isinstance(error, DataError):
            self._context.report_damage(failure.operation, failure.segment, error)
        reply = failure_reply(failure)
        if reply is None:
            reason = f"{failure.operation} of {failure.segment} failed: {type(error).__name__}: {error}"
            raise ConnectionLostError(reason) from error
        return reply

    def _lost(self, reason: str, error: Exception | None = None) -> ConnectionLostError:
        self._context.log.warning("request failed", reason=reason, exc_info=error)
        return ConnectionLostError(reason)


def _segment_of(command: Any, handler: Handler) -> str:
    return str(getattr(command, handler.segment_field)) if handler.segment_field else ""


def _fail(result: asyncio.Future[Any], error: Exception) -> None:
    if not result.done():
        result.set_exception(error)
        result.exception()  # mark it as retrieved: the caller may leave now


def _closed_before() -> ConnectionLostError:
    return ConnectionLostError("the segment store of this process was closed before the change ended")


def _ends_before(deadline_s: float | None) -> bool:
    """Return whether a caller's deadline ends a read before the server's would."""
    return deadline_s is not None and deadline_s <= limits.REQUEST_DEADLINE_S


def _unanswered(deadline_s: float | None) -> DeadlineError:
    return DeadlineError(f"the segment store of this process did not answer within {deadline_s:g} s")
