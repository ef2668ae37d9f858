"""A stream's entry in the list of its scope, kept right by whichever controllers run its workflows (design §10).

The entry is in another table than the stream's root, so no write can depend on both. A controller that stood still may
go on with a workflow that others have finished long ago, on a name that may have been created again since. Therefore
entries tell the incarnation that they belong to, they are written and removed under the version read, and between that
read and the write the workflow is looked for again in the stream's root.
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
        raise WriteConflictError(f"stream {key}: another controller has finished what this one was doing")


async def is_gone(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    """Whether the stream of that root is being deleted or was, whatever bears its name now."""
    now = await context.store.load(key)
    if now is None or now.incarnation != root.incarnation:
        return True
    return now.state in (StreamState.DELETING, StreamState.DELETED)


async def add(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """List a stream that is being created, or bring the tags of its entry up to date.

    Raises:
        NoSuchScopeError: there is no such scope, or it is being deleted and the stream is not listed yet.
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
    """Take a new entry back when scope or stream went away before it was there: then nobody else will."""
    now = await context.scopes.load(key.scope)
    if now is None or now.nonce != nonce:
        await context.scopes.remove_entry(key.scope, nonce, STREAMS + key.stream, version)
        raise NoSuchScopeError(f"scope {key.scope} is being deleted")
    if await is_gone(context, key, root):
        await context.scopes.remove_entry(key.scope, nonce, STREAMS + key.stream, version)
        raise WriteConflictError(f"stream {key}: another controller has finished what this one was doing")


async def remove(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Take a stream that is being deleted off the list. Raises WriteConflictError: it is not in that workflow."""
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
