"""Write transactions: events that become visible together or never (docs/protocol/server.md#transactions)."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Self

from tailrace.client.control.transactions import NO_TIMESTAMP
from tailrace.client.model import PingStatus, SegmentRange, StreamName, TransactionState
from tailrace.client.retry import Backoff, as_known
from tailrace.client.writer.event_writer import say_farewell
from tailrace.client.writer.routed_writer import RoutedWriter
from tailrace.client.writer.segment_writer import SegmentWriter
from tailrace.common import limits, names
from tailrace.common.errors import (
    ClientClosedError,
    ConditionFailedError,
    DeadlineError,
    IllegalStateError,
    NoSuchSegmentError,
    NoSuchTransactionError,
    SegmentSealedError,
    TailraceError,
    UnavailableError,
)
from tailrace.common.ports import new_uuid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.client.context import ClientContext


class _NotOpenError(IllegalStateError):
    """The controller refused a ping."""


class Transaction(RoutedWriter):
    """An open transaction. Pings extend its lease until it is committed, aborted or closed.

    ``async with`` commits, or aborts when an exception leaves the block.
    """

    def __init__(
        self,
        context: ClientContext,
        stream: StreamName,
        transaction_id: uuid.UUID,
        segments: Sequence[SegmentRange],
        *,
        writer_id: str,
        lease_ms: int,
    ) -> None:
        super().__init__(context, f"transaction {transaction_id} of {stream}")
        self.stream = stream
        self.transaction_id = transaction_id
        self._writer_id = writer_id
        self._lease_ms = lease_ms
        self._decided = False
        self.noted_time = False
        self._set_routes([(segment.key_range, self._writer_of(segment.identifier)) for segment in segments])
        self._pinger = asyncio.create_task(self._keep_alive(), name=f"ping {transaction_id}")

    async def __aexit__(self, kind: object, *rest: object) -> None:
        if self._decided:
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.abort()
        except TailraceError as failure:  # the lease ends it; raise the earlier error to the caller
            error = rest[0]
            if isinstance(error, BaseException):
                error.add_note(f"{self._target} was not aborted: {failure}; it aborts when its lease ends")

    async def commit(self, timestamp_ms: int | None = None) -> None:
        """Make the events durable and commit; they become visible shortly after (`wait_until_visible`).

        Raises:
            IllegalStateError: the transaction is no longer open, or an event was not written.
        """
        try:
            await self.flush()
            timestamp = NO_TIMESTAMP if timestamp_ms is None else timestamp_ms
            self.noted_time = timestamp_ms is not None
            await self._context.controller.commit_transaction(
                self.stream, self.transaction_id, writer=self._writer_id, timestamp_ms=timestamp
            )
            self._decided = True
        finally:
            await self.abandon()

    async def abort(self) -> None:
        """Abort the transaction. Raises IllegalStateError when it is no longer open."""
        await self.abandon()
        await self._context.controller.abort_transaction(self.stream, self.transaction_id)
        self._decided = True

    async def abandon(self) -> None:
        """Stop writing and pinging. The transaction aborts when its lease ends, unless a client decides it before."""
        self.stop_pinging()
        await super().abandon()  # without an await first, so that a cancelled call has taken effect
        await asyncio.wait([self._pinger])

    def stop_pinging(self) -> None:
        """Stop pinging: the transaction ends with its lease."""
        self._pinger.cancel()

    async def state(self) -> TransactionState:
        """Return the transaction's state from the controller."""
        return await self._context.controller.transaction_state(self.stream, self.transaction_id)

    async def wait_until_visible(self, deadline_s: float) -> None:
        """Wait until a committed transaction's events can be read. Raises IllegalStateError, DeadlineError."""
        ends_at_s = asyncio.get_running_loop().time() + deadline_s
        backoff = Backoff(self._context.entropy, maximum_s=0.5)
        while (state := await self.state()) is not TransactionState.COMMITTED:
            if state is not TransactionState.COMMITTING:
                raise IllegalStateError(f"{self._target} is {state.name.lower()}")
            if asyncio.get_running_loop().time() >= ends_at_s:
                raise DeadlineError(f"{self._target} is not committed completely after {deadline_s:g} s")
            await asyncio.sleep(backoff.next_delay_s())

    async def ping(self) -> None:
        """Extend the lease. Raises IllegalStateError when the transaction is no longer open."""
        self._check_ping(
            await self._context.controller.ping_transaction(self.stream, self.transaction_id, self._lease_ms)
        )

    def _check_ping(self, status: PingStatus) -> None:
        if status is not PingStatus.OK:
            raise _NotOpenError(f"the lease of {self._target} was not extended: {status.name.lower()}")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 1000 / limits.TRANSACTION_PINGS_PER_LEASE)
            try:
                status = await self._context.controller.ping_transaction(
                    self.stream, self.transaction_id, self._lease_ms
                )
                if status is not PingStatus.DISCONNECTED:  # the lease service is unavailable: the next ping is in time
                    self._check_ping(status)
            except ClientClosedError as error:
                self._fail(error)
                return
            except (UnavailableError, ConditionFailedError):
                continue  # the next ping is in time
            except TailraceError as error:
                if isinstance(error, IllegalStateError) and not isinstance(error, _NotOpenError):
                    continue  # INTERNAL is an error of the controller, not of the transaction
                self._fail(error)
                return
            except Exception as error:
                self._fail(as_known(error, f"the extension of the lease of {self._target}"))
                return

    def _writer_of(self, identifier: int) -> SegmentWriter:
        writer = self._writers[identifier] = SegmentWriter(
            self._context,
            names.transaction_segment_name(self.stream.segment(identifier), self.transaction_id),
            identifier,
            gone=self._segment_gone,
            progress=self._progressed,
        )
        return writer

    async def _segment_gone(self, _: SegmentWriter, reason: TailraceError) -> None:
        if isinstance(reason, SegmentSealedError | NoSuchSegmentError):
            reason = IllegalStateError(f"{self._target} is no longer open")
        self._fail(reason)


class TransactionalWriter:
    """Begin transactions on a stream."""

    def __init__(
        self,
        context: ClientContext,
        stream: StreamName,
        *,
        writer_id: str | None = None,
        lease_ms: int = limits.TRANSACTION_LEASE_DEFAULT_MS,
    ) -> None:
        self.stream = stream
        self.writer_id = writer_id or str(new_uuid(context.entropy))
        self._context = context
        self._lease_ms = lease_ms
        self._open: list[Transaction] = []
        self._noted_time = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def begin(self) -> Transaction:
        """Begin a transaction. Raises BadRequestError (lease), NotFoundError, WriteConflictError (during a scale)."""
        transaction_id, segments = await self._context.controller.create_transaction(self.stream, self._lease_ms)
        return self._track(transaction_id, segments)

    async def resume(self, transaction_id: uuid.UUID) -> Transaction:
        """Return a handle of an open transaction, to write to, commit or abort it, with the lease of this writer.

        Raises:
            NoSuchTransactionError: the controller does not know it. IllegalStateError: it is not open.
        """
        state = await self._context.controller.transaction_state(self.stream, transaction_id)
        if state is TransactionState.UNKNOWN:
            raise NoSuchTransactionError(f"transaction {transaction_id} of {self.stream} does not exist")
        if state is not TransactionState.OPEN:
            raise IllegalStateError(f"transaction {transaction_id} of {self.stream} is {state.name.lower()}")
        epoch = names.segment_epoch(transaction_id.int >> 64)
        found = await self._context.controller.epoch_segments(self.stream, epoch)
        segments = [
            SegmentRange(names.segment_id(names.segment_number(segment.identifier), epoch), segment.key_range)
            for segment in found
        ]
        # What is left of its lease may be shorter than the time to the first ping of the handle.
        status = await self._context.controller.ping_transaction(self.stream, transaction_id, self._lease_ms)
        if status not in (PingStatus.OK, PingStatus.DISCONNECTED):
            reason = status.name.lower()
            raise IllegalStateError(f"transaction {transaction_id} of {self.stream} was not extended: {reason}")
        return self._track(transaction_id, segments)

    def _track(self, transaction_id: uuid.UUID, segments: Sequence[SegmentRange]) -> Transaction:
        transaction = Transaction(
            self._context,
            self.stream,
            transaction_id,
            segments,
            writer_id=self.writer_id,
            lease_ms=self._lease_ms,
        )
        self._note_times()
        self._open = [other for other in self._open if other.active]
        self._open.append(transaction)
        return transaction

    async def close(self) -> None:
        """Stop pinging. Open transactions end with their lease.

        If a commit carried a time, report to the controller that this writer notes no more times.
        """
        self._note_times()
        transactions, self._open = self._open, []
        for transaction in transactions:
            transaction.stop_pinging()  # without an await first, so that a cancelled call has taken effect
        for transaction in transactions:
            await transaction.abandon()
        if self._noted_time:
            self._noted_time = False
            await say_farewell(self._context, self.stream, self.writer_id)

    def _note_times(self) -> None:
        self._noted_time = self._noted_time or any(transaction.noted_time for transaction in self._open)
