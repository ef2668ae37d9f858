"""Blocking writers: events, transactions, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from tailrace.client.blocking.portal import Portal
    from tailrace.client.byte_stream import ByteStreamWriter
    from tailrace.client.model import TransactionState
    from tailrace.client.writer.event_writer import EventWriter
    from tailrace.client.writer.routed_writer import RoutedWriter
    from tailrace.client.writer.transactions import Transaction, TransactionalWriter


class _BlockingWrites:
    """Writes of events that wait for buffer space, not for durability."""

    def __init__(self, portal: Portal, writer: RoutedWriter) -> None:
        self._run = portal.run
        self._routed = writer

    def write_event(self, event: bytes, routing_key: str | None = None) -> None:
        """Buffer an event; `flush` waits until it is durable."""
        self.write_events((event,), routing_key)

    def write_events(self, events: Sequence[bytes], routing_key: str | None = None) -> None:
        """Buffer events of one routing key; `flush` waits until they are durable."""

        async def work() -> None:
            await self._routed.ready()
            self._routed.write_events(events, routing_key)

        self._run(work())

    def flush(self) -> None:
        """Wait until everything written is durable. Raises the error of a failed event."""
        self._run(self._routed.flush())

    @property
    def active(self) -> bool:
        """Return whether the writer takes events."""
        return self._routed.active

    def close(self) -> None:
        """Flush and stop. A transaction is left to its lease, and to clients that resume it."""
        self._run(self._routed.close())

    def abandon(self) -> None:
        """Stop at once. Events or bytes that are not durable yet may be stored or not."""
        self._run(self._routed.abandon())


class BlockingEventWriter(_BlockingWrites):
    """The blocking form of `EventWriter`. Writes return nothing: use `flush`."""

    def __init__(self, portal: Portal, writer: EventWriter) -> None:
        super().__init__(portal, writer)
        self.stream = writer.stream
        self.writer_id = writer.writer_id
        self._writer = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def note_time(self, timestamp_ms: int) -> None:
        """Report to the controller that all events up to this time are written: call `flush` before."""
        self._run(self._writer.note_time(timestamp_ms))


class BlockingTransaction(_BlockingWrites):
    """The blocking form of `Transaction`; ``with`` commits, or aborts when an exception leaves the block."""

    def __init__(self, portal: Portal, transaction: Transaction) -> None:
        super().__init__(portal, transaction)
        self.stream = transaction.stream
        self.transaction_id = transaction.transaction_id
        self._transaction = transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._run(self._transaction.__aexit__(*failure))

    def commit(self, timestamp_ms: int | None = None) -> None:
        """Commit."""
        self._run(self._transaction.commit(timestamp_ms))

    def abort(self) -> None:
        """Abort."""
        self._run(self._transaction.abort())

    def ping(self) -> None:
        """Extend the lease. Raises IllegalStateError when the transaction is no longer open."""
        self._run(self._transaction.ping())

    def state(self) -> TransactionState:
        """Return the transaction's state from the controller."""
        return self._run(self._transaction.state())

    def wait_until_visible(self, deadline_s: float) -> None:
        """Wait until a committed transaction's events can be read."""
        self._run(self._transaction.wait_until_visible(deadline_s))


class BlockingTransactionalWriter:
    """The blocking form of `TransactionalWriter`."""

    def __init__(self, portal: Portal, writer: TransactionalWriter) -> None:
        self.stream = writer.stream
        self.writer_id = writer.writer_id
        self._portal = portal
        self._writer = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> BlockingTransaction:
        """Begin a transaction."""
        return BlockingTransaction(self._portal, self._portal.run(self._writer.begin()))

    def resume(self, transaction_id: uuid.UUID) -> BlockingTransaction:
        """Return a handle of an open transaction."""
        return BlockingTransaction(self._portal, self._portal.run(self._writer.resume(transaction_id)))

    def close(self) -> None:
        """Stop pinging."""
        self._portal.run(self._writer.close())


class BlockingByteStreamWriter:
    """The blocking form of `ByteStreamWriter`."""

    def __init__(self, portal: Portal, writer: ByteStreamWriter) -> None:
        self.stream = writer.stream
        self._run = portal.run
        self._writer = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def write(self, data: bytes) -> None:
        """Append; `flush` waits until the bytes are durable."""
        self._run(self._writer.write(data))

    def flush(self) -> None:
        """Wait until everything written is durable."""
        self._run(self._writer.flush())

    def abandon(self) -> None:
        """Stop at once. Events or bytes that are not durable yet may be stored or not."""
        self._run(self._writer.abandon())

    def length(self) -> int:
        """Return the offset of the end of the stream."""
        return self._run(self._writer.length())

    def truncate(self, offset: int) -> None:
        """Truncate the stream at `offset`."""
        self._run(self._writer.truncate(offset))

    def seal(self) -> None:
        """Flush and seal."""
        self._run(self._writer.seal())

    def close(self) -> None:
        """Flush and stop."""
        self._run(self._writer.close())
