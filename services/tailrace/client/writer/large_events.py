"""Write events that do not fit into one append: merge a transient segment (docs/protocol/wire.md#large-events)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tailrace.client.connections.replies import error_of
from tailrace.common import limits
from tailrace.common.errors import ConnectionLostError, IllegalStateError, NoSuchSegmentError, UnavailableError
from tailrace.common.ports import new_uuid
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from tailrace.client.connections.connection import Connection
    from tailrace.client.context import ClientContext

_UNKNOWN_WRITER: Final = -(2**63)


async def append_large_event(context: ClientContext, connection: Connection, segment: str, data: bytes) -> int:
    """Append `data` (an event with its header) atomically to `segment`; return the length of `segment` after it.

    When the merge's reply is lost, the merge is repeated: servers remember merged sources, and a transient segment that
    is missing was not merged. The repetition lasts until the outcome is known, because an event that may be stored must
    not be written again.

    Raises:
        SegmentSealedError, NoSuchSegmentError: of `segment`. UnavailableError: nothing was appended; retry.
        IllegalStateError: after LARGE_EVENT_DOUBT_S it is unknown whether the event was appended.
    """
    token = await context.segments.token(segment)
    writer_id = new_uuid(context.entropy).bytes
    created = await connection.request(c.CreateTransientSegment(0, writer_id, segment, token))
    if not isinstance(created, c.SegmentCreated):
        raise context.segments.refusal(segment, created)
    transient = created.segment
    try:
        await _fill(connection, transient, writer_id, data, token)
    except NoSuchSegmentError as error:
        raise ConnectionLostError(f"transient segment {transient} was deleted before it was merged") from error
    try:
        merged = await connection.request(c.MergeSegments(0, segment, transient, token))
    except UnavailableError as error:
        return await _settle(context, segment, transient, error)
    if not isinstance(merged, c.SegmentsMerged):
        raise context.segments.refusal(segment, merged)
    return merged.new_target_write_offset


async def _fill(connection: Connection, transient: str, writer_id: bytes, data: bytes, token: str) -> None:
    setup = await connection.request(c.SetupAppend(0, writer_id, transient, token))
    if not isinstance(setup, c.AppendSetup):
        raise error_of(setup)
    if setup.last_event_number != _UNKNOWN_WRITER:
        raise IllegalStateError(f"new transient segment {transient} has appends of this writer already")
    with memoryview(data) as view:
        for number, offset in enumerate(range(0, len(data), limits.EVENT_MAX_BYTES)):
            chunk = view[offset : offset + limits.EVENT_MAX_BYTES]
            reply = await connection.request(c.ConditionalBlockEnd(writer_id, number, offset, chunk, 0))
            if isinstance(reply, c.ConditionalCheckFailed):
                raise IllegalStateError(f"transient segment {transient} was written to by another client")
            if not isinstance(reply, c.DataAppended):
                raise error_of(reply)


async def _settle(context: ClientContext, segment: str, transient: str, error: UnavailableError) -> int:
    """Repeat the merge until its outcome is known; return as `append_large_event`, and raise its errors."""
    loop = asyncio.get_running_loop()
    ends_at_s = loop.time() + limits.LARGE_EVENT_DOUBT_S
    while True:
        try:
            return await context.segments.merge_segments(segment, transient)
        except NoSuchSegmentError as missing:
            if missing.segment == transient:
                raise ConnectionLostError(f"large event to {segment} was not appended: {error}") from error
            raise
        except UnavailableError as again:  # retried for CLIENT_REQUEST_DEADLINE_S, with pauses
            if loop.time() >= ends_at_s:
                raise IllegalStateError(
                    f"it is unknown whether a large event was appended to {segment}: {again}"
                ) from again
