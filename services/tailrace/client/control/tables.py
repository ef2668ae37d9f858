"""Calls about key-value tables (docs/protocol/controller.md#tables)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.control.caller import Caller, check_status, segment_ranges
from tailrace.common.errors import InvalidNameError, NoSuchScopeError, NotFoundError
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from tailrace.client.model import SegmentRange


class TableConfig(NamedTuple):
    """Configuration of a key-value table; key lengths in bytes."""

    partitions: int
    primary_key_length: int
    secondary_key_length: int = 0
    rollover_bytes: int = 0


class KeyValueTableCalls(Caller):
    """Calls on key-value tables. A missing table raises NotFoundError."""

    async def create_table(self, scope: str, table: str, config: TableConfig) -> bool:
        """Create a table; return False when it exists. Raises NoSuchScopeError, InvalidNameError."""
        request = pb.KeyValueTableConfig(
            scope=scope,
            kvtName=table,
            partitionCount=config.partitions,
            primaryKeyLength=config.primary_key_length,
            secondaryKeyLength=config.secondary_key_length,
            rolloverSizeBytes=config.rollover_bytes,
        )
        reply = await self._call("createKeyValueTable", request, pb.CreateKeyValueTableStatus)
        if reply.status == pb.CreateKeyValueTableStatus.TABLE_EXISTS:
            return False
        check_status(
            reply,
            f"table {scope}/{table}",
            {
                "SCOPE_NOT_FOUND": lambda subject: NoSuchScopeError(f"{subject}: the scope does not exist"),
                "INVALID_TABLE_NAME": lambda subject: InvalidNameError(f"{subject}: invalid name"),
            },
        )
        return True

    async def delete_table(self, scope: str, table: str) -> bool:
        """Delete a table; return False when it does not exist."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply, unsure = await self._call_unsure("deleteKeyValueTable", request, pb.DeleteKVTableStatus)
        if reply.status == pb.DeleteKVTableStatus.TABLE_NOT_FOUND:
            return unsure  # probably deleted by an attempt whose reply was lost
        check_status(reply, f"table {scope}/{table}", {})
        return True

    async def table_config(self, scope: str, table: str) -> TableConfig:
        """Return the stored configuration."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply = await self._call("getKeyValueTableConfiguration", request, pb.KeyValueTableConfigResponse)
        check_status(
            reply,
            f"table {scope}/{table}",
            {"TABLE_NOT_FOUND": lambda subject: NotFoundError(f"{subject} does not exist")},
        )
        found = reply.config
        return TableConfig(
            found.partitionCount, found.primaryKeyLength, found.secondaryKeyLength, found.rolloverSizeBytes
        )

    async def table_segments(self, scope: str, table: str) -> list[SegmentRange]:
        """Return the table's segments sorted by key range."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply = await self._call("getCurrentSegmentsKeyValueTable", request, pb.SegmentRanges)
        return segment_ranges(reply.segmentRanges)

    async def list_tables(self, scope: str) -> AsyncIterator[str]:
        """Yield the names of a scope's tables. Raises NoSuchScopeError."""
        token = pb.ContinuationToken(token="")
        while True:
            request = pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope=scope), continuationToken=token)
            reply = await self._call("listKeyValueTablesInScope", request, pb.KVTablesInScopeResponse)
            check_status(
                reply,
                f"scope {scope}",
                {"SCOPE_NOT_FOUND": lambda subject: NoSuchScopeError(f"{subject} does not exist")},
            )
            if not reply.kvtables:
                return
            for info in reply.kvtables:
                yield info.kvtName
            token = reply.continuationToken
