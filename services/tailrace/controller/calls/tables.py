"""Calls about key-value tables (docs/protocol/controller.md#tables, docs/protocol/naming.md#key-value-tables)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import InvalidNameError, NoSuchScopeError
from tailrace.common.names import check_entity_name, check_not_internal
from tailrace.controller.calls.convert import segment_ranges
from tailrace.controller.managers.tables import NoSuchTableError, partitions
from tailrace.controller.metadata.records import TableRecord
from tailrace.controller.metadata.scope_store import TABLES
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from tailrace.controller.calls.call import Call, Core


class KeyValueTableService:
    """Key-value tables: create, delete, list."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tables = core.tables

    async def create_key_value_table(self, request: pb.KeyValueTableConfig, call: Call) -> pb.CreateKeyValueTableStatus:
        """Create a table with its segments."""
        check_not_internal(request.scope)
        answer = pb.CreateKeyValueTableStatus
        try:
            check_entity_name("key-value table", request.kvtName)
        except InvalidNameError:
            return answer(status=answer.INVALID_TABLE_NAME)
        nonce = self._core.context.new_id()
        record = TableRecord(
            nonce=nonce,
            partitions=request.partitionCount,
            primary_key_length=request.primaryKeyLength,
            secondary_key_length=request.secondaryKeyLength,
            rollover_size_bytes=request.rolloverSizeBytes,
            created_ms=self._core.context.clock.now_ms(),
            epoch=int.from_bytes(nonce[:4], "big") >> 1,  # a positive 32-bit number
        )
        try:
            created = await self._tables.create(request.scope, request.kvtName, record)
        except NoSuchScopeError:
            return answer(status=answer.SCOPE_NOT_FOUND)
        return answer(status=answer.SUCCESS if created else answer.TABLE_EXISTS)

    async def get_current_segments_key_value_table(self, request: pb.KeyValueTableInfo, call: Call) -> pb.SegmentRanges:
        """Return the table's segments. Their stream name is the table's name without suffix."""
        record = await self._tables.load(request.scope, request.kvtName)
        return segment_ranges(StreamKey(request.scope, request.kvtName), partitions(record))

    async def list_key_value_tables_in_scope(
        self, request: pb.KVTablesInScopeRequest, call: Call
    ) -> pb.KVTablesInScopeResponse:
        """Return a page of a scope's tables."""
        answer = pb.KVTablesInScopeResponse
        scope = request.scope.scope
        try:
            await self._core.context.scopes.require(scope)
            found, token = await self._core.context.scopes.list_names(
                scope, TABLES, limits.LIST_PAGE_ENTRIES_MAX, request.continuationToken.token
            )
        except NoSuchScopeError:
            return answer(status=answer.SCOPE_NOT_FOUND, continuationToken=pb.ContinuationToken())
        return answer(
            kvtables=[pb.KeyValueTableInfo(scope=scope, kvtName=name) for name in found],
            continuationToken=pb.ContinuationToken(token=token),
            status=answer.SUCCESS,
        )

    async def get_key_value_table_configuration(
        self, request: pb.KeyValueTableInfo, call: Call
    ) -> pb.KeyValueTableConfigResponse:
        """Return the stored configuration."""
        answer = pb.KeyValueTableConfigResponse
        try:
            record = await self._tables.load(request.scope, request.kvtName)
        except NoSuchTableError:
            return answer(status=answer.TABLE_NOT_FOUND)
        config = pb.KeyValueTableConfig(
            scope=request.scope,
            kvtName=request.kvtName,
            partitionCount=record.partitions,
            primaryKeyLength=record.primary_key_length,
            secondaryKeyLength=record.secondary_key_length,
            rolloverSizeBytes=record.rollover_size_bytes,
        )
        return answer(status=answer.SUCCESS, config=config)

    async def delete_key_value_table(self, request: pb.KeyValueTableInfo, call: Call) -> pb.DeleteKVTableStatus:
        """Delete a table with everything in it."""
        answer = pb.DeleteKVTableStatus
        try:
            await self._tables.delete(request.scope, request.kvtName)
        except NoSuchTableError:
            return answer(status=answer.TABLE_NOT_FOUND)
        return answer(status=answer.SUCCESS)
