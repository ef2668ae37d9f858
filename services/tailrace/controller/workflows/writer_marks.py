"""Keep the marks of writers that note times: at most a fixed number for each stream.

See docs/protocol/server.md#watermarks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.common.errors import WriteConflictError
from tailrace.common.names import segment_epoch
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.records import StreamRecord, WriterMark

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


def with_writer(root: StreamRecord, writer: str) -> StreamRecord:
    """Return the root with the writer in its list of marked writers."""
    if writer in root.writers:
        return root
    return msgspec.structs.replace(root, writers=(*root.writers, writer))


def has_room(root: StreamRecord, writer: str) -> bool:
    """Return whether the stream can keep a mark of that writer."""
    return writer in root.writers or len(root.writers) < limits.WRITER_MARKS_PER_STREAM_MAX


def mark_in(snapshot: Snapshot, item: bytes, root: StreamRecord, writer: str) -> WriterMark | None:
    """Return a writer's mark, which is under the key `item`, if the root lists the writer.

    Any other mark there is of an earlier stream of the name.
    """
    return snapshot.get(WriterMark, item) if writer in root.writers else None


def advanced(before: WriterMark | None, timestamp: int, position: Mapping[int, int], now_ms: int) -> WriterMark:
    """Return the mark after a commit at that time; `position` is the end of all segments of an epoch.

    Neither goes back, each on its own: a commit of an earlier time moves the position on.
    """
    if before is None:
        return WriterMark(timestamp, dict(position), now_ms)
    reached = _reached(position, before.position)
    if timestamp < before.timestamp:
        return msgspec.structs.replace(before, position=reached)
    return WriterMark(timestamp, reached, now_ms)


def _reached(position: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    """Return the position in all segments of an epoch, and the last one in those that were created later."""
    epoch = max(map(segment_epoch, position), default=-1)
    found = {identifier: max(offset, before.get(identifier, 0)) for identifier, offset in position.items()}
    found.update((each, offset) for each, offset in before.items() if segment_epoch(each) > epoch)
    return dict(sorted(found.items()))


async def make_room(context: WorkflowContext, key: StreamKey) -> None:
    """Forget writers of a full stream that were removed, or noted no time for ``limits.WRITER_MARK_IDLE_MAX_MS``.

    A stream's ``timestampAggregationTimeout`` makes the time longer, never shorter.
    """
    root = await context.store.load(key)
    if root is None or len(root.writers) < limits.WRITER_MARKS_PER_STREAM_MAX:
        return
    snapshot, marks = await read_marks(context, key, root)
    idle_ms = max(limits.WRITER_MARK_IDLE_MAX_MS, root.config.timestamp_aggregation_timeout_ms)
    oldest_ms = context.clock.now_ms() - idle_ms
    kept = {writer for writer, mark in marks.items() if mark.alive and mark.noted_ms >= oldest_ms}
    await forget(context, key, root, snapshot, [writer for writer in root.writers if writer not in kept])


async def read_marks(
    context: WorkflowContext, key: StreamKey, root: StreamRecord
) -> tuple[Snapshot, dict[str, WriterMark]]:
    """Return the marks of the writers that the root lists, and the snapshot that holds them."""
    items = {writer: key.writer(writer) for writer in root.writers}
    snapshot = await context.store.read(key, list(items.values()))
    found = {writer: snapshot.get(WriterMark, item) for writer, item in items.items()}
    return snapshot, {writer: mark for writer, mark in found.items() if mark is not None}


async def forget(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, snapshot: Snapshot, gone: Collection[str]
) -> None:
    """Remove marks that were read in `snapshot`, and take their writers from the root.

    A writer that noted a time again since then keeps its mark, and stays.
    """
    if not gone:
        return
    items = {writer: key.writer(writer) for writer in gone}

    async def remove(item: bytes) -> None:
        with contextlib.suppress(WriteConflictError):
            await context.store.metadata.remove(key.table, [(item, snapshot.version(item))])

    await gather_bounded([item for item in items.values() if snapshot.stored[item] is not None], remove)

    def decide(now: StreamRecord | None, found: Snapshot) -> Change[None]:
        if now is None or now.incarnation != root.incarnation:
            return Change(None)
        left = frozenset(writer for writer, item in items.items() if found.get(WriterMark, item) is None)
        kept = tuple(writer for writer in now.writers if writer not in left)
        return Change(None, {} if kept == now.writers else {key.root: msgspec.structs.replace(now, writers=kept)})

    await context.store.change(key, list(items.values()), decide)
