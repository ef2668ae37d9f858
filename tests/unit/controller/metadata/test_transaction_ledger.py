"""Open transactions in shards: any sequence of begins and ends against a set, and roots of earlier versions."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.stream_policies import ScalingPolicy, StreamConfig
from tailrace.controller.metadata.changes import NotReadError, Snapshot, UnsteadyReadError
from tailrace.controller.metadata.model import StreamState, TransactionState
from tailrace.controller.metadata.ports import Stored
from tailrace.controller.metadata.records import (
    OpenShard,
    Record,
    StreamRecord,
    TransactionRecord,
    encode,
)
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.metadata.transaction_ledger import (
    TransactionLedger,
    aborting_all,
    digest,
    shard_keys,
    shard_of,
)
from tailrace.controller.metadata.transitions import transaction_aborting, transaction_committing

KEY = StreamKey("scope", "stream")
EMPTY = StreamRecord(0, StreamState.ACTIVE, StreamConfig(ScalingPolicy.fixed(1)), 1000, 1)


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def record(number: int) -> TransactionRecord:
    return TransactionRecord(name(number), 0, b"nonce", 1, 2, 3)


def snapshot(stored: dict[bytes, Record]) -> Snapshot:
    """All shards, and what was written."""
    found = {key: Stored(key, encode(each), 1) for key, each in stored.items()}
    return Snapshot("table", {**dict.fromkeys(shard_keys(KEY)), **found})


@given(st.lists(st.integers(0, 200), max_size=60), st.sets(st.integers(0, 200), max_size=20))
def test_any_sequence_is_that_of_a_set(numbers: list[int], listed: set[int]) -> None:
    """Each number begins a transaction, or ends it when it is open; some are from a root that lists them."""
    stored: dict[bytes, Record] = {}
    root = msgspec.structs.replace(EMPTY, open_transactions=tuple(map(name, sorted(listed))))
    model = set(listed)
    ended: list[bytes] = []
    for number in numbers:
        ledger = TransactionLedger(KEY, root, snapshot(stored))
        assert ledger.is_open(name(number)) == (number in model)
        if number in model:
            model.remove(number)
            ledger.close(transaction_committing(root, name(number)), name(number))
            ended.append(name(number))
        else:
            model.add(number)
            ledger.open(root, record(number))
        stored.update(ledger.puts())
        root = ledger.root
        assert stored[KEY.root] == root
        assert not root.open_transactions
        assert (root.open_count, root.open_digest) == (len(model), digest(map(name, model)))
    assert list(root.commit_queue) == ended
    final = TransactionLedger(KEY, root, snapshot(stored))
    assert final.all_open() == tuple(map(name, sorted(model)))
    closed, puts = aborting_all(KEY, root, snapshot(stored))
    assert closed.abort_queue == tuple(map(name, sorted(model)))
    assert (closed.open_count, closed.open_digest, closed.open_transactions) == (0, 0, ())
    stored.update(puts)
    shards = [each for each in stored.values() if isinstance(each, OpenShard)]
    assert all(not shard.transactions for shard in shards)


def test_several_edits_are_written_together() -> None:
    ledger = TransactionLedger(KEY, EMPTY, snapshot({}))
    for number in (1, 65, 2):
        ledger.open(ledger.root, record(number))
    ledger.close(transaction_aborting(ledger.root, name(1)), name(1))
    states = [ledger.state(name(number)) for number in (1, 65, 2)]
    assert states == [TransactionState.ABORTING, TransactionState.OPEN, TransactionState.OPEN]
    puts = ledger.puts()
    assert puts[KEY.open_shard(1)] == OpenShard((name(65),))
    assert puts[KEY.open_shard(2)] == OpenShard((name(2),))
    assert shard_of(name(65)) == 1
    assert set(puts) == {KEY.root, *map(KEY.open_shard, (1, 2)), *(KEY.transaction(name(n)) for n in (1, 65, 2))}


def test_what_was_not_read_is_asked_for_and_nothing_is_edited() -> None:
    root = msgspec.structs.replace(EMPTY, open_count=1, open_digest=digest([name(5)]))
    ledger = TransactionLedger(KEY, root, Snapshot("table", {}))
    with pytest.raises(NotReadError) as missing:
        ledger.open(root, record(3))
    assert missing.value.key == KEY.open_shard(3)
    assert ledger.puts() == {}


def test_a_seal_with_shards_of_another_time_reads_again() -> None:
    root = msgspec.structs.replace(EMPTY, open_count=2, open_digest=digest([name(5), name(6)]))
    with pytest.raises(UnsteadyReadError):
        aborting_all(KEY, root, snapshot({KEY.open_shard(5): OpenShard((name(5),))}))
