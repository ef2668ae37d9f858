"""Keep the marks of writers that note times: at most a fixed number for each stream.

See docs/protocol/server.md#watermarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.controller.metadata.records import StreamRecord, WriterMark
from tailrace.controller.metadata.stream_store import Change, Snapshot, StreamKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.controller.workflows.context import WorkflowContext


def with_writer(root: StreamRecord, writer: str) -> StreamRecord:
    """Return the root with the writer in its list of marked writers."""
    if writer in root.writers:
        return root
    return msgspec.structs.replace(root, writers=(*root.writers, writer))


def has_room(root: StreamRecord, writer: str) -> bool:
    """Return whether the stream can keep a mark of that writer."""
    return writer in root.writers or len(root.writers) < limits.WRITER_MARKS_PER_STREAM_MAX


def advanced(before: WriterMark | None, timestamp: int, position: Mapping[int, int], now_ms: int) -> WriterMark:
    """Return the mark after a commit at that time and position. Neither goes back."""
    if before is None:
        return WriterMark(timestamp, dict(position), now_ms)
    if timestamp < before.timestamp:
        return before
    known = before.position if before.position.keys() == position.keys() else {}
    kept = {identifier: max(offset, known.get(identifier, 0)) for identifier, offset in position.items()}
    return WriterMark(timestamp, kept, now_ms)


async def make_room(context: WorkflowContext, key: StreamKey) -> None:
    """Forget writers of a full stream that were removed, or noted no time for ``limits.WRITER_MARK_IDLE_MAX_MS``.

    A stream's ``timestampAggregationTimeout`` makes the time longer, never shorter.
    """
    root = await context.store.load(key)
    if root is None or len(root.writers) < limits.WRITER_MARKS_PER_STREAM_MAX:
        return
    items = {writer: key.writer(writer) for writer in root.writers}
    marks = await context.store.read(key, list(items.values()))
    idle_ms = max(limits.WRITER_MARK_IDLE_MAX_MS, root.config.timestamp_aggregation_timeout_ms)
    oldest_ms = context.clock.now_ms() - idle_ms
    gone = [
        writer
        for writer, item in items.items()
        if (mark := marks.get(WriterMark, item)) is None or not mark.alive or mark.noted_ms < oldest_ms
    ]
    if not gone:
        return
    await context.store.remove(key, [items[writer] for writer in gone])

    def decide(now: StreamRecord | None, snapshot: Snapshot) -> Change[None]:
        if now is None or now.incarnation != root.incarnation:
            return Change(None)
        # One that noted a time again since then has a mark, and stays.
        left = frozenset(writer for writer in gone if snapshot.get(WriterMark, items[writer]) is None)
        kept = tuple(writer for writer in now.writers if writer not in left)
        return Change(None, {} if kept == now.writers else {key.root: msgspec.structs.replace(now, writers=kept)})

    await context.store.change(key, [items[writer] for writer in gone], decide)
