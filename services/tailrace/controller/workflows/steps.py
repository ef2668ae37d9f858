"""Choose a stream's next step by its root."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, assert_never

from tailrace.common import limits
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
from tailrace.controller.metadata.transaction_ledger import TransactionLedger, shard_keys
from tailrace.controller.workflows.change import seal, truncate, update
from tailrace.controller.workflows.commits import commit_pass
from tailrace.controller.workflows.completed import Oldest, forget_completed
from tailrace.controller.workflows.create import create
from tailrace.controller.workflows.delete import delete
from tailrace.controller.workflows.scale import scale
from tailrace.controller.workflows.segments import Progress
from tailrace.controller.workflows.transactions import Lease, abort_pass, lease_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


class Work(enum.Enum):
    """The kinds of a stream's work, in the order of their turns."""

    ABORTS = "aborts"
    COMMITS = "commits"
    INTENT = "intent"
    COMPLETED = "completed transactions"


_KINDS: Final = tuple(Work)
_ORDERS: Final = {work: _KINDS[number:] + _KINDS[:number] for number, work in enumerate(_KINDS, 1)}
"""After each kind of work, the kinds in the order of their next turns."""


@dataclass(slots=True)
class Turns:
    """What the last step of a stream was about, and what the next ones need to know of it."""

    last: Work = Work.COMPLETED
    oldest: Oldest = field(default_factory=Oldest)
    aborts: Progress = field(default_factory=Progress)
    """Of the transactions that are being aborted."""
    intent: Progress = field(default_factory=Progress)
    """Of the workflow."""

    def order(self) -> tuple[Work, ...]:
        """Return the kinds of work, the last one at the end."""
        return _ORDERS[self.last]


async def advance(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, turns: Turns, *, commits_wait: bool = False
) -> bool:
    """Run the next step; return False when only time or a call can bring work.

    The kinds of work take turns, also when a step fails: clients that bring more and more of one kind keep no other
    kind waiting. A batch that was taken ends before the workflow goes on. With `commits_wait` no batch is taken.
    """
    for work in turns.order():
        turns.last = work
        progressed = False
        if work is Work.ABORTS and root.abort_queue:
            await abort_pass(context, key, root, turns.aborts)
            progressed = True
        elif work is Work.COMMITS and (root.commit_batch or (root.commit_queue and not commits_wait)):
            progressed = await commit_pass(context, key, root)
        elif work is Work.INTENT and root.intent is not None and not root.commit_batch:
            progressed = await _advance_intent(context, key, root, turns.intent)
        elif work is Work.COMPLETED:
            progressed = await forget_completed(context, key, root, turns.oldest)
        if progressed:
            return True
    return False


async def _advance_intent(context: WorkflowContext, key: StreamKey, root: StreamRecord, progress: Progress) -> bool:
    progressed = True
    match root.intent:
        case CreateIntent():
            await create(context, key, root)
        case UpdateIntent():
            await update(context, key, root)
        case ScaleIntent() as intent:
            await scale(context, key, root, intent)
        case TruncateIntent() as intent:
            await truncate(context, key, root, intent, progress.of(intent.intent_id))
        case SealIntent():
            progressed = await seal(context, key, root)
        case DeleteIntent() as intent:
            await delete(context, key, root, progress.of(intent.intent_id))
        case None:
            progressed = False
        case _:
            assert_never(root.intent)
    return progressed


async def open_transactions(context: WorkflowContext, key: StreamKey) -> dict[bytes, None]:
    """Return all open transactions of a stream, as they are now."""
    snapshot = await context.store.read(key, [key.root, *shard_keys(key)])
    root = snapshot.get(StreamRecord, key.root)
    return {} if root is None else dict.fromkeys(TransactionLedger(key, root, snapshot).all_open())


async def leases(context: WorkflowContext, key: StreamKey, transactions: Sequence[bytes]) -> dict[bytes, Lease]:
    """Return the lease of each open transaction, as its record has it now."""
    found: dict[bytes, Lease] = {}
    for start in range(0, len(transactions), limits.TRANSACTION_LEASES_PER_READ_MAX):
        items = {
            item: key.transaction(item) for item in transactions[start : start + limits.TRANSACTION_LEASES_PER_READ_MAX]
        }
        snapshot = await context.store.read(key, list(items.values()))
        for transaction_id, item in items.items():
            record = snapshot.transaction(item)
            if isinstance(record, TransactionRecord):
                found[transaction_id] = lease_of(record, context.config)
    return found
