"""Deletion of scopes, empty ones and with everything in them (controller §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import names
from tailrace.common.errors import NoSuchReaderGroupError, NoSuchStreamError, NotAllowedError, NotEmptyError
from tailrace.controller.records import CreateIntent
from tailrace.controller.scopes import READER_GROUPS, STREAMS, TABLES
from tailrace.controller.store import StreamKey
from tailrace.controller.workflows.delete import delete_mark
from tailrace.controller.workflows.entities import SCOPE, Entity, EntityDriver
from tailrace.controller.workflows.tables import NoSuchTableError

if TYPE_CHECKING:
    from tailrace.controller.streams import StreamManager
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.driver import StreamDriver
    from tailrace.controller.workflows.groups import ReaderGroupManager
    from tailrace.controller.workflows.tables import TableManager


class ScopeManager:
    """Deletes scopes."""

    def __init__(
        self,
        context: WorkflowContext,
        entities: EntityDriver,
        driver: StreamDriver,
        streams: StreamManager,
        groups: ReaderGroupManager,
        tables: TableManager,
    ) -> None:
        self._context = context
        self._scopes = context.scopes
        self._entities = entities
        self._driver = driver
        self._streams = streams
        self._groups = groups
        self._tables = tables
        entities.register(SCOPE, self._step)

    async def delete(self, scope: str, *, recursive: bool) -> None:
        """Delete the scope, with everything in it if `recursive`.

        Raises:
            NoSuchScopeError. NotEmptyError: something is in it. NotAllowedError: it is the internal one.
        """
        if scope == names.INTERNAL_SCOPE:
            raise NotAllowedError(f"scope {scope} cannot be deleted")
        record = await self._scopes.require_existing(scope)
        if not recursive and not record.deleting and not await self._scopes.is_empty(scope, record):
            raise NotEmptyError(f"scope {scope} is not empty")

        async def persist() -> None:
            await self._scopes.mark_deleting(scope, record.nonce, recursive=recursive)

        # by the scope's nonce, so that a workflow that is taken up late never deletes a scope created again
        await self._entities.perform(Entity(SCOPE, scope, record.nonce.hex()), persist)
        after = await self._scopes.load(scope)
        if after is not None and after.nonce == record.nonce:
            raise NotEmptyError(f"scope {scope} is not empty")

    async def _step(self, scope: str, nonce_hex: str) -> None:
        nonce = bytes.fromhex(nonce_hex)
        record = await self._scopes.deletion(scope)
        if record is not None and record.nonce == nonce and record.recursive:
            await self._empty(scope)
        try:
            await self._scopes.delete(scope, nonce)
        except NotEmptyError:
            if record is not None and record.recursive:
                raise  # something that was being created is listed now
            await self._scopes.unmark(scope)

    async def _empty(self, scope: str) -> None:
        for group in await self._scopes.list_all(scope, READER_GROUPS):
            try:
                await self._groups.delete(scope, group, None)
            except NoSuchReaderGroupError:
                continue
        for stream in await self._scopes.list_all(scope, STREAMS):
            if not stream.startswith(names.MARK_PREFIX):
                await self._delete_stream(StreamKey(scope, stream))
        for stream in await self._scopes.list_all(scope, STREAMS):
            await delete_mark(self._context, StreamKey(scope, stream))  # one that lost its stream
        for table in await self._scopes.list_all(scope, TABLES):
            try:
                await self._tables.delete(scope, table)
            except NoSuchTableError:
                continue

    async def _delete_stream(self, key: StreamKey) -> None:
        root = await self._context.store.load(key)
        if root is not None and isinstance(root.intent, CreateIntent):
            await self._driver.wait(key, root.intent.intent_id)
        try:
            await self._streams.seal(key)
            await self._streams.delete(key)
        except NoSuchStreamError:
            return
