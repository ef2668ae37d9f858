"""Edit a stream's transactions in memory: its root, the shards of open ones, and their records.

See docs/controller.md#open-transactions. Pure: what is read comes from a snapshot, what is to be written is in `puts`.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.controller.metadata.changes import UnsteadyReadError
from tailrace.controller.metadata.model import TransactionState
from tailrace.controller.metadata.records import (
    CompletedTransaction,
    OpenShard,
    Record,
    StreamRecord,
    TransactionRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.controller.metadata.changes import Snapshot
    from tailrace.controller.metadata.stream_store import StreamKey


def shard_of(transaction_id: bytes) -> int:
    """Return the shard that lists the transaction while it is open."""
    return int.from_bytes(transaction_id[4:], "big") % limits.TRANSACTION_SHARDS


def shard_keys(key: StreamKey) -> list[bytes]:
    """Return the keys of all shards."""
    return [key.open_shard(number) for number in range(limits.TRANSACTION_SHARDS)]


@functools.lru_cache(maxsize=limits.TRANSACTIONS_OPEN_MAX)
def digest_of(transaction_id: bytes) -> int:
    """Return the part of one transaction in the digest of the open ones."""
    return int.from_bytes(hashlib.blake2b(transaction_id, digest_size=8).digest(), "big")


def digest(transactions: Iterable[bytes]) -> int:
    """Return the digest of a set of transactions, in any order."""
    return functools.reduce(lambda sum_, item: sum_ ^ digest_of(item), transactions, 0)


def aborting_all(key: StreamKey, root: StreamRecord, snapshot: Snapshot) -> tuple[StreamRecord, dict[bytes, Record]]:
    """Return the root with every open transaction to be aborted, and the records to write with it.

    Raises:
        UnsteadyReadError: the snapshot's shards are not those of its root.
    """
    ledger = TransactionLedger(key, root, snapshot)
    ledger.close_all(msgspec.structs.replace(root, abort_queue=root.abort_queue + ledger.all_open()))
    if ledger.root.open_count or ledger.root.open_digest:
        raise UnsteadyReadError  # the shards were read before the root, and another controller wrote between
    return ledger.root, ledger.puts()


class TransactionLedger:
    """The transactions of a stream as one change edits them.

    Its methods raise NotReadError for a shard or record that the snapshot lacks, before they change anything.
    """

    def __init__(self, key: StreamKey, root: StreamRecord, snapshot: Snapshot) -> None:
        self.key = key
        self.root = root
        self._before = root
        self._snapshot = snapshot
        self._shards: dict[int, tuple[bytes, ...]] = {}
        self._records: dict[bytes, TransactionRecord] = {}

    def state(self, transaction_id: bytes) -> TransactionState | None:
        """Return the state of a transaction; None when it is unknown."""
        if transaction_id in self.root.commit_queue or transaction_id in self.root.commit_batch:
            return TransactionState.COMMITTING
        if transaction_id in self.root.abort_queue:
            return TransactionState.ABORTING
        if self.is_open(transaction_id):
            return TransactionState.OPEN
        record = self.record(transaction_id)
        if isinstance(record, CompletedTransaction):
            return TransactionState.COMMITTED if record.committed else TransactionState.ABORTED
        return None

    def is_open(self, transaction_id: bytes) -> bool:
        """Return whether the transaction is open."""
        if transaction_id in self.root.open_transactions:
            return True
        return bool(self.root.open_count) and transaction_id in self._shard(shard_of(transaction_id))

    def all_open(self) -> tuple[bytes, ...]:
        """Return all open transactions, in order of their numbers."""
        found = list(self.root.open_transactions)
        if self.root.open_count:
            for number in range(limits.TRANSACTION_SHARDS):
                found += self._shard(number)
        return tuple(sorted(found, key=lambda item: item[4:]))

    def record(self, transaction_id: bytes) -> TransactionRecord | CompletedTransaction | None:
        """Return the transaction's record."""
        return self._records.get(transaction_id) or self._snapshot.transaction(self.key.transaction(transaction_id))

    def stored_record(self, transaction_id: bytes) -> TransactionRecord | CompletedTransaction | None:
        """Return the transaction's record if it was read, else None."""
        item = self.key.transaction(transaction_id)
        return self._snapshot.transaction(item) if item in self._snapshot.stored else None

    def write(self, record: TransactionRecord) -> None:
        """Write the record of a transaction."""
        self._records[record.transaction_id] = record

    def open(self, root: StreamRecord, record: TransactionRecord) -> None:
        """Add a new transaction to the open ones; `root` is the one that counts it."""
        moved = self._moved((record.transaction_id,), ())
        self._edit(root, moved)
        self.write(record)

    def close(self, root: StreamRecord, transaction_id: bytes) -> None:
        """Take a transaction from the open ones; `root` is the one that has it in a queue."""
        self._edit(root, self._moved((), (transaction_id,)))

    def close_all(self, root: StreamRecord) -> None:
        """Leave no transaction open; `root` is the one that has them in a queue."""
        self._edit(root, self._moved((), self.all_open()))

    def puts(self) -> dict[bytes, Record]:
        """Return what to write."""
        puts: dict[bytes, Record] = {
            self.key.open_shard(number): OpenShard(transactions) for number, transactions in self._shards.items()
        }
        puts.update((self.key.transaction(item), record) for item, record in self._records.items())
        if self.root is not self._before:
            puts[self.key.root] = self.root
        return puts

    def _moved(self, opened: Iterable[bytes], closed: Iterable[bytes]) -> dict[int, tuple[bytes, ...]]:
        """Return the shards that change. What an earlier root lists moves to them, too."""
        shards: dict[int, list[bytes]] = {}

        def shard(transaction_id: bytes) -> list[bytes]:
            number = shard_of(transaction_id)
            if number not in shards:
                shards[number] = list(self._shard(number))
            return shards[number]

        for item in (*self.root.open_transactions, *opened):
            shard(item).append(item)
        for item in closed:
            shard(item).remove(item)
        return {number: tuple(items) for number, items in shards.items()}

    def _edit(self, root: StreamRecord, shards: dict[int, tuple[bytes, ...]]) -> None:
        count, mixed = root.open_count, root.open_digest
        for number, after in shards.items():
            before = self._shard(number)
            count += len(after) - len(before)
            mixed ^= digest(before) ^ digest(after)
        self._shards.update(shards)
        self.root = msgspec.structs.replace(root, open_transactions=(), open_count=count, open_digest=mixed)

    def _shard(self, number: int) -> tuple[bytes, ...]:
        edited = self._shards.get(number)
        if edited is not None:
            return edited
        shard = self._snapshot.get(OpenShard, self.key.open_shard(number))
        return shard.transactions if shard is not None else ()
