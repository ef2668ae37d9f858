"""Keep the marks of writers that note times: at most a fixed number for each stream.

See docs/protocol/server.md#watermarks.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.common.errors import WriteConflictError
from tailrace.common.names import segment_epoch
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.records import StreamRecord, WriterMark

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

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

    A stream's ``timestampAggregationTimeout`` makes the time longer, never shorter. A time of the future that is as far
    away was noted by a clock that was wrong.
    """
    root = await context.store.load(key)
    if root is None or len(root.writers) < limits.WRITER_MARKS_PER_STREAM_MAX:
        return
    found = await read_marks(context, key, root)
    idle_ms = max(limits.WRITER_MARK_IDLE_MAX_MS, root.config.timestamp_aggregation_timeout_ms)
    now_ms = context.clock.now_ms()
    kept = {writer for writer, mark in found.marks.items() if mark.alive and abs(now_ms - mark.noted_ms) <= idle_ms}
    await forget(context, key, root, found, [writer for writer in root.writers if writer not in kept])


@dataclass(frozen=True, slots=True)
class MarksRead:
    """The marks of a stream's writers. Each names all segments, so their positions are not kept one by one."""

    marks: dict[str, WriterMark] = field(default_factory=dict)
    """By writer, without their positions."""
    reached: dict[int, int] = field(default_factory=dict)
    """For each segment the furthest position of the marks that were asked for."""
    stored: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Version and length in bytes of each mark's record."""


async def read_marks(
    context: WorkflowContext,
    key: StreamKey,
    root: StreamRecord,
    counts: Callable[[WriterMark], bool] = lambda _: False,
) -> MarksRead:
    """Return the marks of the writers that the root lists, with the furthest position of those for which `counts`."""
    found, looked_at = MarksRead(), 0
    writers = {key.writer(writer): writer for writer in root.writers}
    async for part in context.store.parts(key, list(writers)):
        for item, stored in part.stored.items():
            mark = part.get(WriterMark, item)
            if stored is None or mark is None:
                continue
            writer = writers[item]
            if counts(mark):
                for identifier, offset in mark.position.items():
                    found.reached[identifier] = max(offset, found.reached.get(identifier, 0))
            looked_at += len(mark.position)
            if looked_at >= limits.EPOCH_SEGMENTS_AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
            found.marks[writer] = msgspec.structs.replace(mark, position={})
            found.stored[writer] = (stored.version, len(stored.value))
    return found


async def forget(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, read: MarksRead, gone: Collection[str]
) -> None:
    """Remove marks that were read, and take their writers from the root.

    A writer that noted a time again since then keeps its mark, and stays.
    """
    versions = {key.writer(writer): read.stored[writer][0] for writer in gone if writer in read.stored}

    async def remove(item: bytes) -> None:
        with contextlib.suppress(WriteConflictError):
            await context.store.metadata.remove(key.table, [(item, versions[item])])

    await gather_bounded(list(versions), remove)
    for part in _parts(read, gone):
        await _unlist(context, key, root, part)


def _parts(read: MarksRead, gone: Iterable[str]) -> Iterator[list[str]]:
    """Yield writers in parts: one change reads their marks again, in case all have noted a time meanwhile."""
    some: list[str] = []
    length_bytes = 0
    for writer in gone:
        its_bytes = read.stored.get(writer, (0, 0))[1]
        if some and length_bytes + its_bytes > limits.READ_PART_BYTES:
            yield some
            some, length_bytes = [], 0
        some.append(writer)
        length_bytes += its_bytes
    if some:
        yield some


async def _unlist(context: WorkflowContext, key: StreamKey, root: StreamRecord, gone: Sequence[str]) -> None:
    """Take writers from the root whose marks were removed."""
    items = {writer: key.writer(writer) for writer in gone}

    def decide(now: StreamRecord | None, found: Snapshot) -> Change[None]:
        if now is None or now.incarnation != root.incarnation:
            return Change(None)
        left = frozenset(writer for writer, item in items.items() if found.get(WriterMark, item) is None)
        kept = tuple(writer for writer in now.writers if writer not in left)
        return Change(None, {} if kept == now.writers else {key.root: msgspec.structs.replace(now, writers=kept)})

    await context.store.change(key, list(items.values()), decide)
