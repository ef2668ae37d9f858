"""The append path of a connection: one operation per append block, cumulative acknowledgements (wire §5, design §3).

Nothing here looks into events, and nothing is done once per event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import (
    BadAttributeError,
    BadOffsetError,
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
    """Writers of one connection.

    `fail` closes the connection for a reason, after what was queued has been sent.
    """

    def __init__(
        self, context: ServerContext, outbox: Outbox, budget: ConnectionBudget, fail: Callable[..., None]
    ) -> None:
        self._account = context.account
        self._outbox = outbox
        self._budget = budget
        self._fail = fail
        self._writers: dict[bytes, WriterState] = {}
        self._kept: WriterAppend | None = None
        self._closed = False
        # Bound once: a bound method made per append is garbage per append.
        self._on_completed: Callable[[AppendRequest], None] = self._completed
        self._on_failed: Callable[[AppendRequest, Exception], None] = self._failed

    def begin_setup(self, command: c.SetupAppend) -> WriterState:
        """A writer announces itself: from now on its blocks go to this segment (wire §5, "State per ...").

        Its appends are refused until `finish_setup`.
        """
        writer = WriterState(command.segment, scope_of(command.segment), command.writer_id)
        self._writers.pop(command.writer_id, None)
        if len(self._writers) >= limits.SETUP_APPENDS_PER_CONNECTION_MAX:
            self._forget_oldest()
        self._writers[command.writer_id] = writer
        return writer

    def finish_setup(self, writer: WriterState, container: SegmentContainer, last_event_number: int) -> None:
        """The container answered the barrier: everything of the writer that was staged is committed."""
        writer.set_up(container, last_event_number)

    def abandon_setup(self, writer: WriterState) -> None:
        """The setup failed: the writer's appends stay refused."""
        if self._writers.get(writer.writer_id) is writer:
            del self._writers[writer.writer_id]

    def check_writer(self, writer_id: bytes) -> None:
        """Raise ProtocolError if the writer was not set up: a block is refused before all of it has arrived."""
        writer = self._writers.get(writer_id)
        if writer is None or writer.container is None:
            raise ProtocolError(f"append of writer {writer_id.hex()} before its setup")

    def append(self, append: WireAppend) -> asyncio.Future[None] | None:
        """Hand an append to the container.

        Returns a future when the container has no room: wait for it, then call `resubmit`; the data must stay in place.

        Raises:
            ProtocolError: no setup, or the event number goes back.
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
        self._budget.charge(append.length)
        return self._submit(request, writer.container)

    def resubmit(self) -> asyncio.Future[None] | None:
        """Hand the append that found no room to the container again; as `append`."""
        request = self._kept
        assert request is not None
        assert request.writer is not None
        assert request.writer.container is not None
        self._kept = None
        return self._submit(request, request.writer.container)

    def close(self) -> None:
        """The connection is gone: what is in flight completes without acknowledgement."""
        self._closed = True
        self._writers.clear()
        if self._kept is not None:
            self._budget.release(self._kept.length)
            self._kept = None

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
            request.data = ()  # the views end here: the buffer is about to be reused
        else:
            self._kept = request
        return waiter

    def _repeated(self, writer: WriterState, append: WireAppend) -> None:
        """The number of the last append again, which must not be stored twice; only committed state is acknowledged."""
        number = append.last_event_number
        if number < writer.last_stored:
            raise ProtocolError(
                f"event number {number} of writer {writer.writer_id.hex()} goes back behind {writer.last_stored}"
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
        self._budget.release(request.length)
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
        self._budget.release(request.length)
        if not self._closed:
            writer.failed(request, error)
            self._report_failures(writer)

    def _report_failures(self, writer: WriterState) -> None:
        while (failure := writer.next_failure()) is not None:
            request, error = failure
            if not isinstance(error, UnavailableError) and not _may_refuse(writer):
                # Whatever it is, another owner may see it otherwise. The next setup waits until it can be told.
                error = WrongHostError(f"it cannot be told now whether {writer.segment} is here")
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
            # The answer to its next setup tells the writer what was stored.
            error = WrongHostError(str(error))
        reply = None
        if isinstance(error, TailraceError):
            # For a sealed segment the offset carries the failed event number, for others it stays -1 (wire §3.6).
            offset = request.event_number if error.wire_code == c.SegmentIsSealed.CODE else -1
            reply = failure_reply(Failure(error, request.request_id, writer.segment, "append", offset))
        if reply is None:
            told = isinstance(error, DiskFullError)  # by the container, once for all that it refuses
            self._fail(f"append to {writer.segment} failed: {type(error).__name__}: {error}", told=told)
        else:
            self._outbox.reply(reply)


def _may_refuse(writer: WriterState) -> bool:
    """Whether what the container knows is no older than an owner's answers may be (design §9)."""
    return writer.container is None or writer.container.may_answer()
