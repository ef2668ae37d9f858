"""Decide about transactions: begin, ping, commit, abort. Pure; several share one change of the stream's records.

See docs/protocol/server.md#transactions, docs/controller.md#how-a-change-happens.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from tailrace.common.errors import NotAllowedError, TailraceError
from tailrace.controller.metadata.changes import Change, UnsteadyReadError
from tailrace.controller.metadata.model import WRITABLE_STATES, StreamState, TransactionState
from tailrace.controller.metadata.records import StreamRecord, TransactionRecord
from tailrace.controller.metadata.transaction_ledger import TransactionLedger, shard_of
from tailrace.controller.metadata.transitions import (
    require,
    transaction_aborting,
    transaction_committing,
    transaction_opened,
)
from tailrace.controller.workflows.transactions import make_transaction_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.controller.metadata.changes import Snapshot
    from tailrace.controller.metadata.stream_store import StreamKey


class PingResult(enum.Enum):
    """The outcome of a ping (docs/protocol/controller.md#messages)."""

    OK = "ok"
    LEASE_TOO_LARGE = "lease too large"
    MAX_EXECUTION_TIME_EXCEEDED = "maximum execution time exceeded"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


_PING_RESULTS = {
    None: PingResult.UNKNOWN,
    TransactionState.OPEN: PingResult.UNKNOWN,
    TransactionState.COMMITTING: PingResult.COMMITTED,
    TransactionState.COMMITTED: PingResult.COMMITTED,
    TransactionState.ABORTING: PingResult.ABORTED,
    TransactionState.ABORTED: PingResult.ABORTED,
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A transaction that a decision opened, and the stream's incarnation."""

    record: TransactionRecord
    incarnation: int


Outcome = Opened | TransactionRecord | PingResult | bool | TailraceError
"""What a decision comes to: an error fails that decision alone."""


class Decision(Protocol):
    """A decision about one transaction of a stream."""

    @property
    def transaction_id(self) -> bytes | None:
        """Return the transaction that it is about; None for one that does not exist yet."""
        ...

    def apply(self, ledger: TransactionLedger, now_ms: int) -> Outcome:
        """Edit the ledger and return the outcome. Raises TailraceError, with nothing edited."""
        ...


@dataclass(slots=True)
class Begin:
    """Open a transaction. ``nonce`` is random: no other transaction has it. ``skipped`` numbers are left out before."""

    nonce: bytes
    lease_ms: int
    life_ms: int
    skipped: int = 0
    transaction_id: None = field(default=None, init=False)
    _tried: bytes | None = field(default=None, init=False)

    def apply(self, ledger: TransactionLedger, now_ms: int) -> Opened:
        """Open it under the next number.

        Raises:
            NotAllowedError: the stream is sealed. WriteConflictError: it is being sealed. OverloadedError.
        """
        root = ledger.root
        written = ledger.stored_record(self._tried) if self._tried is not None else None
        if isinstance(written, TransactionRecord) and written.nonce == self.nonce:
            return Opened(written, root.incarnation)  # our own write, whose reply was lost
        if root.state not in WRITABLE_STATES and root.state is not StreamState.SEALING:
            raise NotAllowedError(f"stream {ledger.key} is {root.state}: no transaction can begin")
        opened = transaction_opened(root, self.skipped)
        transaction_id = make_transaction_id(root.active_epoch, root.transaction_counter + self.skipped)
        record = TransactionRecord(
            transaction_id,
            root.active_epoch,
            self.nonce,
            now_ms,
            now_ms + self.lease_ms,
            now_ms + self.life_ms,
            lease_ms=self.lease_ms,
        )
        ledger.open(opened, record)
        self._tried = transaction_id
        return Opened(record, root.incarnation)


@dataclass(frozen=True, slots=True)
class Ping:
    """Extend the lease of an open transaction."""

    transaction_id: bytes
    lease_ms: int

    def apply(self, ledger: TransactionLedger, now_ms: int) -> TransactionRecord | PingResult:
        """Return the transaction's record with the new lease, or why there is none."""
        state, record = _known(ledger, self.transaction_id)
        if state is not TransactionState.OPEN or record is None:
            return _PING_RESULTS[state]
        expires_ms = now_ms + self.lease_ms
        if expires_ms > record.max_expires_ms:
            return PingResult.MAX_EXECUTION_TIME_EXCEEDED
        # Clocks of controllers differ: the end of a lease alone would not tell each renewal from all earlier ones.
        later_ms = max(expires_ms, record.expires_ms + 1)
        renewed = msgspec.structs.replace(record, expires_ms=later_ms, lease_ms=self.lease_ms)
        ledger.write(renewed)
        return renewed


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit an open transaction, with the writer's time if it has one."""

    transaction_id: bytes
    writer: str
    timestamp: int | None

    def apply(self, ledger: TransactionLedger, now_ms: int) -> bool:
        """Append it to the commit order; return whether to commit is the decision."""
        state, record = _known(ledger, self.transaction_id)
        if state is not TransactionState.OPEN or record is None:
            return state in (TransactionState.COMMITTING, TransactionState.COMMITTED)
        ledger.close(transaction_committing(ledger.root, self.transaction_id), self.transaction_id)
        ledger.write(msgspec.structs.replace(record, writer=self.writer, timestamp=self.timestamp))
        return True


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort an open transaction."""

    transaction_id: bytes

    def apply(self, ledger: TransactionLedger, now_ms: int) -> bool:
        """Have it aborted; return whether to abort is the decision."""
        state, record = _known(ledger, self.transaction_id)
        if state is not TransactionState.OPEN or record is None:
            return state in (TransactionState.ABORTING, TransactionState.ABORTED)
        ledger.close(transaction_aborting(ledger.root, self.transaction_id), self.transaction_id)
        ledger.write(record)
        return True


def _known(
    ledger: TransactionLedger, transaction_id: bytes
) -> tuple[TransactionState | None, TransactionRecord | None]:
    """Return the state of a transaction, and its record while it has not completed."""
    record = ledger.record(transaction_id)
    state = ledger.state(transaction_id)
    if state is None and isinstance(record, TransactionRecord):
        raise UnsteadyReadError  # its records were read before and after another controller moved it
    return state, record if isinstance(record, TransactionRecord) else None


def state_by(key: StreamKey, snapshot: Snapshot, transaction_id: bytes) -> tuple[TransactionState | None, int | None]:
    """Return the state of a transaction, and when it completed, if it did. Raises NoSuchStreamError."""
    ledger = TransactionLedger(key, require(snapshot.get(StreamRecord, key.root), key), snapshot)
    record = ledger.record(transaction_id)
    state, open_record = _known(ledger, transaction_id)
    completed_ms = getattr(record, "completed_ms", None) if open_record is None else None
    return state, completed_ms


def keys_of(key: StreamKey, decisions: Sequence[Decision], root: StreamRecord | None) -> list[bytes]:
    """Return the keys of the records that the decisions will need beside the root, most likely: by a root of before."""
    known = [each.transaction_id for each in decisions if each.transaction_id is not None]
    shards = [shard_of(item) for item in known]
    if root is not None:
        number = root.transaction_counter
        for begin in decisions:
            if isinstance(begin, Begin):
                number += begin.skipped
                shards.append(shard_of(make_transaction_id(0, number)))
                number += 1
    return list(dict.fromkeys([*map(key.transaction, known), *map(key.open_shard, shards)]))


def deciding(
    key: StreamKey, decisions: Sequence[Decision], now_ms: Callable[[], int]
) -> Callable[[StreamRecord | None, Snapshot], Change[list[Outcome]]]:
    """Return a change that makes the decisions in their order; what fails one fails no other."""

    def decide(found: StreamRecord | None, snapshot: Snapshot) -> Change[list[Outcome]]:
        ledger = TransactionLedger(key, require(found, key), snapshot)
        outcomes = [_outcome(each, ledger, now_ms()) for each in decisions]
        return Change(outcomes, ledger.puts())

    return decide


def _outcome(decision: Decision, ledger: TransactionLedger, now_ms: int) -> Outcome:
    try:
        return decision.apply(ledger, now_ms)
    except TailraceError as error:
        return error
