"""The writers that Spark calls (docs/spark-sink.md). Executors write, one process on the driver commits or aborts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from tailrace.client import BlockingClient
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, IllegalStateError
from tailrace.common.ports import new_uuid
from tailrace.common.real_ports import SystemEntropy
from tailrace.pipelines.sink.commit import Attempt, abort_batch, abort_open, commit_all, commit_batch
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
        found = _received(messages)
        if self._options.exactly_once and found:
            _in_time(self._options, lambda context: _commit(context, self._options, found, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Abort what the tasks of a failed batch wrote."""
        found = _received(messages)
        if self._options.exactly_once and found:
            _in_time(self._options, lambda context: _abort(context, self._options, found, batchId))


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
        found = _received(messages)
        if not self._options.exactly_once or not found:
            return
        batch = self._options.batch
        if batch is None:
            _in_time(
                self._options,
                lambda context: commit_all(_transactions(context, self._options), _ids(found)),
            )
        else:
            _in_time(self._options, lambda context: _commit(context, self._options, found, batch))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort what the tasks of a failed write wrote."""
        found = _received(messages)
        if not self._options.exactly_once or not found:
            return
        batch = self._options.batch
        if batch is None:
            _in_time(
                self._options,
                lambda context: abort_open(_transactions(context, self._options), _ids(found)),
            )
        else:
            _in_time(self._options, lambda context: _abort(context, self._options, found, batch))


def _received(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    """Return the messages of the tasks that ended well, in the order of the partitions."""
    return [message for message in messages if isinstance(message, TaskMessage)]


def _ids(messages: Sequence[TaskMessage]) -> tuple[uuid.UUID, ...]:
    return tuple(message.transaction for message in messages if message.transaction is not None)


def _transactions(context: ClientContext, options: SinkOptions) -> StreamTransactions:
    return StreamTransactions(context, options.stream, options.lease_ms)


async def _commit(context: ClientContext, options: SinkOptions, messages: Sequence[TaskMessage], batch: int) -> None:
    store = await QueryTable(context, options.stream, messages[0].query, options.lease_ms).start()
    await commit_batch(store, Attempt(messages[0].run, batch, _ids(messages)), options.unresolved)


async def _abort(context: ClientContext, options: SinkOptions, messages: Sequence[TaskMessage], batch: int) -> None:
    store = await QueryTable(context, options.stream, messages[0].query, options.lease_ms).start()
    await abort_batch(store, Attempt(messages[0].run, batch, _ids(messages)))


def _in_time(options: SinkOptions, work: Callable[[ClientContext], Coroutine[Any, Any, None]]) -> None:
    """Run a decision of the driver. Raises DeadlineError after SPARK_COMMIT_DEADLINE_S."""

    async def bounded() -> None:
        try:
            async with asyncio.timeout(limits.SPARK_COMMIT_DEADLINE_S):
                await work(client.context)
        except TimeoutError:
            raise DeadlineError(
                f"the batch was not decided within {limits.SPARK_COMMIT_DEADLINE_S:g} s; the next start of the query "
                "finishes it"
            ) from None

    with BlockingClient(options.controller) as client:
        client.run(bounded())
