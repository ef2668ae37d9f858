"""Write the rows of one task: into a transaction, or at once (docs/spark-sink.md#delivery)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from tailrace.client import BlockingClient
from tailrace.client.writer.event_writer import EventWriter
from tailrace.client.writer.transactions import TransactionalWriter
from tailrace.common.errors import IllegalStateError, TailraceError
from tailrace.pipelines.sink.commit import start_run
from tailrace.pipelines.sink.event_values import EventEncoder
from tailrace.pipelines.sink.query_record import UNKNOWN
from tailrace.pipelines.sink.query_table import QueryTable
from tailrace.pipelines.sink.sealed_stream import reason_to_report

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from tailrace.client.context import ClientContext
    from tailrace.client.writer.routed_writer import RoutedWriter
    from tailrace.client.writer.transactions import Transaction
    from tailrace.pipelines.sink.options import SinkOptions


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task reports to the driver: the query and its run, and its transaction; None when it had no rows.

    ``rows`` are those of the transaction; UNKNOWN in a message of an earlier version.
    """

    query: str
    run: str
    transaction: uuid.UUID | None
    rows: int = UNKNOWN


def write_task(options: SinkOptions, query: str, run: str, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
    """Write the rows of a task. With `query` it first records the start of the run; see `start_run`.

    Raises:
        IllegalStateError: a later run of the query has started. BadRequestError: a row has no value or key, or an event
            is too large. StreamSealedError, NoSuchStreamError.
    """
    encoder = EventEncoder(options)
    with BlockingClient(options.controller) as client:
        if query:
            client.run(_start_run(client.context, options, query, run))
        if not options.exactly_once:
            _write_at_once(client, options, encoder, batches)
            return TaskMessage(query, run, None)
        return TaskMessage(query, run, *_write_transaction(client, options, encoder, batches))


async def _start_run(context: ClientContext, options: SinkOptions, query: str, run: str) -> None:
    await start_run(await QueryTable(context, options.stream, query, options.lease_ms).start(), run)


def _write_at_once(
    client: BlockingClient, options: SinkOptions, encoder: EventEncoder, batches: Iterator[pa.RecordBatch]
) -> None:
    async def opened() -> EventWriter:
        return await EventWriter(client.context, options.stream).start()

    writer = client.run(opened())
    try:
        for batch in batches:
            client.run(_write(writer, list(encoder.groups(batch))))
        client.run(writer.flush())
    finally:
        client.run(writer.abandon())


def _write_transaction(
    client: BlockingClient, options: SinkOptions, encoder: EventEncoder, batches: Iterator[pa.RecordBatch]
) -> tuple[uuid.UUID | None, int]:
    """Return the transaction of the rows, durable and open, and how many there are; None without rows.

    It is aborted when writing fails.

    Raises:
        StreamSealedError: the stream is sealed. IllegalStateError: the transaction has ended for another reason.
    """
    transaction: Transaction | None = None
    rows = 0
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            groups = list(encoder.groups(batch))
            if transaction is None:
                transaction = client.run(_begin(client.context, options))
            client.run(_write(transaction, groups))
            rows += batch.num_rows
        if transaction is None:
            return None, 0
        client.run(_leave_open(transaction))
        return transaction.transaction_id, rows
    except BaseException as error:
        if transaction is not None:
            # The error that stopped the task is the one to report; without an abort the lease ends the transaction.
            with contextlib.suppress(TailraceError):
                client.run(transaction.abort())
        if isinstance(error, IllegalStateError):
            reason = client.run(reason_to_report(client.context.controller, options.stream, error))
            if reason is not error:
                raise reason from error
        raise


async def _begin(context: ClientContext, options: SinkOptions) -> Transaction:
    return await TransactionalWriter(context, options.stream, lease_ms=options.lease_ms).begin()


async def _leave_open(transaction: Transaction) -> None:
    """Make the events durable, and leave the transaction to the driver with a whole lease."""
    await transaction.flush()
    await transaction.ping()
    await transaction.abandon()


async def _write(writer: RoutedWriter, groups: Sequence[tuple[str | None, list[bytes]]]) -> None:
    for key, events in groups:
        await writer.ready()
        writer.write_events(events, key)
