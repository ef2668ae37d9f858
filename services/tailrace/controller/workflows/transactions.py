"""Name transactions, abort them, expire leases, and remember what completed (docs/protocol/server.md#transactions)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tailrace.common import limits, names
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.epochs import transaction_segments
from tailrace.controller.metadata.records import (
    CompletedTransaction,
    StreamRecord,
    TransactionRecord,
)
from tailrace.controller.metadata.transaction_ledger import TransactionLedger, shard_of
from tailrace.controller.metadata.transitions import (
    aborts_done,
    transaction_aborting,
)
from tailrace.controller.workflows.completed import completed_puts
from tailrace.controller.workflows.context import segment_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.controller.metadata.model import Epoch
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import ControllerConfig, WorkflowContext
    from tailrace.controller.workflows.segments import Progress

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


async def abort_pass(context: WorkflowContext, key: StreamKey, root: StreamRecord, progress: Progress) -> None:
    """Delete the segments of a batch of transactions to abort, and record them as aborted.

    One that has more segments than a step deletes is a batch alone, and takes several steps.
    """
    batch, own = await _abort_batch(context, key, root)
    progress = progress.of(batch[0] + batch[-1])  # the queue keeps its order: these name the ones between, too
    part = own[progress.position : progress.position + limits.WORKFLOW_STEP_SEGMENTS_MAX]
    await context.segments.delete(part)
    progress.position += len(part)
    if progress.position < len(own):
        return
    now_ms = context.clock.now_ms()
    items = [key.transaction(transaction_id) for transaction_id in batch]

    def decide(now: StreamRecord | None, snapshot: Snapshot) -> Change[None]:
        if now is None or now.abort_queue[: len(batch)] != batch:
            return Change(None)
        done = [CompletedTransaction(transaction_id, False, now_ms) for transaction_id in batch]
        return Change(None, {**completed_puts(key, now, snapshot, done), key.root: aborts_done(now, batch)})

    await context.store.change(key, items, decide, by_memory=True)


async def _abort_batch(
    context: WorkflowContext, key: StreamKey, root: StreamRecord
) -> tuple[tuple[bytes, ...], list[str]]:
    """Return the first transactions to abort, one at least, and the names of their segments."""
    batch: list[bytes] = []
    own: list[str] = []
    for transaction_id in root.abort_queue[: limits.TRANSACTION_ABORT_BATCH_MAX]:
        epoch = await context.store.epoch(key, root, transaction_epoch(transaction_id))
        more = [source for _, source in transaction_segment_names(key, epoch, transaction_id)]
        if batch and len(own) + len(more) > limits.WORKFLOW_STEP_SEGMENTS_MAX:
            break
        batch.append(transaction_id)
        own.extend(more)
    return tuple(batch), own


class Lease(NamedTuple):
    """A transaction's lease: how long it lasts after each renewal, and what differs from one renewal to the next."""

    lease_ms: int
    renewal: int


def lease_of(record: TransactionRecord, config: ControllerConfig) -> Lease:
    """Return the lease in a transaction's record; the longest one for a record that does not say how long it lasts."""
    return Lease(record.lease_ms or config.transaction_lease_max_ms, record.expires_ms)


async def expire(context: WorkflowContext, key: StreamKey, seen: Mapping[bytes, Lease]) -> dict[bytes, Lease | None]:
    """Abort open transactions that were not renewed for their whole leases, since the caller saw the renewals `seen`.

    Return the new lease of each that was renewed since, None for one that has no lease any more. No wall clock decides:
    renewals are only compared for equality. The write also covers the transactions' records, so that it conflicts with
    a concurrent ping.
    """
    items = [key.transaction(transaction_id) for transaction_id in seen]
    shards = [key.open_shard(number) for number in sorted(set(map(shard_of, seen)))]

    def decide(root: StreamRecord | None, snapshot: Snapshot) -> Change[dict[bytes, Lease | None]]:
        renewed: dict[bytes, Lease | None] = dict.fromkeys(seen)
        if root is None:
            return Change(renewed)
        ledger = TransactionLedger(key, root, snapshot)
        for transaction_id, lease_seen in seen.items():
            record = ledger.record(transaction_id)
            if not isinstance(record, TransactionRecord) or not ledger.is_open(transaction_id):
                continue
            lease = lease_of(record, context.config)
            if lease != lease_seen:
                renewed[transaction_id] = lease
                continue
            ledger.close(transaction_aborting(ledger.root, transaction_id), transaction_id)
            ledger.write(record)
        return Change(renewed, ledger.puts() if ledger.root is not root else {})

    return await context.store.change(key, [*items, *shards], decide)
