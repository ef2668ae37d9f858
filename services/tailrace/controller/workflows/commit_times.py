"""Find the times that commits carry, for the marks of their writers (docs/controller.md#watermarks)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.controller.metadata.records import TransactionRecord
from tailrace.controller.workflows.transactions import transaction_epoch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tailrace.controller.metadata.changes import Snapshot
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


def time_in(snapshot: Snapshot, item: bytes) -> tuple[str, int] | None:
    """Return the writer and time of a commit that is not completed, by the key of its record; None without a time."""
    record = snapshot.transaction(item)
    if not isinstance(record, TransactionRecord) or not record.writer or record.timestamp is None:
        return None
    return record.writer, record.timestamp


async def writers_of(context: WorkflowContext, key: StreamKey, transactions: Sequence[bytes]) -> dict[bytes, str]:
    """Return the writer of each of these commits that carries a time and is not completed, in their order."""
    found: dict[bytes, str] = {}
    for start in range(0, len(transactions), limits.TRANSACTION_LEASES_PER_READ_MAX):
        items = {
            key.transaction(each): each for each in transactions[start : start + limits.TRANSACTION_LEASES_PER_READ_MAX]
        }
        snapshot = await context.store.read(key, list(items))
        for item, transaction_id in items.items():
            noted = time_in(snapshot, item)
            if noted is not None:
                found[transaction_id] = noted[0]
    return found


async def last_queued(
    context: WorkflowContext, key: StreamKey, taken: StreamRecord, writers: Collection[str]
) -> dict[str, bytes]:
    """Return the last commit with a time, in the order of merges, of each writer whose commits wait for a later pass.

    A pass that rolls over a scale merges transactions of an old epoch first, also those that were committed after
    others of the writer. No other pass changes the order of commits.
    """
    if taken.rolling is None or not writers:
        return {}
    references = {
        number: (await context.store.epoch(key, taken, number)).reference
        for number in sorted(set(map(transaction_epoch, taken.commit_queue)))
    }
    later = [
        item for item in taken.commit_queue if references[transaction_epoch(item)] > taken.rolling.transaction_epoch
    ]
    later.sort(key=lambda item: references[transaction_epoch(item)])
    found = await writers_of(context, key, later)
    return {writer: transaction_id for transaction_id, writer in found.items() if writer in writers}
