"""Transactions: commit, abort, two writers, and what ended transactions refuse."""

import asyncio
from typing import Any

import pravega_client

import harness

TxnFailed = pravega_client.TxnFailedException


def _stream(segments: int) -> tuple[Any, str]:
    client = harness.manager()
    scope = harness.new_scope(client)
    client.create_stream(scope, "stream", segments)
    return client, scope


def _fill(transaction: Any, names: list[str], first: int, last: int) -> None:
    for sequence in range(first, last):
        for name in names:
            transaction.write_event_bytes(harness.event(name, sequence, 100), routing_key=name)


def _ended(transaction: Any) -> None:
    harness.wait_until(lambda: not transaction.is_open(), "the transaction being over")


def check_commit() -> None:
    """Nothing is seen before the commit, all of it after, in order per key."""
    client, scope = _stream(4)
    names = harness.keys(20)
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    writer = client.create_transaction_writer(scope, "stream", 1)
    transaction = writer.begin_txn()
    assert transaction.is_open() is True
    _fill(transaction, names, 0, 10)
    asyncio.run(harness.read_nothing(reader))
    transaction.commit()
    found = asyncio.run(harness.read_events(reader, 200))
    harness.check_exactly_once([harness.recognise(data) for data in found], names, 10)
    _ended(transaction)
    asyncio.run(harness.read_nothing(reader))


def check_abort() -> None:
    """What was aborted is never seen; what is committed afterwards is."""
    client, scope = _stream(2)
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    writer = client.create_transaction_writer(scope, "stream", 2)
    aborted = writer.begin_txn()
    _fill(aborted, ["aborted"], 0, 50)
    aborted.abort()
    _ended(aborted)
    committed = writer.begin_txn()
    _fill(committed, ["committed"], 0, 20)
    committed.commit_timestamp(12345)
    found = asyncio.run(harness.read_events(reader, 20))
    harness.check_exactly_once([harness.recognise(data) for data in found], ["committed"], 20)
    asyncio.run(harness.read_nothing(reader))


def check_commits_keep_their_order() -> None:
    """A transaction committed after another is read after it; plain events take their place between them."""
    client, scope = _stream(1)
    transactional = client.create_transaction_writer(scope, "stream", 3)
    plain = client.create_writer(scope, "stream", harness.IN_FLIGHT)
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    found: list[bytes] = []
    for first in range(0, 30, 6):
        transaction = transactional.begin_txn()
        _fill(transaction, ["key"], first, first + 4)
        transaction.commit()
        # A commit is accepted before its events are in the stream: what is to follow them waits until they are read.
        found += asyncio.run(harness.read_events(reader, 4))
        harness.write_keyed(plain, ["key"], first + 4, first + 6)
        found += asyncio.run(harness.read_events(reader, 2))
    harness.check_exactly_once([harness.recognise(data) for data in found], ["key"], 30)


def check_two_writers() -> None:
    """Transactions of two writers are open side by side, and are whole in the stream, in the order of their commits."""
    client, scope = _stream(1)
    writers = [client.create_transaction_writer(scope, "stream", 10 + i) for i in range(2)]
    rounds = 10 if harness.FULL else 4
    for number in range(rounds):
        open_now = [writer.begin_txn() for writer in writers]
        for sequence in range(10):
            for which, transaction in enumerate(open_now):
                name = f"writer-{which}"
                data = harness.event(name, number * 10 + sequence, 100)
                transaction.write_event_bytes(data, routing_key=name)
        for transaction in reversed(open_now) if number % 2 else open_now:
            transaction.commit()
        for transaction in open_now:
            _ended(transaction)
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    found = [harness.recognise(data) for data in asyncio.run(harness.read_events(reader, rounds * 20))]
    harness.check_exactly_once(found, ["writer-0", "writer-1"], rounds * 10)
    for start in range(0, len(found), 10):
        ten = found[start : start + 10]
        assert len({key for key, _ in ten}) == 1, f"transactions mixed: {ten}"


def check_ended_transactions() -> None:
    client, scope = _stream(1)
    writer = client.create_transaction_writer(scope, "stream", 4)
    for end in ("commit", "abort"):
        transaction = writer.begin_txn()
        transaction.write_event("text", "key")
        getattr(transaction, end)()
        _ended(transaction)
        for action in (transaction.commit, transaction.abort, lambda: transaction.write_event("more", "key")):  # noqa: B023
            harness.error_of(TxnFailed, action)


def check_handle_by_id() -> None:
    """A handle made from the id knows the state; only the first handle can write and commit."""
    client, scope = _stream(1)
    writer = client.create_transaction_writer(scope, "stream", 5)
    transaction = writer.begin_txn()
    transaction.write_event_bytes(harness.event("key", 0, 50), routing_key="key")
    handle = writer.get_txn(transaction.get_txn_id())
    assert handle.get_txn_id() == transaction.get_txn_id()
    assert handle.is_open() is True
    harness.error_of(TxnFailed, handle.commit)
    assert transaction.is_open() is True
    transaction.commit()
    harness.wait_until(lambda: not handle.is_open(), "the commit")
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    assert len(asyncio.run(harness.read_events(reader, 1))) == 1


def check_large_events_in_transactions() -> None:
    client, scope = _stream(1)
    writer = client.create_transaction_writer(scope, "stream", 6)
    transaction = writer.begin_txn()
    for sequence, length in enumerate((100, 1 << 20, 4 << 20, 100)):
        transaction.write_event_bytes(harness.event("key", sequence, length), routing_key="key")
    transaction.commit()
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    found = asyncio.run(harness.read_events(reader, 4))
    harness.check_exactly_once([harness.recognise(data) for data in found], ["key"], 4)


def check_sealing_aborts_open_transactions() -> None:
    client, scope = _stream(1)
    harness.write_keyed(client.create_writer(scope, "stream", harness.IN_FLIGHT), ["plain"], 0, 3)
    writer = client.create_transaction_writer(scope, "stream", 7)
    transaction = writer.begin_txn()
    transaction.write_event_bytes(harness.event("open", 0, 50), routing_key="open")
    assert client.seal_stream(scope, "stream") is True
    assert transaction.is_open() is False
    reader = client.create_reader_group("group", scope, "stream").create_reader("reader")
    found = asyncio.run(harness.read_events(reader, 3))
    harness.check_exactly_once([harness.recognise(data) for data in found], ["plain"], 3)
    asyncio.run(harness.read_nothing(reader))
    assert client.delete_stream(scope, "stream") is True


if __name__ == "__main__":
    harness.run(globals())
