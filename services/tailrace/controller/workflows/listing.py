"""Add and remove a stream's entry in the list of its scope (docs/design.md#controller).

The entry is in another table than the stream's root, so no write can depend on both. A controller that was paused may
continue a workflow that another one has finished, under a name that exists again since. Therefore an entry holds the
incarnation of its stream, it is written and removed under the version read, and between that read and the write the
workflow is checked again in the stream's root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import NoSuchScopeError, WriteConflictError
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.records import ScopeStreamEntry, StreamRecord
from tailrace.controller.metadata.scope_store import STREAMS

if TYPE_CHECKING:
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


async def require_current(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Raise WriteConflictError unless the stream is still in the workflow that `root` was read in."""
    now = await context.store.load(key)
    if now is None or now.incarnation != root.incarnation or now.intent != root.intent:
        raise WriteConflictError(f"stream {key}: another controller has finished this workflow")


async def is_gone(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    """Return whether the stream of that root is deleted or being deleted. Another stream may have its name."""
    now = await context.store.load(key)
    if now is None or now.incarnation != root.incarnation:
        return True
    return now.state in (StreamState.DELETING, StreamState.DELETED)


async def add(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """List a stream that is being created, or update the tags of its entry.

    Raises:
        NoSuchScopeError: the scope does not exist, or is being deleted and does not list the stream yet.
        WriteConflictError: the stream is not in that workflow any more.
    """
    scopes, name = context.scopes, STREAMS + key.stream
    entry = ScopeStreamEntry(root.config.tags, root.incarnation)
    for _ in range(limits.METADATA_CONFLICTS_MAX):
        owner, found, version = await scopes.entry(key.scope, name, ScopeStreamEntry)
        if found == entry:
            return
        if owner.deleting and (found is None or found.incarnation != root.incarnation):
            raise NoSuchScopeError(f"scope {key.scope} is being deleted")
        await require_current(context, key, root)
        try:
            version = await scopes.put_entry(key.scope, owner, name, entry, version)
        except WriteConflictError:
            continue
        if found is None:
            await _look_again(context, key, root, owner.nonce, version)
        return
    raise WriteConflictError(f"scope {key.scope}: {limits.METADATA_CONFLICTS_MAX} changes of one entry in a row")


async def _look_again(context: WorkflowContext, key: StreamKey, root: StreamRecord, nonce: bytes, version: int) -> None:
    """Remove a new entry when the scope or stream was deleted before it was written: no other step removes it."""
    now = await context.scopes.load(key.scope)
    if now is None or now.nonce != nonce:
        await context.scopes.remove_entry(key.scope, nonce, STREAMS + key.stream, version)
        raise NoSuchScopeError(f"scope {key.scope} is being deleted")
    if await is_gone(context, key, root):
        await context.scopes.remove_entry(key.scope, nonce, STREAMS + key.stream, version)
        raise WriteConflictError(f"stream {key}: another controller has finished this workflow")


async def remove(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Unlist a stream that is being deleted. Raises WriteConflictError when it is not in that workflow."""
    scopes, name = context.scopes, STREAMS + key.stream
    for _ in range(limits.METADATA_CONFLICTS_MAX):
        try:
            owner, found, version = await scopes.entry(key.scope, name, ScopeStreamEntry)
        except NoSuchScopeError:
            return
        if found is None or found.incarnation > root.incarnation:
            return
        await require_current(context, key, root)
        if await scopes.remove_entry(key.scope, owner.nonce, name, version):
            return
    raise WriteConflictError(f"scope {key.scope}: {limits.METADATA_CONFLICTS_MAX} changes of one entry in a row")
