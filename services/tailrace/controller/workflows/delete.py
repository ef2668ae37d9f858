"""Delete a sealed stream with its mark stream, and keep its counters.

See docs/protocol/controller.md#streams, docs/protocol/naming.md#names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import WriteConflictError
from tailrace.common.names import segment_epoch, segment_id
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.epochs import epoch_span
from tailrace.controller.metadata.model import Epoch, StreamState
from tailrace.controller.metadata.records import (
    CompletedChunk,
    DeleteIntent,
    RetentionRecord,
    StreamRecord,
    SubscribersRecord,
)
from tailrace.controller.metadata.transaction_ledger import shard_keys
from tailrace.controller.metadata.transitions import deleting, tombstone
from tailrace.controller.workflows import listing
from tailrace.controller.workflows.completed import completed_chunks, drop_oldest
from tailrace.controller.workflows.context import segment_name
from tailrace.controller.workflows.create import mark_of
from tailrace.controller.workflows.segments import Progress

if TYPE_CHECKING:
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


async def delete(context: WorkflowContext, key: StreamKey, root: StreamRecord, progress: Progress) -> bool:
    """Bring a stream from DELETING to its tombstone; return False after a part of it.

    While it remembers transactions a chunk of them is forgotten, then a part of its segments deleted: however many they
    are, a step has time for its part.
    """
    chunks = completed_chunks(root)
    if chunks:
        item = key.completed(root.incarnation, chunks[0])
        found = (await context.store.read(key, [item])).get(CompletedChunk, item)
        await drop_oldest(context, key, root, found)
        return False
    if not await _delete_segments(context, key, root, progress):
        return False
    mark = mark_of(key)
    if mark is not None:
        before = await context.store.load(mark)
        await listing.require_current(context, key, root)
        await delete_mark(context, mark, before)
    await listing.remove(context, key, root)
    await _remove_records(context, key, root)

    def decide(current: StreamRecord | None, _: Snapshot) -> Change[None]:
        if current is None or current.intent != root.intent:
            return Change(None)
        return Change(None, {key.root: tombstone(current)})

    await context.store.change(key, (), decide)
    return True


async def _delete_segments(context: WorkflowContext, key: StreamKey, root: StreamRecord, progress: Progress) -> bool:
    """Delete a part of the stream's segments, by their ids; return whether it was the last one.

    Missing segments and epoch records count as deleted. The position is the lowest id that may be left.
    """
    if not progress.ahead:
        await _find_segments(context, key, root, progress)
    part = progress.ahead[: limits.WORKFLOW_STEP_SEGMENTS_MAX]
    await context.segments.delete([segment_name(key, each) for each in part])
    progress.ahead = progress.ahead[len(part) :]
    progress.position = part[-1] + 1 if progress.ahead else progress.end
    return segment_epoch(progress.position) > root.active_epoch


async def _find_segments(context: WorkflowContext, key: StreamKey, root: StreamRecord, progress: Progress) -> None:
    """Remember the next segments to delete, and where the search for those after them begins."""
    position = max(progress.position, segment_id(0, _first_epoch(key, root)))
    first = segment_epoch(position)
    numbers = range(first, root.active_epoch + 1)[: limits.RECORDS_PER_READ_MAX]
    parts = context.store.parts(key, [key.epoch(root.incarnation, number) for number in numbers])
    left: set[int] = set()
    if numbers:  # what one part has is deleted before more is read
        snapshot = await anext(parts)
        for item in snapshot.stored:
            epoch = snapshot.get(Epoch, item)
            if epoch is not None:
                left.update(each.identifier for each in epoch.segments if each.identifier >= position)
    progress.end = segment_id(0, first + parts.done)
    progress.ahead = sorted(left)[: limits.TRUNCATED_SEGMENTS_AHEAD_MAX]
    if len(progress.ahead) < len(left):
        progress.end = progress.ahead[-1] + 1


def _first_epoch(key: StreamKey, root: StreamRecord) -> int:
    """Return the first epoch with segments that no truncation has deleted.

    A sealed stream's truncations have ended, and deleted every segment that is older than all of the cut. A mark stream
    is deleted in any state: its last truncation may not have ended.
    """
    if root.truncation is None or mark_of(key) is None:
        return 0
    return epoch_span(root.truncation)[0]


async def delete_mark(context: WorkflowContext, mark: StreamKey, before: StreamRecord | None) -> None:
    """Delete a mark stream, sealed or not, if it is the stream of `before`."""
    intent_id = context.new_id()

    def decide(current: StreamRecord | None, _: Snapshot) -> Change[StreamRecord | None]:
        if current is None or current.state is StreamState.DELETED:
            return Change(None)
        if before is None or current.incarnation != before.incarnation:
            raise WriteConflictError(f"stream {mark} was created again")
        if isinstance(current.intent, DeleteIntent):
            return Change(current)
        root = deleting(current, intent_id)
        return Change(root, {mark.root: root})

    progress = Progress()
    root = await context.store.change(mark, (), decide)
    while root is not None and not await delete(context, mark, root, progress):
        root = await context.store.change(mark, (), decide)


async def _remove_records(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Remove the other records. The root names them all, so an interrupted run is repeated in full."""
    epochs = range(root.active_epoch + 2)
    await _remove_subscribers(context, key, root)
    await _remove_shared(context, key, root)
    await _remove_retention_set(context, key, root)
    await context.store.remove(key, [key.sealed(root.incarnation, epoch) for epoch in epochs])
    await context.store.remove(key, [key.epoch(root.incarnation, epoch) for epoch in epochs])


async def _remove_shared(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Remove records whose keys a later stream of the same name uses too, under the versions read before."""
    shared = [key.subscribers, *shard_keys(key), *(key.writer(writer) for writer in root.writers)]
    async for snapshot in context.store.parts(key, shared, beside=[key.root]):
        now = snapshot.get(StreamRecord, key.root)
        if now is None or now.intent != root.intent:
            raise WriteConflictError(f"stream {key} was deleted by another controller")
        read = [(item, stored) for item, stored in snapshot.stored.items() if item != key.root]
        found = [(item, stored.version) for item, stored in read if stored is not None]
        if found:
            await context.store.metadata.remove(key.table, found)


async def _remove_subscribers(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Remove the records of the subscribers that the index names, before the index. A deleting stream gets no more."""
    found = (await context.store.read(key, [key.subscribers])).get(SubscribersRecord, key.subscribers)
    if found is not None and found.index:
        await context.store.remove(key, [key.subscriber(root.incarnation, name) for name in found.index])


async def _remove_retention_set(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    item = key.retention(root.incarnation)
    found = (await context.store.read(key, [item])).get(RetentionRecord, item)
    if found is not None:
        cuts = [key.retention_cut(root.incarnation, each.number) for each in found.recorded]
        await context.store.remove(key, cuts)
        await context.store.remove(key, [item])
