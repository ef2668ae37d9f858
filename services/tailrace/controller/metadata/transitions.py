"""Change a stream's root: pure functions from root to root (docs/design.md#controller).

Each raises when the root does not allow the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.common.errors import NoSuchStreamError, OverloadedError, WriteConflictError
from tailrace.common.stream_policies import StreamConfig
from tailrace.controller.metadata.epochs import first_epoch, new_segments
from tailrace.controller.metadata.model import EXISTING_STATES, Epoch, ScaleReason, StreamState, TruncationReason
from tailrace.controller.metadata.records import (
    CreateIntent,
    DeleteIntent,
    Record,
    Rolling,
    ScaleIntent,
    SealIntent,
    StreamRecord,
    TruncateIntent,
    UpdateIntent,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tailrace.common.ranges import KeyRange
    from tailrace.controller.metadata.stream_store import StreamKey


def require(root: StreamRecord | None, key: StreamKey) -> StreamRecord:
    """Return the root of a stream that exists. Raises NoSuchStreamError."""
    if root is None or root.state not in EXISTING_STATES:
        raise NoSuchStreamError(f"stream {key} does not exist")
    return root


def next_incarnation(previous: StreamRecord | None) -> int:
    """Return the incarnation of a stream that is created in the place of a deleted one, or for the first time."""
    return previous.incarnation + 1 if previous else 0


def created(previous: StreamRecord | None, config: StreamConfig, now_ms: int, intent_id: bytes) -> StreamRecord:
    """Return the root of a new stream, which continues the counters of a deleted one.

    See docs/protocol/naming.md#names.
    """
    return StreamRecord(
        incarnation=next_incarnation(previous),
        state=StreamState.CREATING,
        config=config,
        created_ms=now_ms,
        next_segment_number=(previous.next_segment_number if previous else 0) + config.scaling.min_segments,
        transaction_counter=previous.transaction_counter if previous else 0,
        intent=CreateIntent(intent_id),
    )


def new_stream(
    key: StreamKey, previous: StreamRecord | None, config: StreamConfig, now_ms: int, intent_id: bytes
) -> dict[bytes, Record]:
    """Return the records that begin the creation of a stream: its root in CREATING and its epoch 0."""
    root = created(previous, config, now_ms, intent_id)
    first_number = root.next_segment_number - config.scaling.min_segments
    epoch = first_epoch(config.scaling.min_segments, first_number, now_ms)
    return {key.root: root, key.epoch(root.incarnation, 0): epoch}


def renumbered(key: StreamKey, root: StreamRecord, before: Epoch, now_ms: int, intent_id: bytes) -> dict[bytes, Record]:
    """Return the records that begin a creation again as the next incarnation, whose segments have higher numbers.

    ``before`` is the epoch 0 of ``root``: some of its segments were there before they were created (ADR 0062).
    """
    count = len(before.segments)
    first_number = root.next_segment_number + limits.SEGMENT_NUMBERS_SKIPPED
    skipped = before.numbers_skipped + count + limits.SEGMENT_NUMBERS_SKIPPED
    again = msgspec.structs.replace(
        root,
        incarnation=next_incarnation(root),
        created_ms=now_ms,
        next_segment_number=first_number + count,
        intent=CreateIntent(intent_id),
    )
    epoch = first_epoch(count, first_number, now_ms, skipped)
    return {key.root: again, key.epoch(again.incarnation, 0): epoch}


def updating(root: StreamRecord, config: StreamConfig, intent_id: bytes) -> StreamRecord:
    """Store the new configuration; the workflow updates segments and lists."""
    return msgspec.structs.replace(root, state=StreamState.UPDATING, config=config, intent=UpdateIntent(intent_id))


def scaling(
    root: StreamRecord,
    epoch: Epoch,
    sealed: Sequence[int],
    ranges: Sequence[KeyRange],
    intent_id: bytes,
    reason: ScaleReason,
) -> StreamRecord:
    """Decide a scale of the active epoch and number its segments; the workflow does the rest."""
    segments = new_segments(ranges, root.next_segment_number, epoch.epoch + 1)
    return msgspec.structs.replace(
        root,
        state=StreamState.SCALING,
        next_segment_number=root.next_segment_number + len(segments),
        intent=ScaleIntent(intent_id, epoch.epoch, tuple(sealed), segments, reason),
    )


def truncating(
    root: StreamRecord, cut: Mapping[int, int], intent_id: bytes, reason: TruncationReason = TruncationReason.MANUAL
) -> StreamRecord:
    """Move the head of the stream; the workflow truncates segments."""
    return msgspec.structs.replace(
        root,
        state=StreamState.TRUNCATING,
        truncation=dict(sorted(cut.items())),
        intent=TruncateIntent(intent_id, root.truncation, reason),
    )


def sealing(root: StreamRecord, intent_id: bytes) -> StreamRecord:
    """Refuse new transactions. The same change aborts those that are open (`transaction_ledger.aborting_all`)."""
    return msgspec.structs.replace(root, state=StreamState.SEALING, intent=SealIntent(intent_id))


def deleting(root: StreamRecord, intent_id: bytes) -> StreamRecord:
    """Begin the deletion."""
    return msgspec.structs.replace(root, state=StreamState.DELETING, intent=DeleteIntent(intent_id))


def finished(root: StreamRecord, state: StreamState) -> StreamRecord:
    """End the workflow."""
    return msgspec.structs.replace(root, state=state, intent=None)


def tombstone(root: StreamRecord) -> StreamRecord:
    """Return the root of a deleted stream, which keeps its counters."""
    return StreamRecord(
        incarnation=root.incarnation,
        state=StreamState.DELETED,
        config=StreamConfig(scaling=msgspec.structs.replace(root.config.scaling, min_segments=1)),
        created_ms=root.created_ms,
        next_segment_number=root.next_segment_number,
        transaction_counter=root.transaction_counter,
    )


# ---- transactions


def transaction_opened(root: StreamRecord, skipped: int = 0) -> StreamRecord:
    """Count a new transaction of the active epoch, with so many numbers left out before its own.

    Raises:
        WriteConflictError: the stream is being sealed or deleted.
        OverloadedError: too many transactions have not completed.
    """
    if isinstance(root.intent, SealIntent | DeleteIntent):
        raise WriteConflictError(f"stream is {root.state}: no transaction can begin now; retry")
    queued = len(root.commit_queue) + len(root.commit_batch) + len(root.abort_queue)
    if root.open_count + len(root.open_transactions) + queued >= limits.TRANSACTIONS_OPEN_MAX:
        raise OverloadedError(f"stream has {limits.TRANSACTIONS_OPEN_MAX} transactions that have not completed")
    return msgspec.structs.replace(root, transaction_counter=root.transaction_counter + skipped + 1)


def transaction_committing(root: StreamRecord, transaction_id: bytes) -> StreamRecord:
    """Decide to commit an open transaction: append it to the commit order."""
    return msgspec.structs.replace(root, commit_queue=(*root.commit_queue, transaction_id))


def transaction_aborting(root: StreamRecord, transaction_id: bytes) -> StreamRecord:
    """Decide to abort an open transaction."""
    return msgspec.structs.replace(root, abort_queue=(*root.abort_queue, transaction_id))


def may_take_commits(root: StreamRecord, *, rolls: bool) -> bool:
    """Return whether a commit pass can begin.

    A scale takes the segments away that a pass merges into. A pass that rolls over a scale replaces segments itself, so
    it waits for any workflow that changes them; the seal of the stream waits for it.
    """
    if rolls:
        return root.intent is None or isinstance(root.intent, SealIntent)
    return not isinstance(root.intent, ScaleIntent)


def commit_batch_taken(
    root: StreamRecord, checked: Sequence[bytes], refused: Collection[bytes], rolling: Rolling | None = None
) -> StreamRecord:
    """Take the transactions that the next pass merges, in order, before it merges the first.

    Those of ``checked`` in ``refused`` are to be aborted instead. ``rolling`` says how the pass rolls over a scale.
    """
    batch = tuple(item for item in checked if item not in refused)
    taken = frozenset(checked)
    return msgspec.structs.replace(
        root,
        commit_batch=batch,
        commit_queue=tuple(item for item in root.commit_queue if item not in taken),
        abort_queue=(*root.abort_queue, *(item for item in checked if item in refused)),
        rolling=rolling if batch else None,
    )


def commit_batch_done(root: StreamRecord, refused: Collection[bytes] = ()) -> StreamRecord:
    """Record that the batch is merged and its transactions are completed; those in ``refused`` are to be aborted."""
    aborted = tuple(item for item in root.commit_batch if item in refused)
    return msgspec.structs.replace(
        root,
        commit_batch=(),
        abort_queue=(*root.abort_queue, *aborted),
        completed_next=root.completed_next + len(root.commit_batch) - len(aborted),
        rolling=None,
    )


def aborts_done(root: StreamRecord, transactions: Sequence[bytes]) -> StreamRecord:
    """Record that the transactions' segments are deleted and the transactions completed."""
    done = frozenset(transactions)
    left = tuple(item for item in root.abort_queue if item not in done)
    return msgspec.structs.replace(
        root, abort_queue=left, completed_next=root.completed_next + len(root.abort_queue) - len(left)
    )
