"""Create and delete key-value tables: a scope entry and a fixed-key table segment per partition.

See docs/protocol/naming.md#key-value-tables.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits, names
from tailrace.common.errors import BadRequestError, NoSuchScopeError, NotFoundError, WriteConflictError
from tailrace.common.ranges import equal_ranges
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.model import StreamSegment
from tailrace.controller.metadata.records import TableRecord
from tailrace.controller.metadata.scope_store import TABLES
from tailrace.controller.workflows.entities import TABLE, Entity, EntityDriver

if TYPE_CHECKING:
    from tailrace.controller.workflows.context import WorkflowContext


class NoSuchTableError(NotFoundError):
    """The key-value table does not exist."""


def partitions(record: TableRecord) -> list[StreamSegment]:
    """Return the table's segments in key order."""
    return [
        StreamSegment(names.segment_id(number, record.epoch), low, high)
        for number, (low, high) in enumerate(equal_ranges(record.partitions))
    ]


def partition_names(scope: str, table: str, record: TableRecord) -> list[str]:
    """Return the full names of the table's segments."""
    stream = table + names.TABLE_SUFFIX
    return [names.qualified_segment_name(scope, stream, segment.identifier) for segment in partitions(record)]


def check_table(record: TableRecord) -> None:
    """Raise BadRequestError that names the first invalid field."""
    if not 1 <= record.partitions <= limits.TABLE_PARTITIONS_MAX:
        raise BadRequestError(f"partitionCount is {record.partitions}, allowed are 1 to {limits.TABLE_PARTITIONS_MAX}")
    if record.primary_key_length < 1:
        raise BadRequestError(f"primaryKeyLength is {record.primary_key_length}, at least 1 is required")
    if record.secondary_key_length < 0:
        raise BadRequestError(f"secondaryKeyLength is {record.secondary_key_length}, it must not be negative")
    length = record.primary_key_length + record.secondary_key_length
    if length > limits.ATTRIBUTE_KEY_MAX_BYTES:
        raise BadRequestError(
            f"primaryKeyLength and secondaryKeyLength are {length} together, at most {limits.ATTRIBUTE_KEY_MAX_BYTES}"
        )


class TableManager:
    """Creation and deletion of key-value tables."""

    def __init__(self, context: WorkflowContext, entities: EntityDriver) -> None:
        self._context = context
        self._scopes = context.scopes
        self._entities = entities
        entities.register(TABLE, self._step)

    async def load(self, scope: str, table: str, *, leaving: bool = False) -> TableRecord:
        """Return the table's record; with `leaving` also while the table is being created or deleted.

        Raises:
            NoSuchTableError.
        """
        record = await self._scopes.get(scope, TABLES + table, TableRecord)
        if record is None or (record.intent and not leaving):
            raise NoSuchTableError(f"key-value table {scope}/{table} does not exist")
        return record

    async def create(self, scope: str, table: str, record: TableRecord) -> bool:
        """Create a table; return False when it exists. Waits for a deletion of the same name.

        Raises:
            NoSuchScopeError, BadRequestError. WriteConflictError: it was deleted again and again meanwhile.
        """
        check_table(record)
        name = TABLES + table

        async def persist() -> bool:
            await self._scopes.require(scope)
            if await self._scopes.get(scope, name, TableRecord) is not None:
                return False
            await self._scopes.add(scope, name, msgspec.structs.replace(record, intent="create"))
            return True

        for _ in range(limits.ENTITY_CREATIONS_MAX):
            fresh = await self._entities.perform(Entity(TABLE, scope, table), persist)
            stored = await self._scopes.get(scope, name, TableRecord)
            if stored is not None:
                return fresh and stored.nonce == record.nonce
            await self._scopes.require(scope)
            if fresh:
                return True  # it was created, and deleted since
        raise WriteConflictError(f"key-value table {scope}/{table} was deleted while it was created; retry")

    async def delete(self, scope: str, table: str, nonce: bytes | None = None, *, nested: bool = False) -> None:
        """Delete a table and its contents; with `nonce` only that table. Raises NoSuchTableError.

        `nested` as in `EntityDriver.perform`.
        """
        meant = nonce or (await self.load(scope, table, leaving=True)).nonce

        def decide(snapshot: Snapshot, key: bytes) -> Change[None]:
            stored = snapshot.get(TableRecord, key)
            if stored is None or stored.nonce != meant:
                raise NoSuchTableError(f"key-value table {scope}/{table} does not exist")
            return Change(None, {key: msgspec.structs.replace(stored, intent="delete")})

        async def persist() -> None:
            await self._scopes.change(scope, TABLES + table, decide)

        await self._entities.perform(Entity(TABLE, scope, table), persist, nested=nested)

    async def _step(self, scope: str, table: str) -> None:
        record = await self._scopes.get(scope, TABLES + table, TableRecord)
        if record is None or not record.intent:
            return
        segments = partition_names(scope, table, record)
        if record.intent == "delete":
            await self._context.segments.delete_tables(segments)
            await self._scopes.remove_exactly(scope, TABLES + table, record)
            return
        await self._context.segments.create_tables(segments, record.primary_key_length + record.secondary_key_length)

        def decide(snapshot: Snapshot, key: bytes) -> Change[bool]:
            now = snapshot.get(TableRecord, key)
            if now is None or now.nonce != record.nonce or now.intent == "delete":
                return Change(False)
            return Change(True, {key: msgspec.structs.replace(record, intent="")} if now == record else {})

        stays = False
        with contextlib.suppress(NoSuchScopeError):
            stays = await self._scopes.change(scope, TABLES + table, decide)
        if not stays:  # another controller deleted the table meanwhile, perhaps before the last of them was created
            await self._context.segments.delete_tables(segments)
