"""Delete scopes, empty ones or with all their contents (docs/protocol/controller.md#scopes)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.common import names
from tailrace.common.errors import (
    NoSuchReaderGroupError,
    NotAllowedError,
    NotEmptyError,
    WriteConflictError,
)
from tailrace.controller.managers.tables import NoSuchTableError
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.records import ScopeStreamEntry
from tailrace.controller.metadata.scope_store import READER_GROUPS, STREAMS, TABLES
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.metadata.transitions import next_incarnation
from tailrace.controller.workflows import listing
from tailrace.controller.workflows.delete import delete_mark
from tailrace.controller.workflows.entities import SCOPE, Entity, EntityDriver

if TYPE_CHECKING:
    from tailrace.controller.managers.groups import ReaderGroupManager
    from tailrace.controller.managers.streams import StreamManager
    from tailrace.controller.managers.tables import TableManager
    from tailrace.controller.workflows.context import WorkflowContext


class ScopeManager:
    """Delete scopes."""

    def __init__(
        self,
        context: WorkflowContext,
        entities: EntityDriver,
        *,
        streams: StreamManager,
        groups: ReaderGroupManager,
        tables: TableManager,
    ) -> None:
        self._context = context
        self._scopes = context.scopes
        self._entities = entities
        self._streams = streams
        self._groups = groups
        self._tables = tables
        entities.register(SCOPE, self._step)

    async def delete(self, scope: str, *, recursive: bool) -> None:
        """Delete the scope, with all its contents if `recursive`.

        Raises:
            NoSuchScopeError. NotEmptyError: the scope has contents. NotAllowedError: it is the internal scope.
        """
        if scope == names.INTERNAL_SCOPE:
            raise NotAllowedError(f"scope {scope} is internal and cannot be deleted")
        record = await self._scopes.require_existing(scope)
        if not recursive and not record.deleting and not await self._scopes.is_empty(scope, record):
            raise NotEmptyError(f"scope {scope} is not empty")

        async def persist() -> None:
            await self._scopes.mark_deleting(scope, record.nonce, recursive=recursive)

        # named by the scope's nonce, so that a workflow resumed late never deletes a scope that was created again
        await self._entities.perform(Entity(SCOPE, scope, record.nonce.hex()), persist)
        after = await self._scopes.load(scope)
        if after is not None and after.nonce == record.nonce:
            raise NotEmptyError(f"scope {scope} is not empty")

    async def _step(self, scope: str, nonce_hex: str) -> None:
        nonce = bytes.fromhex(nonce_hex)
        living = await self._scopes.load(scope)
        if living is not None and living.nonce == nonce:
            return  # the mark of the deletion was never written, or it was cancelled
        record = await self._scopes.deletion(scope)
        if record is not None and record.nonce == nonce and record.recursive:
            await self._empty(scope, nonce)
        try:
            await self._scopes.delete(scope, nonce)
        except NotEmptyError:
            if record is not None and record.recursive:
                raise  # an entry was added by a creation that was running
            await self._scopes.unmark(scope, nonce)

    async def _empty(self, scope: str, nonce: bytes) -> None:
        for group in await self._scopes.list_all(scope, READER_GROUPS):
            with contextlib.suppress(NoSuchReaderGroupError):
                group_id = (await self._groups.load(scope, group, leaving=True)).group_id
                await self._require_deleting(scope, nonce)
                await self._groups.delete(scope, group, group_id, nested=True)
        for stream in await self._scopes.list_all(scope, STREAMS):
            if not stream.startswith(names.MARK_PREFIX):
                await self._delete_stream(StreamKey(scope, stream), nonce)
        for stream in await self._scopes.list_all(scope, STREAMS):
            mark = StreamKey(scope, stream)  # a mark stream without its stream
            before = await self._context.store.load(mark)
            await self._require_deleting(scope, nonce)
            if before is None or before.state is StreamState.DELETED:
                await self._unlist(mark)
            else:
                await delete_mark(self._context, mark, before)
        for table in await self._scopes.list_all(scope, TABLES):
            with contextlib.suppress(NoSuchTableError):
                record = await self._tables.load(scope, table, leaving=True)
                await self._require_deleting(scope, nonce)
                await self._tables.delete(scope, table, record.nonce, nested=True)

    async def _delete_stream(self, key: StreamKey, nonce: bytes) -> None:
        root = await self._context.store.load(key)
        await self._require_deleting(key.scope, nonce)
        if root is None or root.state is StreamState.DELETED:
            await self._unlist(key)
            return
        await self._streams.remove(key, root)

    async def _unlist(self, key: StreamKey) -> None:
        """Remove the entry of a stream that does not exist.

        After a restore the scope may list a stream whose records are older than the entry, or do not know it. Then they
        leave out the incarnations up to that of the entry, as if the stream had been deleted.
        """
        _, entry, _ = await self._scopes.entry(key.scope, STREAMS + key.stream, ScopeStreamEntry)
        if entry is None:
            return
        root = await self._context.store.load(key)
        for incarnation in range(next_incarnation(root), entry.incarnation + 1):
            await self._streams.forgo(key, incarnation)
        root = await self._context.store.load(key)
        if root is not None and root.state is StreamState.DELETED:
            await listing.remove(self._context, key, root)

    async def _require_deleting(self, scope: str, nonce: bytes) -> None:
        """Raise WriteConflictError unless the scope of that nonce is still being deleted.

        Another controller may have finished the deletion, and the scope may exist again with other contents of the same
        names. A record that was read before this check then belongs to the deleted scope.
        """
        record = await self._scopes.deletion(scope)
        if record is None or record.nonce != nonce:
            raise WriteConflictError(f"scope {scope} was deleted by another controller")
