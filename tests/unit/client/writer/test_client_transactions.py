"""Transactions: where their events go, how they end, and that their lease is extended."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName, TransactionState
from tailrace.client.writer.transactions import TransactionalWriter
from tailrace.common import names
from tailrace.common.errors import DeadlineError, IllegalStateError, NoSuchTransactionError
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
FIRST = uuid.UUID(int=1)
Split = Callable[[bytes | bytearray], list[bytes]]


@pytest.fixture
async def writer(controller: Any, context: ClientContext) -> AsyncIterator[TransactionalWriter]:
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    async with TransactionalWriter(context, STREAM, lease_ms=60) as writer:
        yield writer


def methods(controller: Any) -> list[str]:
    return [method for method, _ in controller.calls]


def segment_of(identifier: int, transaction: uuid.UUID = FIRST) -> str:
    return names.transaction_segment_name(STREAM.segment(identifier), transaction)


async def test_events_go_to_the_transactions_segments(
    store: Any, controller: Any, writer: TransactionalWriter, split: Split
) -> None:
    async with await writer.begin() as transaction:
        for i in range(40):
            transaction.write_event(b"%d" % i, str(i))
    assert transaction.transaction_id == FIRST
    stored = [event for i in (0, 1) for event in split(store.segments[segment_of(i)].data)]
    assert sorted(stored) == sorted(b"%d" % i for i in range(40))
    assert all(split(store.segments[segment_of(i)].data) for i in (0, 1))
    assert store.segments[STREAM.segment(0)].data == b""
    assert methods(controller)[-1] == "commitTransaction"


async def test_an_exception_aborts(controller: Any, writer: TransactionalWriter) -> None:
    transaction = await writer.begin()

    async def fail() -> None:
        async with transaction:
            transaction.write_event(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert methods(controller)[-1] == "abortTransaction"
    with pytest.raises(IllegalStateError):
        transaction.write_event(b"y")


async def test_events_are_durable_before_the_commit(
    store: Any, controller: Any, writer: TransactionalWriter, split: Split
) -> None:
    transaction = await writer.begin()
    store.cut(c.AppendBlockEnd, times=2, after=True)
    transaction.write_events([b"a", b"b"], "k")
    await transaction.commit(timestamp_ms=5)
    stored = [event for i in (0, 1) for event in split(store.segments[segment_of(i)].data)]
    assert stored == [b"a", b"b"]
    assert controller.calls[-1][1].timestamp == 5


async def test_a_transaction_that_is_gone_cannot_be_committed(
    store: Any, controller: Any, writer: TransactionalWriter
) -> None:
    transaction = await writer.begin()
    del store.segments[segment_of(0)], store.segments[segment_of(1)]
    with pytest.raises(IllegalStateError, match="no longer open"):
        await transaction.write_event(b"x")
    with pytest.raises(IllegalStateError, match="no longer open"):
        await transaction.commit()
    assert "commitTransaction" not in methods(controller)


async def test_the_lease_is_extended_until_the_end(controller: Any, writer: TransactionalWriter) -> None:
    transaction = await writer.begin()
    third = asyncio.Event()

    def answer(_: object) -> pb.PingTxnStatus:
        if methods(controller).count("pingTransaction") == 3:
            third.set()
        return pb.PingTxnStatus()

    controller.answers["pingTransaction"] = answer
    async with asyncio.timeout(120):
        await third.wait()
    await transaction.abort()
    assert transaction._pinger.done()


async def test_a_refused_ping_ends_the_transaction(controller: Any, writer: TransactionalWriter) -> None:
    controller.answers["pingTransaction"] = lambda _: pb.PingTxnStatus(status=pb.PingTxnStatus.ABORTED)
    transaction = await writer.begin()
    with pytest.raises(IllegalStateError, match="aborted"):
        await transaction.ping()
    async with asyncio.timeout(120):
        await transaction._pinger
    with pytest.raises(IllegalStateError, match="aborted"):
        transaction.write_event(b"x")


async def test_a_ping_that_fails_unexpectedly_ends_the_transaction(controller: Any, context: ClientContext) -> None:
    def broken(_: object) -> object:
        raise ZeroDivisionError("a defect")

    controller.begin((0, 0.0, 1.0))
    controller.answers["pingTransaction"] = broken
    async with TransactionalWriter(context, STREAM, lease_ms=30) as writer:
        transaction = await writer.begin()
        async with asyncio.timeout(120):
            await asyncio.wait([transaction._pinger])
        with pytest.raises(IllegalStateError, match="ZeroDivisionError: a defect"):
            transaction.write_event(b"x")


async def test_an_open_transaction_is_resumed(
    store: Any, controller: Any, writer: TransactionalWriter, split: Split
) -> None:
    first = await writer.begin()
    first.stop_pinging()
    pings = methods(controller).count("pingTransaction")
    resumed = await writer.resume(first.transaction_id)
    assert methods(controller).count("pingTransaction") > pings, "its lease may end before the first ping of the handle"
    await resumed.write_event(b"x", "key")
    assert split(store.segments[segment_of(1)].data) == [b"x"]
    controller.transaction_state = pb.TxnState.ABORTED
    with pytest.raises(IllegalStateError, match="aborted"):
        await writer.resume(first.transaction_id)
    controller.transaction_state = pb.TxnState.OPEN
    controller.answers["pingTransaction"] = lambda _: pb.PingTxnStatus(status=pb.PingTxnStatus.LEASE_TOO_LARGE)
    with pytest.raises(IllegalStateError, match="not extended: lease_too_large"):
        await writer.resume(first.transaction_id)
    controller.transaction_state = pb.TxnState.UNKNOWN
    with pytest.raises(NoSuchTransactionError):
        await writer.resume(first.transaction_id)


async def test_waiting_for_visibility(controller: Any, writer: TransactionalWriter) -> None:
    transaction = await writer.begin()
    await transaction.commit()
    controller.transaction_state = pb.TxnState.COMMITTING
    with pytest.raises(DeadlineError):
        await transaction.wait_until_visible(0.03)
    controller.transaction_state = pb.TxnState.COMMITTED
    await transaction.wait_until_visible(1)
    assert await transaction.state() is TransactionState.COMMITTED
    controller.transaction_state = pb.TxnState.ABORTED
    with pytest.raises(IllegalStateError):
        await transaction.wait_until_visible(1)
