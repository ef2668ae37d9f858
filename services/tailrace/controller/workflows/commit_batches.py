"""Take batches of commits from a stream's queue, and record them as committed (docs/controller.md#workflows).

A batch holds transactions of one epoch, the lowest in the queue first, in the order of their commit calls; few when the
stream has many segments, because each transaction has a segment to merge into each of them. It is persisted before its
first merge; a controller that resumes the pass merges exactly that batch.

Clients can seal, truncate and delete segments without the controller. So a pass first checks the segments of the
transactions that it may take. One that can never be committed whole is aborted instead
(docs/controller.md#segments-that-clients-change-directly).
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from tailrace.common import limits
from tailrace.common.errors import IllegalStateError
from tailrace.controller.metadata.changes import Change, Snapshot, UnsteadyReadError
from tailrace.controller.metadata.epochs import duplicate
from tailrace.controller.metadata.records import (
    CompletedTransaction,
    Rolling,
    StreamRecord,
    TransactionRecord,
)
from tailrace.controller.metadata.transitions import commit_batch_done, commit_batch_taken, may_take_commits
from tailrace.controller.workflows import leftovers, marked
from tailrace.controller.workflows.commit_times import last_queued, time_in
from tailrace.controller.workflows.completed import completed_puts
from tailrace.controller.workflows.context import segment_names
from tailrace.controller.workflows.transactions import transaction_epoch, transaction_segment_names
from tailrace.controller.workflows.writer_marks import advanced, has_room, make_room, mark_in, with_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tailrace.controller.metadata.model import Epoch
    from tailrace.controller.metadata.records import Record
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.segments import Merged

_LOG = structlog.get_logger(__name__)


class _Plan(NamedTuple):
    """What a pass relies on when it takes its batch."""

    active_epoch: int
    references: Mapping[int, int]
    """For each epoch in which a transaction of the queue began, the epoch whose key ranges it has."""
    ranges: Epoch
    """It has the segments into whose key ranges the batch is merged."""
    rolling: Rolling | None

    @property
    def most(self) -> int:
        """Return how many transactions the batch may have.

        A pass that rolls over a scale makes and seals as many segments for one transaction as for many, and adds two
        epochs to the stream. So it takes more, but as a rule no more than a step has time to check (`_check`).
        """
        rolls = self.rolling is not None
        merges_max = limits.TRANSACTION_ROLLING_MERGES_MAX if rolls else limits.TRANSACTION_COMMIT_MERGES_MAX
        return max(1, min(limits.TRANSACTION_COMMIT_BATCH_MAX, merges_max // len(self.ranges.segments)))


async def names_of(key: StreamKey, epoch: Epoch, batch: Sequence[bytes]) -> dict[bytes, list[tuple[str, str]]]:
    """Return the pairs of `transaction_segment_names` of each transaction, for an epoch with their key ranges."""
    found: dict[bytes, list[tuple[str, str]]] = {}
    made = 0
    for item in batch:
        if made >= limits.TRANSACTION_NAMES_AT_ONCE:
            made = 0
            await asyncio.sleep(0)
        found[item] = transaction_segment_names(key, epoch, item)
        made += len(epoch.segments)
    return found


async def take_batch(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    """Persist the next batch, without the transactions that can never be committed whole.

    Transactions that came during the check are checked once more and taken too, so that a pass merges many at once.
    Return False when a workflow of the stream must end first.
    """
    plan, checked = await _plan(context, key, root)
    if not may_take_commits(root, rolls=plan.rolling is not None):
        return False
    if plan.rolling is not None and await _names_are_used(context, key, root, plan):
        return True
    ends_s = asyncio.get_running_loop().time() + limits.TRANSACTION_CHECK_S
    passed, refused = await _check(context, key, plan, checked, ends_s)
    more = await _take(context, key, plan, passed, refused, grow=passed == checked)
    if more:
        others, refused_too = await _check(context, key, plan, more, ends_s)
        await _take(context, key, plan, (*passed, *others), refused | refused_too, grow=False)
    return True


async def _names_are_used(context: WorkflowContext, key: StreamKey, root: StreamRecord, plan: _Plan) -> bool:
    """Leave the next epoch out and return True when segments of the next two, which the pass creates, are there.

    They belong to a life of the stream that was lost: no pass has begun that creates them.
    """
    active = await context.store.active_epoch(key, root)
    segments = (
        *duplicate(plan.ranges, active.epoch + 1, 0).segments,
        *duplicate(active, active.epoch + 2, 0).segments,
    )
    used = await context.segments.used(segment_names(key, segments))
    if used:
        await leftovers.skip_epoch(context, key, active, used)
    return bool(used)


async def _check(
    context: WorkflowContext, key: StreamKey, plan: _Plan, batch: tuple[bytes, ...], ends_s: float
) -> tuple[tuple[bytes, ...], dict[bytes, str]]:
    """Check a batch; return the transactions that were checked, and those of them to refuse, with the reasons.

    A pass that rolls over a scale has many segments to ask for. It checks them in parts and begins none after `ends_s`:
    the step would end before the check, and the next step or controller would begin it again, with the same end.
    """
    rolls = plan.rolling is not None
    count = max(1, limits.TRANSACTION_CHECK_SEGMENTS // len(plan.ranges.segments)) if rolls else len(batch)
    refused: dict[bytes, str] = {}
    for first in range(0, len(batch), count):
        if first and asyncio.get_running_loop().time() >= ends_s:
            return batch[:first], refused
        names = await names_of(key, plan.ranges, batch[first : first + count])
        refused |= await _uncommittable(context, names, rolls=rolls)
    return batch, refused


async def _plan(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> tuple[_Plan, tuple[bytes, ...]]:
    """Return how the next pass commits, and the transactions that it may take."""
    active = await context.store.active_epoch(key, root)
    began = sorted({transaction_epoch(item) for item in root.commit_queue})
    references = {number: (await context.store.epoch(key, root, number)).reference for number in began}
    first = _lowest(root.commit_queue, references)
    if not first:
        raise IllegalStateError(f"stream {key} has no transaction to commit")
    reference = references[transaction_epoch(first[0])]
    rolls = reference != active.reference
    rolling = Rolling(context.new_id(), active.epoch, reference) if rolls else None
    ranges = await context.store.epoch(key, root, reference) if rolls else active
    plan = _Plan(active.epoch, references, ranges, rolling)
    return plan, first[: plan.most]


def _lowest(queue: Sequence[bytes], references: Mapping[int, int]) -> tuple[bytes, ...]:
    """Return the transactions of the lowest epoch, in order; () when the epoch of one is not known."""
    epochs = [references.get(transaction_epoch(item)) for item in queue]
    known = [epoch for epoch in epochs if epoch is not None]
    if not known or len(known) < len(epochs):
        return ()
    lowest = min(known)
    return tuple(item for item, epoch in zip(queue, epochs, strict=True) if epoch == lowest)


async def _take(
    context: WorkflowContext,
    key: StreamKey,
    plan: _Plan,
    checked: tuple[bytes, ...],
    refused: Mapping[bytes, str],
    *,
    grow: bool,
) -> tuple[bytes, ...]:
    """Take the batch and return (); with `grow`, return instead the transactions that can be taken with it, if any.

    Nothing of a transaction in the queue was merged yet. The change applies only if those that were checked are still
    in the queue, so a missing segment was deleted directly, and not merged by another controller.
    """

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[tuple[bool, tuple[bytes, ...]]]:
        if now is None or now.commit_batch or now.active_epoch != plan.active_epoch:
            return Change((False, ()))
        next_ones = _lowest(now.commit_queue, plan.references)[: plan.most]
        if next_ones[: len(checked)] != checked or not may_take_commits(now, rolls=plan.rolling is not None):
            return Change((False, ()))
        more = next_ones[len(checked) :] if grow else ()
        if more:
            return Change((False, more))
        return Change((True, ()), {key.root: commit_batch_taken(now, checked, refused, plan.rolling)})

    taken, more = await context.store.change(key, (), decide, by_memory=True)
    if taken:
        for transaction_id, reason in refused.items():
            _report("transaction can never be committed whole, it is aborted", key, transaction_id, reason)
    return more


async def _uncommittable(
    context: WorkflowContext, names_of: Mapping[bytes, Sequence[tuple[str, str]]], *, rolls: bool
) -> dict[bytes, str]:
    """Return the transactions that can never be committed whole, each with the reason.

    Every transaction has a segment for each segment of the stream, so one that is sealed or missing refuses them all. A
    pass that rolls over a scale merges into segments that it creates afterwards.
    """
    targets = {} if rolls else dict.fromkeys(target for pairs in names_of.values() for target, _ in pairs)
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
    if not bad:
        return {}
    return {
        transaction_id: reasons[0]
        for transaction_id, pairs in names_of.items()
        if (reasons := [bad[name] for pair in pairs for name in pair if name in bad])
    }


async def after_refusals(
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


def _nothing_more(root: StreamRecord) -> Mapping[bytes, Record]:
    return {}


async def finish_batch(
    context: WorkflowContext,
    key: StreamKey,
    taken: StreamRecord,
    position: Mapping[int, int],
    refused: Collection[bytes],
    more: Callable[[StreamRecord], Mapping[bytes, Record]] = _nothing_more,
) -> None:
    """Record the batch of the root `taken` as committed, but for those in `refused`, which are to be aborted.

    `position` is the end of the segments that it was merged into. `more` returns what else the same change writes; it
    gets the root that ends the pass, and may replace it.
    """
    batch = taken.commit_batch
    committed = [transaction_id for transaction_id in batch if transaction_id not in refused]
    items = [key.transaction(transaction_id) for transaction_id in committed]
    times = await _marking_writers(context, key, items)
    queued = await last_queued(context, key, taken, times.keys())
    if times:
        await make_room(context, key)
    now_ms = context.clock.now_ms()
    marks = [key.writer(writer) for writer in times]
    carriers = [key.transaction(transaction_id) for transaction_id in queued.values()]

    def decide(now: StreamRecord | None, snapshot: Snapshot) -> Change[None]:
        if now is None or (now.commit_batch, now.rolling) != (batch, taken.rolling):
            return Change(None)
        done = [CompletedTransaction(transaction_id, True, now_ms) for transaction_id in committed]
        puts = completed_puts(key, now, snapshot, done)
        ended = commit_batch_done(now, refused)
        found = _times_in(snapshot, items) if times else {}  # another controller's pass may have left a later one
        for writer, earlier in times.items():
            timestamp = max(earlier, found.get(writer, earlier))
            if writer in queued:
                item = key.transaction(queued[writer])
                puts[item] = _carrying(snapshot, item, timestamp)
            elif has_room(ended, writer):
                item = key.writer(writer)
                puts[item] = advanced(mark_in(snapshot, item, ended, writer), timestamp, position, now_ms)
                ended = with_writer(ended, writer)
        return Change(None, {**puts, key.root: ended, **more(ended)})

    await marked.change(context, key, (*items, *marks, *carriers), decide, by_memory=True)


def _carrying(snapshot: Snapshot, item: bytes, timestamp: int) -> TransactionRecord:
    """Return the record of a commit that waits for a later pass, with the time of one that was merged before it.

    So the writer's mark gets the time when all is merged that the writer had committed.
    """
    record = snapshot.transaction(item)
    if not isinstance(record, TransactionRecord):
        raise UnsteadyReadError  # it is of a time after this pass
    own = timestamp if record.timestamp is None else record.timestamp
    return msgspec.structs.replace(record, timestamp=max(timestamp, own))


def _is_of_commit(record: TransactionRecord | CompletedTransaction | None) -> bool:
    """Return whether a remembered record is the last one of an open transaction: the commit call adds the writer."""
    return isinstance(record, TransactionRecord) and bool(record.writer)


async def _marking_writers(context: WorkflowContext, key: StreamKey, items: Sequence[bytes]) -> dict[str, int]:
    """Return each writer whose commits carry a time, with the last one (docs/protocol/server.md#watermarks).

    The writers stay the same. The times may be remembered, so the change that ends the pass reads them again.
    """
    snapshot = context.store.remembered(key, items)
    if snapshot is None or not all(_is_of_commit(snapshot.transaction(item)) for item in items):
        snapshot = await context.store.read(key, items, remember=True)
    return _times_in(snapshot, items)


def _times_in(snapshot: Snapshot, items: Sequence[bytes]) -> dict[str, int]:
    """Return the last time of each writer in the records of commits that are not completed."""
    times: dict[str, int] = {}
    for item in items:
        noted = time_in(snapshot, item)
        if noted is not None:
            writer, timestamp = noted
            times[writer] = max(timestamp, times.get(writer, timestamp))
    return times
