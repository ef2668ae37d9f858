"""Create a stream: its scope entry, segments and mark stream, then ACTIVE.

See docs/protocol/controller.md#streams, docs/protocol/naming.md#names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.common import names
from tailrace.common.errors import BadRequestError, NoSuchScopeError, WriteConflictError
from tailrace.common.stream_policies import StreamConfig
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.model import Epoch, StreamState
from tailrace.controller.metadata.records import CreateIntent, StreamRecord
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.metadata.transitions import finished, new_stream, next_incarnation, tombstone
from tailrace.controller.workflows import leftovers, listing, retained
from tailrace.controller.workflows.context import segment_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.records import ScopeRecord
    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)

MARK_CONFIG = StreamConfig()


def mark_of(key: StreamKey) -> StreamKey | None:
    """Return the mark stream of a stream; None for a mark stream."""
    if key.stream.startswith(names.MARK_PREFIX):
        return None
    return StreamKey(key.scope, names.MARK_PREFIX + key.stream)


async def create(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, listed_in: ScopeRecord | None = None
) -> None:
    """Bring a stream from CREATING to ACTIVE. ``listed_in`` is for a mark stream: the scope that lists its stream.

    Removes it when its scope was deleted before it was listed, or when the segment store refuses its configuration.
    Where one of its segments was there before, as after a restore, the next step goes on with other ones.
    """
    epoch = await context.store.epoch(key, root, 0)
    if epoch.numbers_skipped:
        await leftovers.leave_incarnation(context, key, root)
    mark = mark_of(key)
    first_mark = _presumed_first(context, mark, root)
    try:
        listed = await listing.add_new(context, key, root, listed_in, None if first_mark is None else mark)
    except NoSuchScopeError:
        await _give_up(context, key, root)
        return
    await retained.note(context, key, root)
    segments = segment_names(key, epoch.segments)
    try:
        used = await context.segments.create(segments, root.config)
    except BadRequestError as error:
        _LOG.error("stream_creation_undone", stream=str(key), reason=f"the segment store refuses it: {error}")
        await _delete_unused(context, segments, await context.segments.used(segments))
        if mark is not None:
            await listing.remove_mark(context, key, root, mark)
        await listing.remove(context, key, root)
        await _give_up(context, key, root)
        return
    if used and await leftovers.create_again(context, key, root, epoch):
        return  # the next step creates the other segments
    try:
        if used:  # another controller does so
            await listing.require_current(context, key, root)
        if mark is not None and not (
            first_mark is not None and listed.with_mark and await _create_first_mark(context, mark, first_mark)
        ):
            await _create_mark(context, mark, await _mark_before(context, key, mark, root), listed.owner)
        is_finished = await _finish(context, key, root)
    except WriteConflictError:
        await _delete_late(context, key, root, segments, used)
        raise
    if not is_finished:
        await _delete_late(context, key, root, segments, used)


async def _delete_late(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, segments: Sequence[str], used: Sequence[str]
) -> None:
    """Delete segments that were created after another controller had finished this creation, and the stream is gone."""
    if listing.is_gone(await context.store.load(key), root):  # so no record names these segments
        await _delete_unused(context, segments, used)


async def _delete_unused(context: WorkflowContext, segments: Sequence[str], used: Sequence[str]) -> None:
    """Delete the segments that a creation leaves behind; those of a lost life stay."""
    kept = frozenset(used)
    await context.segments.delete([each for each in segments if each not in kept])


def _presumed_first(context: WorkflowContext, mark: StreamKey | None, root: StreamRecord) -> Snapshot | None:
    """Return the missing root of a mark stream whose stream was never created before; None when it may be there.

    What relies on it is written under the condition that it is missing. Where that fails, the root is remembered.
    """
    if mark is None or root.incarnation != next_incarnation(None):
        return None
    return context.store.presumed_missing(mark)


async def _create_first_mark(context: WorkflowContext, mark: StreamKey, missing: Snapshot) -> bool:
    """Create a mark stream that is listed and was never created: its segment, then its records, ACTIVE by one write.

    Returns False where the root or the bytes of a lost life are there: the mark stream needs the steps of any stream.
    """
    puts = new_stream(mark, None, MARK_CONFIG, context.clock.now_ms(), context.new_id())
    root, epoch = puts[mark.root], puts[mark.epoch(next_incarnation(None), 0)]
    assert isinstance(root, StreamRecord)
    assert isinstance(epoch, Epoch)
    segments = segment_names(mark, epoch.segments)
    if await context.segments.create(segments, MARK_CONFIG):
        return False

    def decide(current: StreamRecord | None, _: Snapshot) -> Change[bool]:
        if current is not None:
            return Change(False)
        return Change(True, {**puts, mark.root: finished(root, StreamState.ACTIVE)})

    is_created = await context.store.change(mark, (), decide, first=missing)
    if not is_created:
        await _delete_late(context, mark, root, segments, ())
    return is_created


async def _mark_before(context: WorkflowContext, key: StreamKey, mark: StreamKey, root: StreamRecord) -> Snapshot:
    """Return the mark stream's root. It may be newer than this workflow, so the workflow is looked for after it."""
    before = await context.store.read(mark, [mark.root], remember=True)
    await listing.require_current(context, key, root)
    return before


async def _create_mark(context: WorkflowContext, mark: StreamKey, before: Snapshot, owner: ScopeRecord) -> None:
    """Create the mark stream within its stream's workflow, with the same steps.

    `before` is its root as it was read before the workflow was checked: it is written under that version.
    """
    root = before.get(StreamRecord, mark.root)
    if root is None or root.state is StreamState.DELETED:
        await _begin_mark(context, mark, before)
    begun = await context.store.latest(mark)
    while begun is not None and isinstance(begun.intent, CreateIntent):
        await create(context, mark, begun, owner)
        before_it, begun = begun, await context.store.latest(mark)
        if begun == before_it:
            raise WriteConflictError(f"stream {mark} is being created by another controller")


async def _begin_mark(context: WorkflowContext, mark: StreamKey, before: Snapshot) -> None:
    """Persist the intent to create the mark stream in the place of `before`."""
    intent_id = context.new_id()
    known = before.get(StreamRecord, mark.root)

    def decide(root: StreamRecord | None, _: Snapshot) -> Change[None]:
        if root is not None and root.state is not StreamState.DELETED:
            return Change(None)
        if known != root:
            raise WriteConflictError(f"stream {mark} was created and deleted by another controller")
        return Change(None, new_stream(mark, root, MARK_CONFIG, context.clock.now_ms(), intent_id))

    await context.store.change(mark, (), decide, first=before)


async def _finish(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    """Make the stream ACTIVE; return False when another controller has finished its creation."""

    def decide(current: StreamRecord | None, _: Snapshot) -> Change[bool]:
        if current is None or current.intent != root.intent:
            return Change(False)
        return Change(True, {key.root: finished(current, StreamState.ACTIVE)})

    return await context.store.change(key, (), decide, by_memory=True)


async def _give_up(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    def decide(current: StreamRecord | None, _: Snapshot) -> Change[bool]:
        if current is None or current.intent != root.intent:
            return Change(False)
        return Change(True, {key.root: tombstone(current)})

    if await context.store.change(key, (), decide):
        await context.store.remove(key, [key.epoch(root.incarnation, 0)])
