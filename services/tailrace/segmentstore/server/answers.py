"""Answer requests other than appends, however they arrived (docs/protocol/wire.md#replies)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.common import names
from tailrace.common.errors import OutcomeUnknownError, TailraceError
from tailrace.segmentstore.server import segments, tables
from tailrace.segmentstore.server.calls import confirmed
from tailrace.segmentstore.server.context import scope_of
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tailrace.common.auth import Principal
    from tailrace.segmentstore.api import SegmentContainer
    from tailrace.segmentstore.server.calls import Begun, Call, Handler, Reply
    from tailrace.segmentstore.server.context import ServerContext
    from tailrace.wire.command import Command

_T = TypeVar("_T")

HANDLERS: Final[dict[type[Command], Handler]] = {**segments.HANDLERS, **tables.HANDLERS}


def container_of(
    context: ServerContext, principal: Principal, command: Any, segment: str, handler: Handler
) -> SegmentContainer:
    """Authorize and account a request, and return its container. Raises their errors."""
    if handler.segment_field:
        names.check_segment_name(segment)
        context.authorize(principal, command.token, segment, handler.level)
        context.account(scope_of(segment), 0, 1)
        return context.registry.container_for(segment)
    context.authorize(principal, command.token, names.INTERNAL_SCOPE, handler.level)
    context.account(names.INTERNAL_SCOPE, 0, 1)
    return context.registry.container_by_id(command.container_id)


async def answer(call: Call, command: Any, handler: Handler) -> Reply:
    """Return the handler's reply, once ownership is confirmed: a stale owner must not reply.

    See docs/design.md#stale-owners.
    """
    if (handler.waits or handler.reply_bytes is not None) and not call.container.may_answer():
        await call.container.wait_owner()  # before the reply takes memory
    if not handler.changes:
        return await as_owner(call.container, handler.function(call, command))
    try:
        reply = await handler.function(call, command)
    except OutcomeUnknownError:
        raise
    except TailraceError:
        await confirmed(call.container)
        raise
    if isinstance(reply, c.SegmentAttributeUpdated) and not reply.success:
        await confirmed(call.container)
    return reply  # the log acknowledged a change, which confirms ownership; without one, the handler asked for it


async def begin(call: Call, command: Any, handler: Handler) -> Begun:
    """Stage a change of a handler that can. Raises as `answer`; an error of what was staged is of unknown outcome."""
    assert handler.begin is not None, f"{type(command).__name__} cannot be staged alone"
    try:
        return await handler.begin(call, command)
    except OutcomeUnknownError:
        raise
    except TailraceError:
        await confirmed(call.container)
        raise


async def as_owner(container: SegmentContainer, work: Awaitable[_T]) -> _T:
    """Return or raise the outcome of `work`, once the container has confirmed its ownership."""
    try:
        outcome = await work
    except TailraceError:
        await confirmed(container)
        raise
    await confirmed(container)
    return outcome
