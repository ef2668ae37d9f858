"""Serves the requests of a controller that runs in this process, without a connection (ADR 0036).

The handlers are those of connections, and so are the replies: only encoding, decoding and the socket are left out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tailrace.common import limits
from tailrace.common.auth import Principal
from tailrace.common.errors import ConnectionLostError, DataError, DeadlineError, ProtocolError, TailraceError
from tailrace.segmentstore.server.answers import HANDLERS, answer, container_of
from tailrace.segmentstore.server.calls import Call
from tailrace.segmentstore.server.replies import Failure, failure_reply

if TYPE_CHECKING:
    from tailrace.segmentstore.server.calls import Handler
    from tailrace.segmentstore.server.context import ServerContext
    from tailrace.wire.command import Command


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
        self._changes: dict[asyncio.Task[None], asyncio.Future[Command]] = {}
        self._closed = False

    async def request(self, command: Any, deadline_s: float | None = limits.CLIENT_REPLY_DEADLINE_S) -> Command:
        """Serve a request and return its reply of any kind.

        As over a connection, a change that was begun goes on when its caller leaves.

        Raises:
            ConnectionLostError: the server is closing, or it would close the connection: the outcome is unknown.
            DeadlineError: no reply in time. ProtocolError: the command needs a connection.
        """
        handler = HANDLERS.get(type(command))
        if handler is None or handler.waits or handler.segment_field == "parent_segment":
            raise ProtocolError(f"{type(command).__name__} is not served without a connection")
        if self._closed:
            raise ConnectionLostError("the segment store of this process is closed")
        if not handler.changes:
            return await self._read(command, handler, deadline_s)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Command] = loop.create_future()
        change = loop.create_task(self._change(command, handler, reply))
        self._changes[change] = reply
        try:
            async with asyncio.timeout(deadline_s):
                return await reply
        except TimeoutError as error:
            raise _unanswered(deadline_s) from error

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

    async def _change(self, command: Any, handler: Handler, reply: asyncio.Future[Command]) -> None:
        """Serve a change, for a caller that may leave."""
        try:
            found = await self._serve(command, handler)
        except Exception as error:  # any error is the caller's
            _fail(reply, error)
        else:
            if not reply.done():
                reply.set_result(found)
        finally:
            _fail(reply, _closed_before())  # when `close` cancels it
            change = asyncio.current_task()
            assert change is not None
            del self._changes[change]

    async def _read(self, command: Any, handler: Handler, deadline_s: float | None) -> Command:
        """Serve a request that changes nothing; it ends with its caller."""
        try:
            async with asyncio.timeout(deadline_s):
                return await self._serve(command, handler, ends_before=_ends_before(deadline_s))
        except TimeoutError as error:
            raise _unanswered(deadline_s) from error

    async def _serve(self, command: Any, handler: Handler, *, ends_before: bool = False) -> Command:
        """Return the reply, also of a refusal. Raises ConnectionLostError where a connection would be closed.

        With `ends_before` the caller's deadline ends it before the server's would.
        """
        name, segment = type(command).__name__, str(getattr(command, handler.segment_field or "segment", ""))
        room = self._room if handler.reply_bytes is None else self._large_room
        async with room:
            if not handler.changes:  # a change has a task of its own
                # A reply never comes in the caller's own turn: a loop of requests must leave room for others.
                await asyncio.sleep(0)
            try:
                if ends_before:
                    return await self._answer(command, segment, handler)
                async with asyncio.timeout(limits.REQUEST_DEADLINE_S):
                    return await self._answer(command, segment, handler)
            except TailraceError as error:
                return self._refusal(Failure(error, command.request_id, segment, name))
            except TimeoutError:
                reason = f"{name} of {segment} took longer than {limits.REQUEST_DEADLINE_S:g} s"
                raise self._lost(reason) from None
            except Exception as error:
                reason = f"{name} of {segment} failed: {type(error).__name__}: {error}"
                raise self._lost(reason, error) from error

    async def _answer(self, command: Any, segment: str, handler: Handler) -> Command:
        registry = self._context.registry
        if not handler.changes and handler.segment_field and registry.is_pending(segment):
            await registry.wait_opened(segment)
        container = container_of(self._context, self._principal, command, segment, handler)
        reply = await answer(Call(self._context, container, None, {}), command, handler)
        assert not isinstance(reply, bytes), "only replies of reads of events are encoded"
        return reply

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


def _fail(reply: asyncio.Future[Command], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # mark it as retrieved: the caller may leave now


def _closed_before() -> ConnectionLostError:
    return ConnectionLostError("the segment store of this process was closed before the change ended")


def _ends_before(deadline_s: float | None) -> bool:
    """Return whether a caller's deadline ends a read before the server's would."""
    return deadline_s is not None and deadline_s <= limits.REQUEST_DEADLINE_S


def _unanswered(deadline_s: float | None) -> DeadlineError:
    return DeadlineError(f"the segment store of this process did not answer within {deadline_s:g} s")
