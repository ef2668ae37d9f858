"""The writers that Spark calls (docs/spark-sink.md). Executors write, one process on the driver commits or aborts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from tailrace.client import BlockingClient
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, IllegalStateError
from tailrace.common.ports import new_uuid
from tailrace.common.real_ports import SystemEntropy
from tailrace.pipelines.sink.commit import Attempt, abort_batch, abort_open, commit_all, commit_batch
from tailrace.pipelines.sink.query_record import UNKNOWN
from tailrace.pipelines.sink.query_table import QueryTable, StreamTransactions
from tailrace.pipelines.sink.task import TaskMessage, write_task

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from typing import Any

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

    from tailrace.client.context import ClientContext
    from tailrace.pipelines.sink.options import SinkOptions

_QUERY_PROPERTY = "sql.streaming.queryId"
_RUN_PROPERTY = "spark.jobGroup.id"
"""Spark runs the jobs of a streaming query in a group that is called after the query's run."""
_PROPERTIES = (_QUERY_PROPERTY, _RUN_PROPERTY)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each exactly once or at least once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of a task. Raises IllegalStateError: Spark does not name the query; see also `write_task`."""
        context = TaskContext.get()
        properties = {} if context is None else {name: context.getLocalProperty(name) for name in _PROPERTIES}
        query, run = properties.get(_QUERY_PROPERTY), properties.get(_RUN_PROPERTY)
        if not query or not run:
            raise IllegalStateError(f"Spark gives its tasks no {_QUERY_PROPERTY} or no {_RUN_PROPERTY}")
        return write_task(self._options, query if self._options.exactly_once else "", run, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make a batch visible, so that its events can be read. Raises what `commit_batch` raises, DeadlineError."""
        _decide(_commit, self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Abort what the tasks of a failed batch wrote."""
        _decide(_abort, self._options, messages, batchId)


class TableWriter(DataSourceArrowWriter):
    """Writes the rows of a table. With the options query and batch the same write may be repeated."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = str(new_uuid(SystemEntropy()))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of a task; see `write_task`."""
        return write_task(self._options, self._options.query, self._run, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows visible; returns when they can be read. Raises IllegalStateError, DeadlineError."""
        _decide(_commit, self._options, messages, self._options.batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort what the tasks of a failed write wrote."""
        _decide(_abort, self._options, messages, self._options.batch)


@dataclass(frozen=True)
class _Written:
    """What the tasks of a batch wrote. ``batch`` is None for rows of a table without a number: they have no record."""

    options: SinkOptions
    query: str
    run: str
    batch: int | None
    transactions: tuple[uuid.UUID, ...]
    rows: int

    def unnumbered(self, context: ClientContext) -> StreamTransactions:
        return StreamTransactions(context, self.options.stream, self.options.lease_ms)

    async def numbered(self, context: ClientContext, batch: int) -> tuple[QueryTable, Attempt]:
        store = await QueryTable(context, self.options.stream, self.query, self.options.lease_ms).start()
        return store, Attempt(self.run, batch, self.transactions, self.rows)


async def _commit(context: ClientContext, written: _Written) -> None:
    if written.batch is None:
        await commit_all(written.unnumbered(context), written.transactions)
    else:
        await commit_batch(*await written.numbered(context, written.batch), written.options.unresolved)


async def _abort(context: ClientContext, written: _Written) -> None:
    if written.batch is None:
        await abort_open(written.unnumbered(context), written.transactions)
    else:
        await abort_batch(*await written.numbered(context, written.batch))


def _decide(
    decision: Callable[[ClientContext, _Written], Coroutine[Any, Any, None]],
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch: int | None,
) -> None:
    """Commit or abort what the tasks wrote, in the order of the partitions; a failed task has no message.

    Raises:
        DeadlineError: after SPARK_COMMIT_DEADLINE_S.
    """
    found = [message for message in messages if isinstance(message, TaskMessage)]
    if not options.exactly_once or not found:
        return
    ids = tuple(message.transaction for message in found if message.transaction is not None)
    rows = UNKNOWN if any(message.rows == UNKNOWN for message in found) else sum(message.rows for message in found)
    written = _Written(options, found[0].query, found[0].run, batch, ids, rows)

    async def bounded() -> None:
        try:
            async with asyncio.timeout(limits.SPARK_COMMIT_DEADLINE_S):
                await decision(client.context, written)
        except TimeoutError:
            then = "the rows may be there in part" if batch is None else "the next start of the query finishes it"
            raise DeadlineError(f"no decision within {limits.SPARK_COMMIT_DEADLINE_S:g} s: {then}") from None

    with BlockingClient(options.controller) as client:
        client.run(bounded())
