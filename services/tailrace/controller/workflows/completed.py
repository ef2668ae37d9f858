"""Remember the transactions that completed, and forget them (docs/protocol/server.md#transactions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.records import CompletedChunk, CompletedTransaction, Record, StreamRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


def completed_chunks(root: StreamRecord) -> range:
    """Return the numbers of the chunks that hold completed transactions."""
    size = limits.COMPLETED_TRANSACTIONS_PER_CHUNK
    return range(root.completed_first // size, -(-root.completed_next // size))


def completed_puts(
    key: StreamKey, root: StreamRecord, snapshot: Snapshot, done: Sequence[CompletedTransaction]
) -> dict[bytes, Record]:
    """Return the writes that record completed transactions: one record each for lookups, and chunks for lists."""
    size = limits.COMPLETED_TRANSACTIONS_PER_CHUNK
    puts: dict[bytes, Record] = {key.transaction(item.transaction_id): item for item in done}
    following = root.completed_next
    rest = list(done)
    while rest:
        item = key.completed(root.incarnation, following // size)
        room = size - following % size
        before = snapshot.get(CompletedChunk, item)
        kept = before.transactions[: following % size] if before is not None else ()
        puts[item] = CompletedChunk((*kept, *rest[:room]))
        following += len(rest[:room])
        rest = rest[room:]
    return puts


@dataclass(slots=True)
class Oldest:
    """The oldest full chunk of a stream's completed transactions, as it was read last."""

    chunk: tuple[int, int] | None = None
    """The stream's incarnation, and the chunk's number."""
    look_ms: int = 0
    """Before this none of its transactions is forgotten."""


async def forget_completed(context: WorkflowContext, key: StreamKey, root: StreamRecord, oldest: Oldest) -> bool:
    """Drop the oldest full chunk when all its transactions are old enough; return whether one was dropped."""
    chunks = completed_chunks(root)
    if len(chunks) < 2:
        return False
    chunk, now_ms = (root.incarnation, chunks[0]), context.clock.now_ms()
    if chunk == oldest.chunk and now_ms < oldest.look_ms:
        return False
    item = key.completed(*chunk)
    known = context.store.remembered(key, [item])
    found = known.get(CompletedChunk, item) if known is not None else None
    if found is None or len(found.transactions) < limits.COMPLETED_TRANSACTIONS_PER_CHUNK:
        found = (await context.store.read(key, [item], remember=True)).get(CompletedChunk, item)
    if found is not None:
        ended_ms = await _ended_ms(context, key, root, found, now_ms)
        oldest.chunk, oldest.look_ms = chunk, min(ended_ms, now_ms) + limits.TRANSACTION_REMEMBERED_MS
        if now_ms < ended_ms + limits.TRANSACTION_REMEMBERED_MS:
            return False
    await drop_oldest(context, key, root, found)
    return True


async def _ended_ms(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, found: CompletedChunk, now_ms: int
) -> int:
    """Return a time by which all transactions of the oldest chunk had completed.

    A time that is `limits.TRANSACTION_REMEMBERED_MS` ahead is of a clock that was wrong. The first right one after it
    stands for it. Where none is found, the wrong ones count.
    """
    times_ms = [done.completed_ms for done in found.transactions]
    right_ms = _right(times_ms, now_ms)
    if right_ms[-1:] == times_ms[-1:]:
        return max(right_ms)
    chunks, ahead = completed_chunks(root), 1
    while ahead < len(chunks):
        item = key.completed(root.incarnation, chunks[ahead])
        later = (await context.store.read(key, [item])).get(CompletedChunk, item)
        later_ms = _right([done.completed_ms for done in later.transactions] if later is not None else [], now_ms)
        if later_ms:
            return max([*right_ms, later_ms[0]])
        ahead *= 2  # a clock may have been wrong for long
    return max(times_ms)


def _right(times_ms: Sequence[int], now_ms: int) -> list[int]:
    return [each_ms for each_ms in times_ms if each_ms - now_ms < limits.TRANSACTION_REMEMBERED_MS]


async def drop_oldest(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, found: CompletedChunk | None
) -> None:
    """Forget the oldest chunk, of which `found` was read: its transactions, then itself, then its place in the root.

    So a run that was cut short is repeated, and each chunk that is gone stays gone. None: an earlier run removed it.
    """
    chunks = completed_chunks(root)
    if found is not None:
        await context.store.remove(key, [key.transaction(done.transaction_id) for done in found.transactions])
        await context.store.remove(key, [key.completed(root.incarnation, chunks[0])])

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[None]:
        if now is None or now.incarnation != root.incarnation or completed_chunks(now)[:1] != chunks[:1]:
            return Change(None)  # another controller has done it, and perhaps deleted the stream
        first = (chunks[0] + 1) * limits.COMPLETED_TRANSACTIONS_PER_CHUNK
        return Change(None, {key.root: msgspec.structs.replace(now, completed_first=first)})

    await context.store.change(key, (), decide)
