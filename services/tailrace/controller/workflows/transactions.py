"""Run commit and abort passes, and expire leases (docs/protocol/server.md#transactions, docs/design.md#controller).

One pass of a stream runs at a time, so all segments merge transactions in the same order. The batch of a pass is
persisted in order before its first merge; a controller that resumes the pass merges exactly that batch.

Clients can seal, truncate and delete segments without the controller. So a pass first checks the segments of the
transactions that it may take. One that can never be committed whole is aborted instead
(docs/controller.md#segments-that-clients-change-directly).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from tailrace.common import limits, names
from tailrace.common.errors import IllegalStateError, WriteConflictError
from tailrace.controller.metadata.epochs import transaction_segments
from tailrace.controller.metadata.records import (
    CompletedChunk,
    CompletedTransaction,
    Record,
    StreamRecord,
    TransactionRecord,
    WriterMark,
)
from tailrace.controller.metadata.stream_store import Change, Snapshot, StreamKey
from tailrace.controller.metadata.transitions import (
    aborts_done,
    commit_batch_done,
    commit_batch_taken,
    transaction_aborting,
)
from tailrace.controller.workflows.context import segment_name
from tailrace.controller.workflows.delete import completed_chunks
from tailrace.controller.workflows.writer_marks import advanced, has_room, make_room, with_writer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tailrace.controller.metadata.model import Epoch
    from tailrace.controller.workflows.context import ControllerConfig, WorkflowContext
    from tailrace.controller.workflows.segments import Merged

_LOG = structlog.get_logger(__name__)


def transaction_segment_names(key: StreamKey, epoch: Epoch, transaction_id: bytes) -> list[tuple[str, str]]:
    """Return pairs of stream segment and transaction segment, by number. The name holds its epoch.

    See docs/protocol/naming.md#names.
    """
    identity = uuid.UUID(bytes=transaction_id)
    return [
        (
            segment_name(key, segment.identifier),
            names.transaction_segment_name(segment_name(key, identifier), identity),
        )
        for segment, identifier in transaction_segments(epoch, transaction_epoch(transaction_id))
    ]


def transaction_epoch(transaction_id: bytes) -> int:
    """Return the epoch that the transaction began in: the upper 32 bits of its id."""
    return int.from_bytes(transaction_id[:4], "big")


def make_transaction_id(epoch: int, counter: int) -> bytes:
    """Return a transaction id: the epoch, then a counter that never repeats in a stream.

    See docs/protocol/server.md#transactions.
    """
    return epoch.to_bytes(4, "big") + counter.to_bytes(12, "big")


async def commit_pass(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Take a batch unless one is taken, merge it, and record its transactions as committed."""
    epoch = await context.store.active_epoch(key, root)
    if not root.commit_batch:
        await _take_batch(context, key, root, epoch)
        return
    batch = root.commit_batch
    names_of = _names_of(key, epoch, batch)
    sources: dict[str, list[str]] = {}
    for pairs in names_of.values():
        for target, source in pairs:
            sources.setdefault(target, []).append(source)
    merged = await context.segments.merge(list(sources.items()))
    refused = await _after_refusals(context, key, names_of, merged)
    ordered = sorted(epoch.segments, key=lambda segment: segment.number)
    lengths = [item.length for item in merged]
    position = dict(sorted(zip((segment.identifier for segment in ordered), lengths, strict=True)))
    await _finish_batch(context, key, batch, position, refused)


def _names_of(key: StreamKey, epoch: Epoch, batch: Sequence[bytes]) -> dict[bytes, list[tuple[str, str]]]:
    """Return the pairs of `transaction_segment_names` of each transaction, which must belong to the epoch."""
    if any(transaction_epoch(item) != epoch.reference for item in batch):
        raise IllegalStateError(f"stream {key} has transactions to commit that do not belong to epoch {epoch.epoch}")
    return {item: transaction_segment_names(key, epoch, item) for item in batch}


async def _take_batch(context: WorkflowContext, key: StreamKey, root: StreamRecord, epoch: Epoch) -> None:
    """Persist the next batch, without the transactions that can never be committed whole.

    Transactions that came during the check are checked once more and taken too, so that a pass merges many at once.
    """
    checked = root.commit_queue[: limits.TRANSACTION_COMMIT_BATCH_MAX]
    refused = await _uncommittable(context, _names_of(key, epoch, checked))
    more = await _take(context, key, checked, refused, grow=True)
    if more:
        refused.update(await _uncommittable(context, _names_of(key, epoch, more)))
        await _take(context, key, (*checked, *more), refused, grow=False)


async def _take(
    context: WorkflowContext, key: StreamKey, checked: tuple[bytes, ...], refused: Mapping[bytes, str], *, grow: bool
) -> tuple[bytes, ...]:
    """Take the batch and return (); with `grow`, return instead the transactions that can be taken with it, if any.

    Nothing of a transaction in the queue was merged yet. The change applies only if those that were checked are still
    in the queue, so a missing segment was deleted directly, and not merged by another controller.
    """

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[tuple[bool, tuple[bytes, ...]]]:
        if now is None or now.commit_batch or now.commit_queue[: len(checked)] != checked:
            return Change((False, ()))
        more = now.commit_queue[len(checked) : limits.TRANSACTION_COMMIT_BATCH_MAX] if grow else ()
        if more:
            return Change((False, more))
        return Change((True, ()), {key.root: commit_batch_taken(now, checked, refused)})

    taken, more = await context.store.change(key, (), decide)
    if taken:
        for transaction_id, reason in refused.items():
            _report("transaction can never be committed whole, it is aborted", key, transaction_id, reason)
    return more


async def _uncommittable(
    context: WorkflowContext, names_of: Mapping[bytes, Sequence[tuple[str, str]]]
) -> dict[bytes, str]:
    """Return the transactions that can never be committed whole, each with the reason.

    Every transaction has a segment for each segment of the stream, so one that is sealed or missing refuses them all.
    """
    targets = list(dict.fromkeys(target for pairs in names_of.values() for target, _ in pairs))
    own = [source for pairs in names_of.values() for _, source in pairs]
    found = dict(zip((*targets, *own), await context.segments.infos([*targets, *own]), strict=True))
    bad: dict[str, str] = {}
    for name, info in found.items():
        if info is None:
            bad[name] = f"{name} does not exist"
        elif name in targets and info.sealed:
            bad[name] = f"{name} is sealed"
        elif name not in targets and info.start_offset:
            bad[name] = f"{name} was truncated"
    return {
        transaction_id: reasons[0]
        for transaction_id, pairs in names_of.items()
        if (reasons := [bad[name] for pair in pairs for name in pair if name in bad])
    }


async def _after_refusals(
    context: WorkflowContext,
    key: StreamKey,
    names_of: Mapping[bytes, Sequence[tuple[str, str]]],
    merged: Sequence[Merged],
) -> frozenset[bytes]:
    """Return the transactions of a taken batch to abort: no part of them is merged, and none can ever be.

    So a controller that runs the same pass cannot merge a part of them either. Of the others, delete the parts that
    can never be merged: the transaction stays committed, and the loss is logged before the deletion.
    """
    reasons = {source: reason for item in merged for source, reason in item.refused.items()}
    if not reasons:
        return frozenset()
    aborted: list[bytes] = []
    lost: list[str] = []
    for transaction_id, pairs in names_of.items():
        parts = [source for _, source in pairs if source in reasons]
        if len(parts) == len(pairs):
            aborted.append(transaction_id)
            _report("transaction cannot be committed, it is aborted", key, transaction_id, reasons[parts[0]])
            continue
        for source in parts:
            _report("part of a committed transaction is lost", key, transaction_id, reasons[source], source)
        lost.extend(parts)
    await context.segments.delete(lost)
    return frozenset(aborted)


def _report(event: str, key: StreamKey, transaction_id: bytes, reason: str, lost: str | None = None) -> None:
    """Log that a transaction did not end as its client asked."""
    more = {} if lost is None else {"segment": lost}
    _LOG.error(event, stream=str(key), transaction=str(uuid.UUID(bytes=transaction_id)), reason=reason, **more)


async def _finish_batch(
    context: WorkflowContext,
    key: StreamKey,
    batch: tuple[bytes, ...],
    position: dict[int, int],
    refused: Collection[bytes] = (),
) -> None:
    """Record the batch as committed, but for those in `refused`, which are to be aborted."""
    committed = [transaction_id for transaction_id in batch if transaction_id not in refused]
    items = [key.transaction(transaction_id) for transaction_id in committed]
    marked = await _marking_writers(context, key, items)
    if marked:
        await make_room(context, key)
    now_ms = context.clock.now_ms()
    root = await context.store.load(key)
    chunks = _chunk_keys(key, root, len(committed))
    marks = [key.writer(writer) for writer in marked]

    def decide(now: StreamRecord | None, snapshot: Snapshot) -> Change[None]:
        if now is None or now.commit_batch != batch:
            return Change(None)
        done = [CompletedTransaction(transaction_id, True, now_ms) for transaction_id in committed]
        puts = completed_puts(key, now, snapshot, done)
        ended = commit_batch_done(now, refused)
        for writer, timestamp in marked.items():
            if has_room(ended, writer):
                item = key.writer(writer)
                puts[item] = advanced(snapshot.get(WriterMark, item), timestamp, position, now_ms)
                ended = with_writer(ended, writer)
        return Change(None, {**puts, key.root: ended})

    await context.store.change(key, (*items, *chunks, *marks), decide)


async def _marking_writers(context: WorkflowContext, key: StreamKey, items: Sequence[bytes]) -> dict[str, int]:
    """Return the last time of each writer whose commits carried a time (docs/protocol/server.md#watermarks)."""
    snapshot = await context.store.read(key, items)
    marked: dict[str, int] = {}
    for item in items:
        record = snapshot.transaction(item)
        if isinstance(record, TransactionRecord) and record.writer and record.timestamp is not None:
            marked[record.writer] = max(record.timestamp, marked.get(record.writer, record.timestamp))
    return marked


async def abort_pass(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Delete the segments of a batch of transactions to abort, and record them as aborted."""
    batch = root.abort_queue[: limits.TRANSACTION_ABORT_BATCH_MAX]
    for transaction_id in batch:
        epoch = await context.store.epoch(key, root, transaction_epoch(transaction_id))
        own = [source for _, source in transaction_segment_names(key, epoch, transaction_id)]
        await context.segments.delete(own)
    now_ms = context.clock.now_ms()
    items = [key.transaction(transaction_id) for transaction_id in batch]
    chunks = _chunk_keys(key, root, len(batch))

    def decide(now: StreamRecord | None, snapshot: Snapshot) -> Change[None]:
        if now is None or now.abort_queue[: len(batch)] != batch:
            return Change(None)
        done = [CompletedTransaction(transaction_id, False, now_ms) for transaction_id in batch]
        return Change(None, {**completed_puts(key, now, snapshot, done), key.root: aborts_done(now, batch)})

    await context.store.change(key, (*items, *chunks), decide)


def _chunk_keys(key: StreamKey, root: StreamRecord | None, count: int) -> list[bytes]:
    """Return the keys of the chunks for the next `count` completed transactions."""
    if root is None:
        return []
    size = limits.COMPLETED_TRANSACTIONS_PER_CHUNK
    first = root.completed_next // size
    last = (root.completed_next + count - 1) // size
    return [key.completed(root.incarnation, chunk) for chunk in range(first, last + 1)]


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
        if item not in snapshot.stored:
            raise WriteConflictError("another controller completed transactions at the same time")
        before = snapshot.get(CompletedChunk, item)
        kept = before.transactions[: following % size] if before is not None else ()
        puts[item] = CompletedChunk((*kept, *rest[:room]))
        following += len(rest[:room])
        rest = rest[room:]
    return puts


async def forget_completed(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    """Drop the oldest full chunk when all its transactions are old enough; return whether one was dropped."""
    chunks = completed_chunks(root)
    if len(chunks) < 2:
        return False
    item = key.completed(root.incarnation, chunks[0])
    found = (await context.store.read(key, [item])).get(CompletedChunk, item)
    too_old_ms = context.clock.now_ms() - limits.TRANSACTION_REMEMBERED_MS
    if found is not None and any(done.completed_ms > too_old_ms for done in found.transactions):
        return False
    if found is not None:
        await context.store.remove(key, [key.transaction(done.transaction_id) for done in found.transactions])
        await context.store.remove(key, [item])

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[None]:
        if now is None or (now.incarnation, now.completed_first) != (root.incarnation, root.completed_first):
            return Change(None)
        first = chunks[1] * limits.COMPLETED_TRANSACTIONS_PER_CHUNK
        return Change(None, {key.root: msgspec.structs.replace(now, completed_first=first)})

    await context.store.change(key, (), decide)
    return True


class Lease(NamedTuple):
    """A transaction's lease: how long it lasts after each renewal, and what differs from one renewal to the next."""

    lease_ms: int
    renewal: int


def lease_of(record: TransactionRecord, config: ControllerConfig) -> Lease:
    """Return the lease in a transaction's record; the longest one for a record that does not say how long it lasts."""
    return Lease(record.lease_ms or config.transaction_lease_max_ms, record.expires_ms)


async def expire(context: WorkflowContext, key: StreamKey, transaction_id: bytes, seen: Lease) -> Lease | None:
    """Abort an open transaction that was not renewed for its whole lease, since the caller saw the renewal `seen`.

    Return the new lease of one that was renewed since, None when there is no lease any more. No wall clock decides:
    renewals are only compared for equality. The write also covers the transaction's record, so that it conflicts with a
    concurrent ping.
    """
    item = key.transaction(transaction_id)

    def decide(root: StreamRecord | None, snapshot: Snapshot) -> Change[Lease | None]:
        record = snapshot.transaction(item)
        if root is None or transaction_id not in root.open_transactions or not isinstance(record, TransactionRecord):
            return Change(None)
        lease = lease_of(record, context.config)
        if lease != seen:
            return Change(lease)
        return Change(None, {key.root: transaction_aborting(root, transaction_id), item: record})

    return await context.store.change(key, [item], decide)
