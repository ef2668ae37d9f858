"""Begin, ping, commit and abort transactions, and return their states.

See docs/protocol/server.md#transactions, docs/protocol/controller.md#transactions.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import IllegalStateError, TailraceError, UnavailableError, WriteConflictError
from tailrace.controller.managers.combined_calls import CombinedCalls
from tailrace.controller.managers.decisions import (
    Abort,
    Begin,
    Commit,
    Decision,
    Opened,
    Outcome,
    Ping,
    PingResult,
    deciding,
    keys_of,
    state_by,
)
from tailrace.controller.metadata.policies import check_lease
from tailrace.controller.metadata.records import CompletedChunk, CompletedTransaction, OpenShard, TransactionRecord
from tailrace.controller.metadata.transaction_ledger import shard_of
from tailrace.controller.metadata.transitions import require
from tailrace.controller.workflows import leftovers
from tailrace.controller.workflows.completed import completed_chunks
from tailrace.controller.workflows.transactions import lease_of, transaction_segment_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.common.stream_policies import StreamConfig
    from tailrace.controller.metadata.model import Epoch, TransactionState
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.driver import StreamDriver


@dataclass(frozen=True, slots=True)
class Begun:
    """A new transaction: its id and the epoch whose segments it writes to."""

    transaction_id: bytes
    epoch: Epoch


class TransactionManager:
    """Decide transactions of all streams. Commit passes, abort passes and leases run in the streams' tasks."""

    def __init__(self, context: WorkflowContext, driver: StreamDriver) -> None:
        self._context = context
        self._store = context.store
        self._driver = driver
        self._decisions: CombinedCalls[StreamKey, Decision, Outcome] = CombinedCalls(
            self._decide_all, limits.TRANSACTION_DECISIONS_COMBINED_MAX
        )
        self._numbered: OrderedDict[StreamKey, None] = OrderedDict()
        """Streams whose transactions have numbers here that no earlier life of the stream can have given."""

    async def begin(self, key: StreamKey, lease_ms: int) -> Begun:
        """Open a transaction and create its segments.

        The first one of a stream that this controller begins leaves numbers out: after a restore a client may live on
        that has a transaction which the records do not know.

        Raises:
            BadRequestError: the lease is out of bounds. NoSuchStreamError. NotAllowedError: the stream is sealed.
            WriteConflictError: the stream is being sealed, or the transaction was aborted while it began.
        """
        config = self._context.config
        check_lease(lease_ms, config.transaction_lease_min_ms, config.transaction_lease_max_ms)
        life_ms = min(limits.TRANSACTION_LEASES_MAX * lease_ms, limits.TRANSACTION_LIFE_MAX_MS)
        async with self._driver.enlisted(key):
            known = key in self._numbered or not config.transaction_numbers_skipped
            skipped = 0 if known else leftovers.numbers_to_skip(self._context)
            for _ in range(limits.TRANSACTION_BEGINS_MAX):
                opened = await self._decide(key, Begin(self._context.new_id(), lease_ms, life_ms, skipped))
                if not isinstance(opened, Opened):
                    raise IllegalStateError(f"the decision to begin a transaction of {key} came to {opened}")
                self._note_numbered(key)
                begun = await self._create_segments(key, opened)
                if begun is not None:
                    return begun
                skipped = leftovers.numbers_to_skip(self._context)
        raise UnavailableError(f"segments of the next transactions of {key} were there before; retry")

    def _note_numbered(self, key: StreamKey) -> None:
        self._numbered[key] = None
        self._numbered.move_to_end(key)
        if len(self._numbered) > limits.TRANSACTION_STREAMS_NUMBERED_MAX:
            self._numbered.popitem(last=False)  # it leaves numbers out again, which does no harm

    async def _create_segments(self, key: StreamKey, opened: Opened) -> Begun | None:
        """Create the segments of a transaction; None, and it is not open any more, when some were there before.

        No client has learned of the transaction, so what such a segment holds is of a life of the stream that was lost.
        """
        transaction_id = opened.record.transaction_id
        self._driver.lease(key, transaction_id, lease_of(opened.record, self._context.config))
        epoch, stream_config = await self._opened_in(key, opened)
        names = [own for _, own in transaction_segment_names(key, epoch, transaction_id)]
        used = await self._context.segments.create(names, stream_config)
        if used:
            await leftovers.leave_transaction(self._context, key, transaction_id, used)
            self._driver.forget_lease(key, transaction_id)
            return None
        if not await self._is_open(key, transaction_id):
            await self._context.segments.delete(names)  # aborted while its segments were created
            raise WriteConflictError("the transaction was aborted while it began; retry")
        return Begun(transaction_id, epoch)

    async def _opened_in(self, key: StreamKey, opened: Opened) -> tuple[Epoch, StreamConfig]:
        """Return the epoch in which a transaction was opened, and the stream's configuration."""
        root = await self._store.latest(key)
        if root is None or root.incarnation != opened.incarnation:
            raise WriteConflictError("the transaction was aborted while it began; retry")
        return await self._store.epoch(key, root, opened.record.epoch), root.config

    async def _is_open(self, key: StreamKey, transaction_id: bytes) -> bool:
        """Return whether a transaction that this controller opened is still open.

        The only controller of a cluster need not read what it wrote last.
        """
        item = key.open_shard(shard_of(transaction_id))
        snapshot = self._store.remembered(key, [item]) if self._context.config.sole else None
        if snapshot is None:
            snapshot = await self._store.read(key, [item])
        shard = snapshot.get(OpenShard, item)
        return shard is not None and transaction_id in shard.transactions

    async def ping(self, key: StreamKey, transaction_id: bytes, lease_ms: int) -> PingResult:
        """Extend the lease of an open transaction.

        Raises:
            BadRequestError: the lease is too short. NoSuchStreamError.
        """
        config = self._context.config
        if lease_ms > config.transaction_lease_max_ms:
            return PingResult.LEASE_TOO_LARGE
        check_lease(lease_ms, config.transaction_lease_min_ms, config.transaction_lease_max_ms)
        result = await self._decide(key, Ping(transaction_id, lease_ms))
        if not isinstance(result, TransactionRecord):
            return PingResult(result)
        self._driver.lease(key, transaction_id, lease_of(result, config))
        return PingResult.OK

    async def commit(self, key: StreamKey, transaction_id: bytes, writer: str, timestamp: int | None) -> bool:
        """Decide to commit; return whether that is the decision. Raises NoSuchStreamError."""
        async with self._driver.enlisted(key):
            decided = bool(await self._decide(key, Commit(transaction_id, writer, timestamp)))
            self._driver.forget_lease(key, transaction_id)
        return decided

    async def abort(self, key: StreamKey, transaction_id: bytes) -> bool:
        """Decide to abort; return whether that is the decision. Raises NoSuchStreamError."""
        async with self._driver.enlisted(key):
            decided = bool(await self._decide(key, Abort(transaction_id)))
            self._driver.forget_lease(key, transaction_id)
        return decided

    async def _decide(self, key: StreamKey, decision: Decision) -> Outcome:
        """Make a decision together with those that wait for the same stream; raise the error that it came to."""
        outcome = await self._decisions.call(key, decision)
        if isinstance(outcome, TailraceError):
            raise outcome
        return outcome

    async def _decide_all(self, key: StreamKey, decisions: Sequence[Decision]) -> list[Outcome]:
        decide = deciding(key, decisions, self._context.clock.now_ms)
        keys = keys_of(key, decisions, await self._store.latest(key))
        return await self._store.change(key, keys, decide, by_memory=True)

    async def state(self, key: StreamKey, transaction_id: bytes) -> TransactionState | None:
        """Return the transaction's state; None when it is unknown or forgotten. Raises NoSuchStreamError."""
        keys = [key.root, key.transaction(transaction_id), key.open_shard(shard_of(transaction_id))]
        state, completed_ms = await self._store.look(
            key, keys, lambda snapshot: state_by(key, snapshot, transaction_id)
        )
        too_old_ms = self._context.clock.now_ms() - limits.TRANSACTION_REMEMBERED_MS
        return None if completed_ms is not None and completed_ms < too_old_ms else state

    async def completed(self, key: StreamKey) -> list[CompletedTransaction]:
        """Return the newest completed transactions, newest first. Raises NoSuchStreamError.

        See docs/protocol/controller.md#transactions.
        """
        root = require(await self._store.load(key), key)
        size = limits.COMPLETED_TRANSACTIONS_PER_CHUNK
        wanted = -(-limits.COMPLETED_TRANSACTIONS_LISTED_MAX // size) + 1
        chunks = list(completed_chunks(root))[-wanted:]
        items = [key.completed(root.incarnation, chunk) for chunk in chunks]
        snapshot = await self._store.read(key, items)
        found: list[CompletedTransaction] = []
        for item in items:
            chunk = snapshot.get(CompletedChunk, item)
            found.extend(chunk.transactions if chunk is not None else ())
        return found[::-1][: limits.COMPLETED_TRANSACTIONS_LISTED_MAX]
