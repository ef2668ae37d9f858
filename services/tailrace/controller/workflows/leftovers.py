"""Leave segments alone that are of a life of the stream which its records do not know.

See docs/controller.md#segments-of-a-lost-life.

A restore may bring back records that are some minutes older than segments. Then names of segments and transactions are
given a second time, and such a segment may exist, with bytes to which nothing may be added. A new one takes another
name. The old one is sealed, so that a writer of that life notices. It stays, and the sweep reports it. The same holds
for the first segments of a stream that is created again, because its records are lost.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from tailrace.common import limits
from tailrace.common.errors import NoSuchSegmentError, SegmentSealedError
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.epochs import new_segments
from tailrace.controller.metadata.model import Epoch
from tailrace.controller.metadata.records import CompletedTransaction
from tailrace.controller.metadata.transaction_ledger import TransactionLedger, shard_of
from tailrace.controller.metadata.transitions import may_take_commits, renumbered
from tailrace.controller.workflows.context import segment_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.records import Record, ScaleIntent, StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)
_LEFT_ALONE: Final = "it was there before it was created, as after a restore; it is left alone, and sealed"


def numbers_to_skip(context: WorkflowContext) -> int:
    """Return how many numbers of transactions to leave out: more than a lost life can have given.

    It is random, because the life that was lost may have left some out, too.
    """
    return context.config.transaction_numbers_skipped + int.from_bytes(context.entropy.token(4), "big")


async def leave_transaction(
    context: WorkflowContext, key: StreamKey, transaction_id: bytes, segments: Sequence[str]
) -> None:
    """Take a transaction from the open ones whose segments were there before: a client never learns of it.

    A crash before its record is removed leaves an aborted one, whose segments the sweep deletes.
    """

    def decide(now: StreamRecord | None, snapshot: Snapshot) -> Change[bool]:
        if now is None:
            return Change(False)
        ledger = TransactionLedger(key, now, snapshot)
        if not ledger.is_open(transaction_id):
            return Change(False)  # its lease has ended: it is aborted
        ledger.close(now, transaction_id)
        aborted = CompletedTransaction(transaction_id, False, context.clock.now_ms())
        return Change(True, {**ledger.puts(), key.transaction(transaction_id): aborted})

    if await context.store.change(key, [key.open_shard(shard_of(transaction_id))], decide):
        await context.store.remove(key, [key.transaction(transaction_id)])
    report(key, segments, _LEFT_ALONE)
    await _seal(context, segments)


async def create_again(context: WorkflowContext, key: StreamKey, root: StreamRecord, before: Epoch) -> bool:
    """Begin the creation of ``root`` again with other segments, because some of ``before``, its epoch 0, were there.

    Returns False when the creation has ended meanwhile, or was begun again by another controller. The root is read
    after the segments were found: a client never learns of a stream that is being created. Stored epochs never change,
    so it is the next incarnation that has other segments (ADR 0062).
    """
    intent_id = context.new_id()

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[bool]:
        if now is None or now.incarnation != root.incarnation or now.intent != root.intent:
            return Change(False)
        return Change(True, renumbered(key, now, before, context.clock.now_ms(), intent_id))

    return await context.store.change(key, (), decide)


async def leave_incarnation(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Seal the segments that `create_again` has given up for those of ``root``, then remove the record that names them.

    A step that is repeated finds the record until all of them are sealed.
    """
    item = key.epoch(root.incarnation - 1, 0)
    left = (await context.store.read(key, [item])).get(Epoch, item)
    if left is None:
        return
    segments = segment_names(key, left.segments)
    report(key, await context.segments.used(segments), _LEFT_ALONE)
    await _seal(context, segments)
    await context.store.remove(key, [item])


async def renumber(context: WorkflowContext, key: StreamKey, intent: ScaleIntent, segments: Sequence[str]) -> None:
    """Give a scale other segments, because some of its own were there before; unless its epoch is active by now.

    The root is read after the segments were found: while their epoch is not active a client never learns of them.
    """

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[bool]:
        if now is None or now.intent != intent or now.active_epoch != intent.old_epoch:
            return Change(False)
        first_number = now.next_segment_number + limits.SEGMENT_NUMBERS_SKIPPED
        created = new_segments([each.key_range for each in intent.created], first_number, intent.old_epoch + 1)
        root = msgspec.structs.replace(
            now,
            next_segment_number=first_number + len(created),
            intent=msgspec.structs.replace(intent, created=created),
        )
        return Change(True, {key.root: root})

    if await context.store.change(key, (), decide):
        report(key, segments, _LEFT_ALONE)
        await _seal(context, segments)


async def skip_epoch(context: WorkflowContext, key: StreamKey, active: Epoch, segments: Sequence[str]) -> None:
    """Make an epoch active that repeats the active one, because the names of the next ones were there before.

    The segments stay the same, so nothing changes for clients. A pass that rolls over a scale takes the names after it.
    """
    following = msgspec.structs.replace(
        active,
        epoch=active.epoch + 1,
        created_ms=context.clock.now_ms(),
        splits=0,
        merges=0,
        reference_epoch=active.reference,
        reason="",
    )

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[bool]:
        if now is None or now.commit_batch or now.active_epoch != active.epoch or not may_take_commits(now, rolls=True):
            return Change(False)
        root = msgspec.structs.replace(now, active_epoch=following.epoch)
        puts: dict[bytes, Record] = {key.root: root, key.epoch(now.incarnation, following.epoch): following}
        return Change(True, puts)

    if await context.store.change(key, (), decide):
        report(key, segments, _LEFT_ALONE)
        await _seal(context, segments)


def report(key: StreamKey, segments: Sequence[str], reason: str) -> None:
    """Log segments that were there before they were created."""
    for segment in segments:
        _LOG.error("segment_of_a_lost_life", stream=str(key), segment=segment, reason=reason)


async def _seal(context: WorkflowContext, segments: Sequence[str]) -> None:
    async def one(name: str) -> None:
        with contextlib.suppress(SegmentSealedError, NoSuchSegmentError):
            await context.segments.port.seal_segment(name)

    await gather_bounded(segments, one)
