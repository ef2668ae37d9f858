"""Add and remove a stream's entry in the list of its scope (docs/design.md#controller).

The entry is in another table than the stream's root, so no write can depend on both. A controller that was paused may
continue a workflow that another one has finished, under a name that exists again since. Therefore an entry holds the
incarnation of its stream, it is written and removed under the version read, and between that read and the write the
workflow is checked again in the stream's root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits
from tailrace.common.errors import NoSuchScopeError, NoSuchSegmentError, WriteConflictError
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.records import ScopeStreamEntry
from tailrace.controller.metadata.scope_store import STREAMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.controller.metadata.records import ScopeRecord, StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


async def require_current(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Raise WriteConflictError unless the stream is still in the workflow that `root` was read in."""
    require_same(key, await context.store.load(key), root)


def require_same(key: StreamKey, now: StreamRecord | None, root: StreamRecord) -> None:
    """Raise WriteConflictError unless `now` is in the workflow of `root`."""
    if now is None or now.incarnation != root.incarnation or now.intent != root.intent:
        raise WriteConflictError(f"stream {key}: another controller has finished this workflow")


def is_gone(now: StreamRecord | None, root: StreamRecord) -> bool:
    """Return whether the stream of `root` is deleted or being deleted `now`. Another stream may have its name."""
    if now is None or now.incarnation != root.incarnation:
        return True
    return now.state in (StreamState.DELETING, StreamState.DELETED)


class Listed(NamedTuple):
    """The scope that lists a stream, and whether the entry of its mark stream was written with that of the stream."""

    owner: ScopeRecord
    with_mark: bool = False


async def add_new(
    context: WorkflowContext,
    key: StreamKey,
    root: StreamRecord,
    listed_in: ScopeRecord | None = None,
    mark: StreamKey | None = None,
) -> Listed:
    """List a stream that is being created, and index its tags.

    It is written as one that is not listed yet, without a look, into the scope that this controller read last. Scope
    and stream are read again afterwards, so a late step takes back what it wrote. When the stream is listed already, by
    an earlier run of this step, or its scope is being deleted, `add` does the rest.

    ``listed_in`` is for a mark stream: the scope that lists its stream. It stays until that stream is deleted, which
    deletes the mark stream, too. With ``mark``, a mark stream that was never created, one write lists both.

    Raises:
        NoSuchScopeError, WriteConflictError: as `add`.
    """
    owner = await context.scopes.latest(key.scope) if listed_in is None else listed_in
    is_mark = listed_in is not None
    if owner.deleting and not is_mark:
        return Listed(await add(context, key, root))
    entry = _following(None, root)
    entries = {key: entry} if mark is None else {key: entry, mark: ScopeStreamEntry()}
    try:
        versions = await context.scopes.put_new(
            key.scope, owner, {STREAMS + each.stream: record for each, record in entries.items()}
        )
    except (WriteConflictError, NoSuchSegmentError):  # it is listed, or the scope has no table yet, or is gone
        return Listed(await add(context, key, root, is_mark=is_mark))
    written = dict(zip(entries, versions, strict=True))
    if not is_mark:
        await _look_for_scope(context, key, owner, written)
    await _look_for_stream(context, key, root, owner, written)
    if not await _index(context, key, owner, entry, written[key]):
        owner = await add(context, key, root, is_mark=is_mark)
    return Listed(owner, mark is not None)


async def add(context: WorkflowContext, key: StreamKey, root: StreamRecord, *, is_mark: bool = False) -> ScopeRecord:
    """List a stream that is being created, or update the tags of its entry; then index its tags. Return the scope.

    The scope of a mark stream lists its stream, so a deletion of the scope waits for both. An entry of a mark stream
    that is there already is written again, so that the step which wrote it cannot take it back.

    Raises:
        NoSuchScopeError: the scope does not exist, or is being deleted and does not list the stream yet.
        WriteConflictError: the stream is not in that workflow any more.
    """
    scopes, name = context.scopes, STREAMS + key.stream
    for _ in range(limits.METADATA_CONFLICTS_MAX):
        owner, found, version = await scopes.entry(key.scope, name, ScopeStreamEntry)
        entry = _following(found, root)
        if found != entry or is_mark:
            if owner.deleting and not is_mark and (found is None or found.incarnation != root.incarnation):
                raise NoSuchScopeError(f"scope {key.scope} is being deleted")
            await require_current(context, key, root)
            try:
                version = await scopes.put_entry(key.scope, owner, name, entry, version)
            except WriteConflictError:
                continue
            if found is None:
                if not is_mark:
                    await _look_for_scope(context, key, owner, {key: version})
                await _look_for_stream(context, key, root, owner, {key: version})
        if await _index(context, key, owner, entry, version):
            return owner
    raise WriteConflictError(f"scope {key.scope}: {limits.METADATA_CONFLICTS_MAX} changes of one entry in a row")


def _following(found: ScopeStreamEntry | None, root: StreamRecord) -> ScopeStreamEntry:
    """Return the entry that a stream is to have: with the tags of the root, and those that the index may still have."""
    tags, before = root.config.tags, () if found is None else (*found.tags, *found.leaving)
    leaving = dict.fromkeys(tag for tag in before if tag not in tags)
    return ScopeStreamEntry(tags, root.incarnation, tuple(sorted(leaving)))


async def _index(
    context: WorkflowContext, key: StreamKey, owner: ScopeRecord, entry: ScopeStreamEntry, version: int
) -> bool:
    """Index the tags of an entry that is stored; return False when the entry was changed meanwhile.

    An entry that says which tags leave is rewritten when they have left: a step that is cut short leaves none behind.
    """
    if entry.tags:
        pairs = [(tag, key.stream) for tag in entry.tags]
        await context.tags.put(key.scope, owner, pairs)
        await context.tags.drop(key.scope, owner, pairs)  # if the stream has lost them since: this step is late
    if not entry.leaving:
        return True
    await context.tags.drop(key.scope, owner, [(tag, key.stream) for tag in entry.leaving])
    settled = ScopeStreamEntry(entry.tags, entry.incarnation)
    try:
        await context.scopes.put_entry(key.scope, owner, STREAMS + key.stream, settled, version)
    except WriteConflictError:
        return False
    return True


async def _look_for_scope(
    context: WorkflowContext, key: StreamKey, owner: ScopeRecord, written: Mapping[StreamKey, int]
) -> None:
    """Remove new entries when the scope was deleted before they were written: no other step removes them.

    A deletion of this controller looks for entries after it has changed what the controller remembers of the scope.
    """
    now = await (context.scopes.remembered(key.scope) if context.config.sole else context.scopes.load(key.scope))
    if now is None or now.nonce != owner.nonce:
        await _take_back(context, key, owner, written)
        raise NoSuchScopeError(f"scope {key.scope} is being deleted")


async def _look_for_stream(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, owner: ScopeRecord, written: Mapping[StreamKey, int]
) -> None:
    """Remove new entries when the stream was deleted before they were written: no other step removes them."""
    store = context.store
    if is_gone(await (store.latest(key) if context.config.sole else store.load(key)), root):
        await _take_back(context, key, owner, written)
        raise WriteConflictError(f"stream {key}: another controller has finished this workflow")


async def _take_back(
    context: WorkflowContext, key: StreamKey, owner: ScopeRecord, written: Mapping[StreamKey, int]
) -> None:
    """Remove the entries of these versions of a stream and, unless that exists by now, of its mark stream.

    A step that creates the mark stream after this look writes the entry again (`add`), with another version. The entry
    of the stream goes last: while it is there, a step that is repeated goes on with the creation.
    """
    for each, version in reversed(list(written.items())):
        if each == key or _is_missing(await context.store.load(each)):
            await context.scopes.remove_entry(key.scope, owner.nonce, STREAMS + each.stream, version)


def _is_missing(root: StreamRecord | None) -> bool:
    return root is None or root.state is StreamState.DELETED


async def remove_mark(context: WorkflowContext, key: StreamKey, root: StreamRecord, mark: StreamKey) -> None:
    """Unlist the mark stream of a stream whose creation is undone, unless the mark stream exists.

    Raises:
        WriteConflictError: the stream is not in that workflow, or its mark stream was listed again.
    """
    name = STREAMS + mark.stream
    try:
        owner, found, version = await context.scopes.entry(key.scope, name, ScopeStreamEntry)
    except NoSuchScopeError:
        return
    if found is None or not _is_missing(await context.store.load(mark)):
        return
    await require_current(context, key, root)
    if not await context.scopes.remove_entry(key.scope, owner.nonce, name, version):
        raise WriteConflictError(f"stream {mark} was listed by another controller")


def _without_tags(entry: ScopeStreamEntry) -> ScopeStreamEntry:
    leaving = dict.fromkeys((*entry.tags, *entry.leaving))
    return ScopeStreamEntry((), entry.incarnation, tuple(sorted(leaving)))


async def remove(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    """Unlist a stream that is being deleted, or is deleted, by its root; return whether it was listed.

    Raises:
        WriteConflictError: the stream is not in that workflow, or was created again.
    """
    scopes, name = context.scopes, STREAMS + key.stream
    for _ in range(limits.METADATA_CONFLICTS_MAX):
        try:
            owner, found, version = await scopes.entry(key.scope, name, ScopeStreamEntry)
        except NoSuchScopeError:
            return False
        if found is None or found.incarnation > root.incarnation:
            return False
        await require_current(context, key, root)
        if found.tags:
            found = _without_tags(found)
            try:
                version = await scopes.put_entry(key.scope, owner, name, found, version)
            except WriteConflictError:
                continue
        if found.leaving:
            await context.tags.drop(key.scope, owner, [(tag, key.stream) for tag in found.leaving])
        if await scopes.remove_entry(key.scope, owner.nonce, name, version):
            return True
    raise WriteConflictError(f"scope {key.scope}: {limits.METADATA_CONFLICTS_MAX} changes of one entry in a row")
