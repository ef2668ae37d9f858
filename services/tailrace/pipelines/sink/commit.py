"""Commit the transactions of a batch exactly once (docs/spark-sink.md#exactly-once). Over a port, without Spark.

The driver first records which transactions make up the batch, then commits them in that order, then records that
the batch is complete. A batch that is recorded and not complete is finished first: by the first tasks of the next run,
or else by its driver. So it does not matter where a driver ends, nor whether another one does the same at the same
time: the record changes only by compare and set, and each step may be repeated.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tailrace.client.model import TransactionState
from tailrace.common import limits, names
from tailrace.common.errors import IllegalStateError, WriteConflictError
from tailrace.common.task_groups import gather_bounded
from tailrace.pipelines.sink.options import Unresolved
from tailrace.pipelines.sink.query_record import UNKNOWN, Pending

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from tailrace.pipelines.sink.query_record import QueryRecord

_COMMITTED = TransactionState.COMMITTED
_DECIDED = (TransactionState.COMMITTING, _COMMITTED)
_ENDED = (TransactionState.ABORTING, TransactionState.ABORTED, TransactionState.UNKNOWN)


class Transactions(Protocol):
    """Transactions of one stream, by their ids."""

    async def state(self, transaction: uuid.UUID) -> TransactionState:
        """Return the state; UNKNOWN when the controller does not know the transaction, or no longer."""
        ...

    async def extend(self, transaction: uuid.UUID) -> None:
        """Extend the lease to its full length. Raises IllegalStateError when it is not open."""
        ...

    async def commit(self, transaction: uuid.UUID) -> None:
        """Decide to commit. Raises IllegalStateError when it is aborted or unknown."""
        ...

    async def abort(self, transaction: uuid.UUID) -> None:
        """Decide to abort. Raises IllegalStateError when it is committed or unknown."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait before the next look."""
        ...


class QueryStore(Transactions, Protocol):
    """The record of one query on one stream, and the stream's transactions."""

    async def load(self) -> tuple[QueryRecord, int]:
        """Return the record and its version; an empty record when there is none."""
        ...

    async def replace(self, record: QueryRecord, version: int) -> None:
        """Replace the record of that version. Raises WriteConflictError when it has changed."""
        ...


@dataclass(frozen=True)
class Attempt:
    """A batch of a run of a query, the transactions of its tasks in the order of its partitions, and its rows."""

    run: str
    batch: int
    transactions: tuple[uuid.UUID, ...]
    rows: int = UNKNOWN


class Outcome(enum.Enum):
    """What became of a recorded batch."""

    VISIBLE = enum.auto()
    GIVEN_UP = enum.auto()


async def start_run(store: QueryStore, run: str) -> None:
    """Record the start of a run, so that earlier runs end, and finish a recorded batch while its leases last.

    The run may write the batch again for longer than a lease. What cannot be finished is left to `commit_batch`.

    Raises:
        IllegalStateError: a later run has started. WriteConflictError: others change the record all the time.
    """

    async def step() -> bool:
        record, version = await store.load()
        started = record.started(run)
        if started != record:
            await store.replace(started, version)
            return started.pending is None
        if started.pending is not None and await _finished_at_start(store, started.pending):
            await store.replace(started.committed(), version)
        return True

    await _until_settled(step)


async def commit_batch(store: QueryStore, attempt: Attempt, unresolved: Unresolved) -> None:
    """Make the batch visible: with these transactions, or not at all when it already is. The others are aborted.

    Raises:
        IllegalStateError: a later run has started; the checkpoint is old; a lease has ended; a batch is there in part.
        WriteConflictError: others change the record all the time.
    """

    async def step() -> bool:
        record, version = await store.load()
        started = record.started(attempt.run)
        pending = started.pending
        if pending is not None:
            outcome = await _finish(store, pending, started, unresolved)
            is_other = pending.batch != attempt.batch
            if outcome is Outcome.GIVEN_UP and is_other and unresolved is Unresolved.FAIL:
                raise IllegalStateError(_doubt(started, pending, "is not in the stream, and the query has gone on"))
            await store.replace(started.committed() if outcome is Outcome.VISIBLE else started.given_up(), version)
            return outcome is Outcome.VISIBLE and pending == Pending(attempt.batch, attempt.transactions)
        is_repeated = started.has(attempt.batch)
        if is_repeated and unresolved is not Unresolved.KEEP:
            started.check_repeated(attempt.rows)
        if is_repeated or not attempt.transactions:
            await abort_open(store, attempt.transactions)
            return True
        await gather_bounded(attempt.transactions, store.extend)
        await store.replace(started.committing(attempt.batch, attempt.transactions, attempt.rows), version)
        return False

    await _until_settled(step)


async def abort_batch(store: QueryStore, attempt: Attempt) -> None:
    """Abort what the tasks of a failed batch wrote, but nothing that is recorded: a later run finishes that."""
    record, _ = await store.load()
    recorded = () if record.pending is None else record.pending.transactions
    await abort_open(store, [each for each in attempt.transactions if each not in recorded])


async def commit_all(store: Transactions, transactions: Sequence[uuid.UUID]) -> None:
    """Commit transactions in order, without a record, and wait until they are visible.

    Raises:
        IllegalStateError: one was aborted. Those before it are visible, the others are aborted.
    """
    await gather_bounded(transactions, store.extend)
    if not await _commit_in_order(store, transactions):
        await abort_open(store, transactions)
        raise IllegalStateError("a transaction ended while the rows were committed: they may be there in part")


async def abort_open(store: Transactions, transactions: Sequence[uuid.UUID]) -> None:
    """Abort the transactions that are still open."""

    async def abort(transaction: uuid.UUID) -> None:
        if await store.state(transaction) is TransactionState.OPEN:
            await _tried(store.abort(transaction))

    await gather_bounded(transactions, abort)


async def _until_settled(step: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Repeat a step until it returns True; begin it again when another driver has changed the record."""
    for _ in range(limits.SPARK_COMMIT_ROUNDS_MAX):
        try:
            if await step():
                return
        except WriteConflictError:
            continue
    raise WriteConflictError("other drivers change the record of this query all the time")


async def _finish(store: QueryStore, pending: Pending, record: QueryRecord, unresolved: Unresolved) -> Outcome:
    """Commit the recorded transactions, or find out that none of them can be committed any more."""
    for _ in range(limits.SPARK_COMMIT_ROUNDS_MAX):
        states = _known(await gather_bounded(pending.transactions, store.state))
        if any(state in _ENDED for state in states):
            if any(state in _DECIDED for state in states) or TransactionState.UNKNOWN in states:
                return await _resolve(store, pending, record, unresolved)
            if await _abort_in_order(store, pending.transactions):
                return Outcome.GIVEN_UP
            continue
        if await _commit_in_order(store, _left(pending, states)):
            return Outcome.VISIBLE
    raise WriteConflictError(f"batch {pending.batch} of query {record.query}: other drivers decide its transactions")


async def _finished_at_start(store: QueryStore, pending: Pending) -> bool:
    """Commit the recorded transactions as `_finish` does. Return False when one has ended, or it takes too long."""
    try:
        async with asyncio.timeout(limits.SPARK_COMMIT_DEADLINE_S):
            states = _known(await gather_bounded(pending.transactions, store.state))
            if any(state in _ENDED for state in states):
                return False
            return await _commit_in_order(store, _left(pending, states))
    except (IllegalStateError, TimeoutError):
        return False


def _left(pending: Pending, states: Sequence[TransactionState]) -> list[uuid.UUID]:
    """Return the transactions of a batch that are not committed yet."""
    return [each for each, state in zip(pending.transactions, states, strict=True) if state is not _COMMITTED]


def _known(states: Sequence[TransactionState]) -> list[TransactionState]:
    """Return the states; a forgotten transaction before a committed one was committed before it."""
    last = max((at for at, state in enumerate(states) if state in _DECIDED), default=-1)
    return [_COMMITTED if at < last and state is TransactionState.UNKNOWN else state for at, state in enumerate(states)]


async def _resolve(store: QueryStore, pending: Pending, record: QueryRecord, unresolved: Unresolved) -> Outcome:
    """Do what the option says about a batch that is there in part, or of which nothing is known."""
    if unresolved is Unresolved.FAIL:
        raise IllegalStateError(_doubt(record, pending, "may be in the stream in whole, in part or not at all"))
    await abort_open(store, pending.transactions)
    return Outcome.VISIBLE if unresolved is Unresolved.KEEP else Outcome.GIVEN_UP


def _doubt(record: QueryRecord, pending: Pending, what: str) -> str:
    return (
        f"batch {pending.batch} of query {record.query} {what}: transactions ended before its driver came back. Look "
        f"at the end of {record.stream}, then start the query once with unresolved=keep (the batch counts as written) "
        "or unresolved=rewrite (it is written again)"
    )


async def _commit_in_order(store: Transactions, transactions: Sequence[uuid.UUID]) -> bool:
    """Commit transactions in order and wait until all are visible. Return False when one cannot be committed.

    The controller merges an epoch's transactions in the order of the decisions, but earlier epochs first.
    """
    earlier: list[uuid.UUID] = []
    for transaction in transactions:
        if earlier and _epoch(transaction) != _epoch(earlier[-1]):
            await _wait_until_visible(store, earlier[-1])
        if not await _tried(store.commit(transaction)) and await store.state(transaction) not in _DECIDED:
            return False
        earlier.append(transaction)
    await gather_bounded(transactions, lambda each: _wait_until_visible(store, each))
    return True


async def _abort_in_order(store: Transactions, transactions: Sequence[uuid.UUID]) -> bool:
    """Abort transactions in order; return False when one is committed.

    In this order a driver that commits them at the same time finds its first one aborted, and commits none after it.
    """
    for transaction in transactions:
        if not await _tried(store.abort(transaction)) and await store.state(transaction) in _DECIDED:
            return False
    return True


async def _wait_until_visible(store: Transactions, transaction: uuid.UUID) -> None:
    delay_s = limits.SPARK_COMMIT_POLL_MAX_S / 16
    while (state := await store.state(transaction)) is not _COMMITTED:
        if state is not TransactionState.COMMITTING:
            raise IllegalStateError(f"transaction {transaction} is {state.name.lower()} after its commit")
        await store.pause(delay_s)
        delay_s = min(2 * delay_s, limits.SPARK_COMMIT_POLL_MAX_S)


async def _tried(decision: Coroutine[Any, Any, None]) -> bool:
    """Return whether a decision was taken; False when the transaction is no longer open."""
    try:
        await decision
    except IllegalStateError:
        return False
    return True


def _epoch(transaction: uuid.UUID) -> int:
    return names.segment_epoch(transaction.int >> 64)
