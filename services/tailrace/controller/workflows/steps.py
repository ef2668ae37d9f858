"""What to do next for a stream, decided by its root alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from tailrace.controller.metadata.records import (
    CreateIntent,
    DeleteIntent,
    ScaleIntent,
    SealIntent,
    StreamRecord,
    TransactionRecord,
    TruncateIntent,
    UpdateIntent,
)
from tailrace.controller.workflows.change import seal, truncate, update
from tailrace.controller.workflows.create import create
from tailrace.controller.workflows.delete import delete
from tailrace.controller.workflows.scale import scale
from tailrace.controller.workflows.transactions import abort_pass, commit_pass, forget_completed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


async def advance(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    """Do the next thing; False when only time or a call can bring more to do.

    Transactions on their way to their end come first: no commit is ever held by a workflow that waits (issue part 6).
    """
    if root.abort_queue:
        await abort_pass(context, key, root)
        return True
    if root.commit_batch or root.commit_queue:
        await commit_pass(context, key, root)
        return True
    if root.intent is not None:
        return await _advance_intent(context, key, root)
    return await forget_completed(context, key, root)


async def _advance_intent(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    progressed = True
    match root.intent:
        case CreateIntent():
            await create(context, key, root)
        case UpdateIntent():
            await update(context, key, root)
        case ScaleIntent() as intent:
            progressed = await scale(context, key, root, intent)
        case TruncateIntent() as intent:
            await truncate(context, key, root, intent)
        case SealIntent():
            progressed = await seal(context, key, root)
        case DeleteIntent():
            await delete(context, key, root)
        case None:
            progressed = False
        case _:
            assert_never(root.intent)
    return progressed


async def leases_left(context: WorkflowContext, key: StreamKey, transactions: Sequence[bytes]) -> dict[bytes, int]:
    """Milliseconds left of each open transaction's lease by the persisted wall clock, never above the longest lease.

    What a wall clock that jumps could add or take is bounded by one lease.
    """
    items = [key.transaction(transaction_id) for transaction_id in transactions]
    snapshot = await context.store.read(key, items)
    now_ms = context.clock.now_ms()
    left: dict[bytes, int] = {}
    for transaction_id, item in zip(transactions, items, strict=True):
        record = snapshot.transaction(item)
        if isinstance(record, TransactionRecord):
            left[transaction_id] = max(0, min(record.expires_ms - now_ms, context.config.transaction_lease_max_ms))
    return left
