"""The append path of a connection: one operation per append block, cumulative acknowledgements.

See docs/protocol/wire.md#appends, docs/design.md#write-path.

The cost is per block: this path neither parses events nor loops over them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import (
    BadAttributeError,
    BadOffsetError,
    DataError,
    DiskFullError,
    OutcomeUnknownError,
    ProtocolError,
    TailraceError,
    UnavailableError,
    WrongHostError,
)
from tailrace.segmentstore.api import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.server.context import scope_of
from tailrace.segmentstore.server.replies import Failure, failure_reply
from tailrace.segmentstore.server.writers import WriterAppend, WriterState
from tailrace.wire import commands as c
from tailrace.wire.codec import encode_data_appended

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tailrace.segmentstore.api import AppendRequest, SegmentContainer
    from tailrace.segmentstore.server.budgets import ConnectionBudget
    from tailrace.segmentstore.server.context import ServerContext
    from tailrace.segmentstore.server.outbox import Outbox
    from tailrace.wire.appends import WireAppend

_REPLACE_IF_EQUALS: Final = AttributeUpdateType.REPLACE_IF_EQUALS
_ACCUMULATE: Final = AttributeUpdateType.ACCUMULATE


class AppendProcessor:
    """Processes the appends of one connection's writers.

    `fail` sends what is queued, then closes the connection with a reason.
    """

    def __init__(
        self, context: ServerContext, outbox: Outbox, budget: ConnectionBudget, fail: Callable[..., None]
    ) -> None:
        self._account = context.account
        self._report_damage = context.report_damage
        self._outbox = outbox
        self._budget = budget
        self._fail = fail
        self._writers: dict[bytes, WriterState] = {}
        self._kept: tuple[WriterAppend, asyncio.Future[None]] | None = None
        self._closed = False
        # Bound once: making a bound method per append would allocate per append.
        self._on_completed: Callable[[AppendRequest], None] = self._completed
        self._on_failed: Callable[[AppendRequest, Exception], None] = self._failed

    def begin_setup(self, command: c.SetupAppend) -> WriterState:
        """Begin a writer's setup: its blocks go to this segment from now on (docs/protocol/wire.md#set-up).

        Its appends are refused until `finish_setup`.
        """
        segment = sys.intern(command.segment)  # writers of one segment, many connections' too, share its name
        writer = WriterState(segment, sys.intern(scope_of(segment)), command.writer_id)
        self._writers.pop(command.writer_id, None)
        if len(self._writers) >= limits.SETUP_APPENDS_PER_CONNECTION_MAX:
            self._forget_oldest()
        self._writers[command.writer_id] = writer
        return writer

    def finish_setup(self, writer: WriterState, container: SegmentContainer, last_event_number: int) -> None:
        """Complete a setup after the container's barrier: all staged operations of the writer are committed."""
        writer.set_up(container, last_event_number)

    def abandon_setup(self, writer: WriterState) -> None:
        """Drop a failed setup: the writer's appends stay refused."""
        if self._writers.get(writer.writer_id) is writer:
            del self._writers[writer.writer_id]

    def check_writer(self, writer_id: bytes) -> None:
        """Raise ProtocolError if the writer was not set up; called before the whole block is received."""
        writer = self._writers.get(writer_id)
        if writer is None or writer.container is None:
            raise ProtocolError(f"append of writer {writer_id.hex()} before its setup")

    def append(self, append: WireAppend) -> asyncio.Future[None] | None:
        """Submit an append to the container.

        Returns a future when the container has no room: wait for it, then call `resubmit`. The data must stay in place.

        Raises:
            ProtocolError: no setup, or the event number is below the last one.
        """
        writer = self._writers.get(append.writer_id)
        if writer is None or writer.container is None:
            raise ProtocolError(f"append of writer {append.writer_id.hex()} before its setup")
        if writer.broken:
            return None
        number = append.last_event_number
        if number <= writer.last_stored:
            self._repeated(writer, append)
            return None
        request = self._request(writer, append)
        writer.outstanding[request.sequence] = request
        writer.last_stored = number
        self._account(writer.scope, append.length, 1)
        self._budget.charge(append.length + limits.APPEND_IN_FLIGHT_BYTES)
        return self._submit(request, writer.container)

    def resubmit(self) -> asyncio.Future[None] | None:
        """Submit the append that found no room again; as `append`."""
        assert self._kept is not None
        request, _ = self._kept
        assert request.writer is not None
        assert request.writer.container is not None
        self._kept = None
        return self._submit(request, request.writer.container)

    def close(self) -> None:
        """End after the connection closed: appends in flight complete without acknowledgement.

        The one that waits for room is given up: nothing of it was accepted.
        """
        self._closed = True
        self._writers.clear()
        if self._kept is not None:
            request, room = self._kept
            self._kept = None
            request.data = ()
            self._budget.release(request.length + limits.APPEND_IN_FLIGHT_BYTES)
            room.cancel()

    def _request(self, writer: WriterState, append: WireAppend) -> WriterAppend:
        writer.sequence += 1
        return WriterAppend(
            writer.segment,
            append.data,
            append.length,
            (
                AttributeUpdate(writer.writer_id, _REPLACE_IF_EQUALS, append.last_event_number, writer.last_stored),
                AttributeUpdate(EVENT_COUNT, _ACCUMULATE, append.num_events),
            ),
            self._on_completed,
            self._on_failed,
            append.expected_offset,
            writer=writer,
            sequence=writer.sequence,
            event_number=append.last_event_number,
            request_id=append.request_id,
        )

    def _submit(self, request: WriterAppend, container: SegmentContainer) -> asyncio.Future[None] | None:
        waiter = container.submit_append(request)
        if waiter is None:
            request.data = ()  # drop the views: the buffer is reused
        else:
            self._kept = request, waiter
        return waiter

    def _repeated(self, writer: WriterState, append: WireAppend) -> None:
        """Handle an event number that was stored before. Do not store it twice; acknowledge it if it is committed."""
        number = append.last_event_number
        if number < writer.last_stored:
            raise ProtocolError(
                f"event number {number} of writer {writer.writer_id.hex()} is below its last one, {writer.last_stored}"
            )
        if number == writer.last_acked:
            length = writer.ack_length
            self._outbox.send(encode_data_appended(writer.writer_id, number, number - 1, append.request_id, length))

    def _forget_oldest(self) -> None:
        for writer_id, writer in self._writers.items():
            if not writer.outstanding:
                del self._writers[writer_id]
                return
        raise ProtocolError(f"more than {limits.SETUP_APPENDS_PER_CONNECTION_MAX} writers on one connection")

    def _completed(self, request: AppendRequest) -> None:
        assert isinstance(request, WriterAppend)
        writer = request.writer
        assert writer is not None
        del writer.outstanding[request.sequence]
        self._budget.release(request.length + limits.APPEND_IN_FLIGHT_BYTES)
        if self._closed:
            return
        if request.event_number > writer.last_acked:
            self._acknowledge(writer, request)
        if writer.failures:
            self._report_failures(writer)

    def _acknowledge(self, writer: WriterState, request: WriterAppend) -> None:
        conditional = request.expected_offset >= 0
        if conditional and writer.ack_waiting:
            self._outbox.settle_acks()
        writer.last_acked = request.event_number
        writer.ack_request_id = request.request_id
        writer.ack_length = request.new_length
        self._outbox.acknowledge(writer)
        if conditional:
            # Clients match the reply of a conditional append by its request id: it is never merged with others.
            self._outbox.settle_acks()

    def _failed(self, request: AppendRequest, error: Exception) -> None:
        assert isinstance(request, WriterAppend)
        writer = request.writer
        assert writer is not None
        del writer.outstanding[request.sequence]
        self._budget.release(request.length + limits.APPEND_IN_FLIGHT_BYTES)
        if not self._closed:
            writer.failed(request, error)
            self._report_failures(writer)

    def _report_failures(self, writer: WriterState) -> None:
        while (failure := writer.next_failure()) is not None:
            request, error = failure
            if not isinstance(error, UnavailableError) and not _may_refuse(writer):
                # Another owner may have another outcome. The writer's next setup waits until ownership is confirmed.
                error = WrongHostError(f"ownership of {writer.segment} cannot be confirmed")
            if isinstance(error, BadOffsetError):
                self._condition_failed(writer, request)
            elif not writer.broken:
                writer.broken = True
                self._report(request, error)

    def _condition_failed(self, writer: WriterState, request: WriterAppend) -> None:
        self._outbox.reply(c.ConditionalCheckFailed(writer.writer_id, request.event_number, request.request_id))
        if not writer.outstanding:
            writer.last_stored = writer.last_acked

    def _report(self, request: WriterAppend, error: Exception) -> None:
        writer = request.writer
        assert writer is not None
        if isinstance(error, BadAttributeError):
            number = request.event_number
            self._outbox.reply(c.InvalidEventNumber(writer.writer_id, request.request_id, "", number))
            self._fail(f"event number {number} does not follow the stored one: {error}")
            return
        if isinstance(error, OutcomeUnknownError):
            # The reply to the writer's next setup carries what was stored.
            error = WrongHostError(str(error))
        reply = None
        if isinstance(error, TailraceError):
            # For a sealed segment the offset carries the failed event number, for others it stays -1
            # (docs/protocol/wire.md#failure-replies).
            offset = request.event_number if error.wire_code == c.SegmentIsSealed.CODE else -1
            if isinstance(error, DataError):
                self._report_damage("append", writer.segment, error)
            reply = failure_reply(Failure(error, request.request_id, writer.segment, "append", offset))
        if reply is None:
            logged = isinstance(error, DiskFullError)  # the container logs it once for all refused appends
            self._fail(f"append to {writer.segment} failed: {type(error).__name__}: {error}", logged=logged)
        else:
            self._outbox.reply(reply)


def _may_refuse(writer: WriterState) -> bool:
    """Return whether the container's state is recent enough for an owner's reply (docs/design.md#ownership)."""
    return writer.container is None or writer.container.may_answer()
