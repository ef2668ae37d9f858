"""Begin, ping, commit and abort transactions, and return their states.

See docs/protocol/server.md#transactions, docs/protocol/controller.md#transactions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.common.errors import NotAllowedError, WriteConflictError
from tailrace.controller.managers.combined_calls import CombinedCalls
from tailrace.controller.metadata.keyed_locks import KeyedLocks
from tailrace.controller.metadata.model import WRITABLE_STATES, Epoch, StreamState, TransactionState
from tailrace.controller.metadata.policies import check_lease
from tailrace.controller.metadata.records import (
    CompletedChunk,
    CompletedTransaction,
    StreamRecord,
    TransactionRecord,
)
from tailrace.controller.metadata.stream_store import Change, Snapshot, StreamKey
from tailrace.controller.metadata.transitions import (
    require,
    transaction_aborting,
    transaction_committing,
    transaction_opened,
)
from tailrace.controller.workflows.delete import completed_chunks
from tailrace.controller.workflows.transactions import lease_of, make_transaction_id, transaction_segment_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.driver import StreamDriver


class PingResult(enum.Enum):
    """The outcome of a ping (docs/protocol/controller.md#messages)."""

    OK = "ok"
    LEASE_TOO_LARGE = "lease too large"
    MAX_EXECUTION_TIME_EXCEEDED = "maximum execution time exceeded"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Begun:
    """A new transaction: its id and the epoch whose segments it writes to."""

    transaction_id: bytes
    epoch: Epoch


_Ping = tuple[bytes, int]
"""A transaction and its wanted lease in milliseconds."""
_Extended = PingResult | TransactionRecord


class TransactionManager:
    """Decide transactions of all streams. Commit passes, abort passes and leases run in the streams' tasks."""

    def __init__(self, context: WorkflowContext, driver: StreamDriver) -> None:
        self._context = context
        self._store = context.store
        self._driver = driver
        self._opening = KeyedLocks()
        self._pings = CombinedCalls(self._extend, limits.TRANSACTION_PINGS_COMBINED_MAX)

    async def begin(self, key: StreamKey, lease_ms: int) -> Begun:
        """Open a transaction and create its segments.

        Raises:
            BadRequestError: the lease is out of bounds. NoSuchStreamError. NotAllowedError: the stream is sealed.
            WriteConflictError: the stream is being sealed, or the transaction was aborted while it began.
        """
        config = self._context.config
        check_lease(lease_ms, config.transaction_lease_min_ms, config.transaction_lease_max_ms)
        async with self._driver.enlisted(key):
            async with self._opening.hold(key):
                root, record = await self._open(key, lease_ms)
            transaction_id = record.transaction_id
            epoch = await self._store.epoch(key, root, root.active_epoch)
            names = [own for _, own in transaction_segment_names(key, epoch, transaction_id)]
            await self._context.segments.create(names, root.config)
            after = await self._store.load(key)
            if after is None or after.incarnation != root.incarnation or transaction_id not in after.open_transactions:
                await self._context.segments.delete(names)  # aborted while its segments were created
                raise WriteConflictError("the transaction was aborted while it began; retry")
            self._driver.lease(key, transaction_id, lease_of(record, config))
        return Begun(transaction_id, epoch)

    async def _open(self, key: StreamKey, lease_ms: int) -> tuple[StreamRecord, TransactionRecord]:
        """Persist a new open transaction; return the root that lists it, and its record."""
        nonce = self._context.new_id()
        root = require(await self._store.load(key), key)
        for _ in range(limits.METADATA_CONFLICTS_MAX):
            transaction_id = make_transaction_id(root.active_epoch, root.transaction_counter)
            record = self._new_record(transaction_id, root.active_epoch, nonce, lease_ms)
            opened, ours = await self._store.change(key, [key.transaction(transaction_id)], _opening(key, record))
            if ours:
                return opened, record
            root = opened
        raise WriteConflictError(
            f"more than {limits.METADATA_CONFLICTS_MAX} transactions of {key} began at the same time; retry"
        )

    def _new_record(self, transaction_id: bytes, epoch: int, nonce: bytes, lease_ms: int) -> TransactionRecord:
        now_ms = self._context.clock.now_ms()
        life_ms = min(limits.TRANSACTION_LEASES_MAX * lease_ms, limits.TRANSACTION_LIFE_MAX_MS)
        return TransactionRecord(
            transaction_id, epoch, nonce, now_ms, now_ms + lease_ms, now_ms + life_ms, lease_ms=lease_ms
        )

    async def ping(self, key: StreamKey, transaction_id: bytes, lease_ms: int) -> PingResult:
        """Extend the lease of an open transaction.

        Raises:
            BadRequestError: the lease is too short. NoSuchStreamError.
        """
        config = self._context.config
        if lease_ms > config.transaction_lease_max_ms:
            return PingResult.LEASE_TOO_LARGE
        check_lease(lease_ms, config.transaction_lease_min_ms, config.transaction_lease_max_ms)
        result = await self._pings.call(key, (transaction_id, lease_ms))
        if isinstance(result, PingResult):
            return result
        self._driver.lease(key, transaction_id, lease_of(result, config))
        return PingResult.OK

    async def _extend(self, key: StreamKey, pings: Sequence[_Ping]) -> list[_Extended]:
        """Extend the leases of several open transactions in one change."""

        def decide(found: StreamRecord | None, snapshot: Snapshot) -> Change[list[_Extended]]:
            root = require(found, key)
            now_ms = self._context.clock.now_ms()
            results = [_extended(root, key, snapshot, ping, now_ms) for ping in pings]
            changed = [each for each in results if isinstance(each, TransactionRecord)]
            return Change(results, {key.transaction(each.transaction_id): each for each in changed})

        items = dict.fromkeys(key.transaction(transaction_id) for transaction_id, _ in pings)
        return await self._store.change(key, list(items), decide)

    async def commit(self, key: StreamKey, transaction_id: bytes, writer: str, timestamp: int | None) -> bool:
        """Decide to commit; return whether that is the decision. Raises NoSuchStreamError."""
        item = key.transaction(transaction_id)

        def decide(found: StreamRecord | None, snapshot: Snapshot) -> Change[bool]:
            root = require(found, key)
            record = snapshot.transaction(item)
            state = state_of(root, record, transaction_id)
            if state is not TransactionState.OPEN or not isinstance(record, TransactionRecord):
                return Change(state in (TransactionState.COMMITTING, TransactionState.COMMITTED))
            noted = msgspec.structs.replace(record, writer=writer, timestamp=timestamp)
            return Change(True, {key.root: transaction_committing(root, transaction_id), item: noted})

        async with self._driver.enlisted(key):
            return await self._store.change(key, [item], decide)

    async def abort(self, key: StreamKey, transaction_id: bytes) -> bool:
        """Decide to abort; return whether that is the decision. Raises NoSuchStreamError."""
        item = key.transaction(transaction_id)

        def decide(found: StreamRecord | None, snapshot: Snapshot) -> Change[bool]:
            root = require(found, key)
            record = snapshot.transaction(item)
            state = state_of(root, record, transaction_id)
            if state is not TransactionState.OPEN or not isinstance(record, TransactionRecord):
                return Change(state in (TransactionState.ABORTING, TransactionState.ABORTED))
            return Change(True, {key.root: transaction_aborting(root, transaction_id)})

        async with self._driver.enlisted(key):
            return await self._store.change(key, [item], decide)

    async def state(self, key: StreamKey, transaction_id: bytes) -> TransactionState | None:
        """Return the transaction's state; None when it is unknown or forgotten. Raises NoSuchStreamError."""
        item = key.transaction(transaction_id)
        snapshot = await self._store.read(key, [key.root, item])
        root = require(snapshot.get(StreamRecord, key.root), key)
        record = snapshot.transaction(item)
        too_old_ms = self._context.clock.now_ms() - limits.TRANSACTION_REMEMBERED_MS
        if isinstance(record, CompletedTransaction) and record.completed_ms < too_old_ms:
            return None
        return state_of(root, record, transaction_id)

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


_PING_RESULTS = {
    None: PingResult.UNKNOWN,
    TransactionState.OPEN: PingResult.UNKNOWN,
    TransactionState.COMMITTING: PingResult.COMMITTED,
    TransactionState.COMMITTED: PingResult.COMMITTED,
    TransactionState.ABORTING: PingResult.ABORTED,
    TransactionState.ABORTED: PingResult.ABORTED,
}


def _extended(root: StreamRecord, key: StreamKey, snapshot: Snapshot, ping: _Ping, now_ms: int) -> _Extended:
    """Return the transaction's record with the new lease, or why there is none."""
    transaction_id, lease_ms = ping
    record = snapshot.transaction(key.transaction(transaction_id))
    state = state_of(root, record, transaction_id)
    if state is not TransactionState.OPEN or not isinstance(record, TransactionRecord):
        return _PING_RESULTS[state]
    expires_ms = now_ms + lease_ms
    if expires_ms > record.max_expires_ms:
        return PingResult.MAX_EXECUTION_TIME_EXCEEDED
    return msgspec.structs.replace(record, expires_ms=expires_ms, lease_ms=lease_ms)


def state_of(
    root: StreamRecord, record: TransactionRecord | CompletedTransaction | None, transaction_id: bytes
) -> TransactionState | None:
    """Return a transaction's state by the root's lists or its completion record; None when it is unknown."""
    if transaction_id in root.open_transactions:
        return TransactionState.OPEN
    if transaction_id in root.commit_queue or transaction_id in root.commit_batch:
        return TransactionState.COMMITTING
    if transaction_id in root.abort_queue:
        return TransactionState.ABORTING
    if isinstance(record, CompletedTransaction):
        return TransactionState.COMMITTED if record.committed else TransactionState.ABORTED
    return None


def _opening(
    key: StreamKey, record: TransactionRecord
) -> Callable[[StreamRecord | None, Snapshot], Change[tuple[StreamRecord, bool]]]:
    """Return a change that opens a transaction under the id of `record`; its result says whether it got that id."""
    item = key.transaction(record.transaction_id)

    def decide(found: StreamRecord | None, snapshot: Snapshot) -> Change[tuple[StreamRecord, bool]]:
        root = require(found, key)
        stored = snapshot.transaction(item)
        if isinstance(stored, TransactionRecord) and stored.nonce == record.nonce:
            return Change((root, True))  # our own write, whose reply was lost
        if root.state not in WRITABLE_STATES and root.state is not StreamState.SEALING:
            raise NotAllowedError(f"stream {key} is {root.state}: no transaction can begin")
        expected = make_transaction_id(root.active_epoch, root.transaction_counter)
        if expected != record.transaction_id:
            return Change((root, False))  # another transaction took this id: the caller tries the next one
        opened = transaction_opened(root, record.transaction_id)
        return Change((opened, True), {key.root: opened, item: record})

    return decide
