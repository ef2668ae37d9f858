"""Keep a query's record in a key-value table of the stream's scope (docs/formats/spark.md)."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

from tailrace.client.control.tables import TableConfig
from tailrace.client.model import PingStatus
from tailrace.client.tables import KeyValueTable, TableKeyParts
from tailrace.client.types import NOT_EXISTS
from tailrace.common import limits
from tailrace.common.errors import (
    CorruptionError,
    IllegalStateError,
    NotFoundError,
    TableKeyBadVersionError,
    WriteConflictError,
)
from tailrace.pipelines.sink.query_record import UNKNOWN, QueryRecord, decode, encode
from tailrace.pipelines.sink.sealed_stream import reason_to_report

if TYPE_CHECKING:
    import uuid

    from tailrace.client.context import ClientContext
    from tailrace.client.model import StreamName, TransactionState

TABLE: Final = "spark-queries"
KEY_LENGTH_BYTES: Final = 32


class StreamTransactions:
    """The transactions of a stream, by their ids."""

    def __init__(self, context: ClientContext, stream: StreamName, lease_ms: int) -> None:
        self._controller = context.controller
        self._stream = stream
        self._lease_ms = lease_ms

    async def state(self, transaction: uuid.UUID) -> TransactionState:
        """Return the state from the controller."""
        return await self._controller.transaction_state(self._stream, transaction)

    async def extend(self, transaction: uuid.UUID) -> None:
        """Extend the lease. Raises StreamSealedError, IllegalStateError when the transaction is not open."""
        status = await self._controller.ping_transaction(self._stream, transaction, self._lease_ms)
        if status is not PingStatus.OK:
            ended = IllegalStateError(
                f"transaction {transaction} of {self._stream} is no longer open ({status.name.lower()}): the batch "
                f"took longer than its lease of {self._lease_ms // 1000} s. Write smaller batches"
            )
            raise await reason_to_report(self._controller, self._stream, ended)

    async def commit(self, transaction: uuid.UUID) -> None:
        """Decide to commit."""
        await self._controller.commit_transaction(self._stream, transaction)

    async def abort(self, transaction: uuid.UUID) -> None:
        """Decide to abort."""
        await self._controller.abort_transaction(self._stream, transaction)

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class QueryTable(StreamTransactions):
    """The record of a query on a stream, and the stream's transactions."""

    def __init__(self, context: ClientContext, stream: StreamName, query: str, lease_ms: int) -> None:
        super().__init__(context, stream, lease_ms)
        self._query = query
        self._table = KeyValueTable(context, stream.scope, TABLE)
        self._key = TableKeyParts(key_of(query, stream))
        self._incarnation = UNKNOWN

    async def start(self) -> QueryTable:
        """Create the table of the scope if it is missing. Raises NoSuchScopeError, NoSuchStreamError."""
        await self._look()
        try:
            await self._table.start()
        except NotFoundError:
            config = TableConfig(partitions=1, primary_key_length=KEY_LENGTH_BYTES)
            await self._controller.create_table(self._stream.scope, TABLE, config)
            await self._table.start()
        return self

    async def open(self) -> None:
        """Open the table of the scope. Raises NotFoundError when it, or the stream, is missing."""
        await self._look()
        await self._table.start()

    async def _look(self) -> None:
        self._incarnation = (await self._controller.describe_stream(self._stream, sizes=False)).incarnation

    async def load(self) -> tuple[QueryRecord, int]:
        """Return the record, for the stream as of `open`, and its version.

        Raises:
            CorruptionError, FormatVersionError. IllegalStateError: the stream was created again since.
        """
        record, version = await self._stored()
        return record.on(self._incarnation), version

    async def has_written(self) -> QueryRecord | None:
        """Return the record; None when the query has written nothing into the stream as of `open`. Raises as `load`."""
        record, version = await self._stored()
        same = record.incarnation in (self._incarnation, UNKNOWN)
        return None if version == NOT_EXISTS or not same else record

    async def _stored(self) -> tuple[QueryRecord, int]:
        found = await self._table.get(self._key)
        if found is None:
            return QueryRecord(self._query, str(self._stream)), NOT_EXISTS
        place = f"record of query {self._query} in table {self._stream.scope}/{TABLE}"
        record = decode(found.value, place)
        if (record.query, record.stream) != (self._query, str(self._stream)):
            raise CorruptionError(place, f"it is of query {record.query} and stream {record.stream}")
        return record, found.version

    async def replace(self, record: QueryRecord, version: int) -> None:
        """Replace the record of that version. Raises WriteConflictError when it has changed."""
        assert (record.query, record.stream) == (self._query, str(self._stream))
        try:
            await self._table.put(self._key, encode(record), version=version)
        except TableKeyBadVersionError as error:
            raise WriteConflictError(f"the record of query {self._query} has changed") from error


async def find_record(context: ClientContext, stream: StreamName, query: str) -> QueryRecord | None:
    """Return the record of a query on a stream; None when it has written nothing into it. Raises CorruptionError."""
    table = QueryTable(context, stream, query, limits.TRANSACTION_LEASE_MAX_MS)
    try:
        await table.open()
    except NotFoundError:
        return None
    return await table.has_written()


def key_of(query: str, stream: StreamName) -> bytes:
    """Return the key of a query's record on a stream."""
    return hashlib.sha256(f"{stream}\n{query}".encode()).digest()
