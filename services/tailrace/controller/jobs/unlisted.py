"""List the streams that jobs work on, and that an earlier version has not listed.

A job reads the streams that a table lists for it. Versions before there was such a table do not write to it. So the
controller that gets more buckets looks through all of their streams: at its start, and when another controller ends,
which may have been of such a version.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from tailrace.common import limits, names
from tailrace.common.errors import NoSuchScopeError
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.metadata.metadata_store import MARKED_TABLE, RETENTION_TABLE, bucket_of
from tailrace.controller.metadata.scope_store import STREAMS
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows import marked, retained

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace.controller.workflows.context import WorkflowContext

_INTERNAL: Final = (names.MARK_PREFIX, names.READER_GROUP_PREFIX)


async def list_unlisted(context: WorkflowContext, buckets: Collection[int]) -> None:
    """List the streams of the buckets that have a retention policy or writers that noted times."""
    if not buckets:
        return
    scopes, token = context.scopes, ""
    while True:
        found, token = await scopes.list_scopes(limits.LIST_PAGE_ENTRIES_MAX, token)
        if not found:
            return
        for scope in found:
            with contextlib.suppress(NoSuchScopeError):
                await _list_unlisted_of(context, scope, buckets)


async def _list_unlisted_of(context: WorkflowContext, scope: str, buckets: Collection[int]) -> None:
    async def look(key: StreamKey) -> None:
        await _list_if_unlisted(context, key)

    token = ""
    while True:
        found, token = await context.scopes.list_names(scope, STREAMS, limits.LIST_PAGE_ENTRIES_MAX, token)
        if not found:
            return
        keys = [StreamKey(scope, name) for name in found if not name.startswith(_INTERNAL)]
        await gather_bounded([key for key in keys if bucket_of(*key) in buckets], look)


async def _list_if_unlisted(context: WorkflowContext, key: StreamKey) -> None:
    root = await context.store.load(key)
    if root is None:
        return
    if root.config.retention is not None and not await _is_listed(context, RETENTION_TABLE, key):
        await retained.note(context, key, root)
    if root.writers and not await _is_listed(context, MARKED_TABLE, key):
        await marked.note(context, key)


async def _is_listed(context: WorkflowContext, table: str, key: StreamKey) -> bool:
    (entry,) = await context.store.metadata.get(table, [key.root])
    return entry is not None
