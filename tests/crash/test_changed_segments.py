"""Clients change segments of transactions and of streams directly, without the controller of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness.server import Server
from harness.workload import create_stream
from tailrace.client import Client, StreamName
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.model import TransactionState
from tailrace.client.writer.transactions import Transaction
from tailrace.common import names
from tailrace.common.errors import IllegalStateError

STREAM = StreamName("direct", "events")
PARENTS = [STREAM.segment(number) for number in range(2)]
ENDED_DEADLINE_S = 240.0
Change = Callable[[SegmentClient, list[str]], Awaitable[None]]


async def seal_a_parent(segments: SegmentClient, own: list[str]) -> None:
    await segments.seal_segment(PARENTS[1])


async def delete_a_parent(segments: SegmentClient, own: list[str]) -> None:
    await segments.delete_segment(PARENTS[1])


async def truncate_own(segments: SegmentClient, own: list[str]) -> None:
    for name in own:
        if length := (await segments.segment_info(name)).length:
            await segments.truncate_segment(name, length)


async def delete_own(segments: SegmentClient, own: list[str]) -> None:
    for name in own:
        await segments.delete_segment(name)


async def last_state(transaction: Transaction) -> TransactionState:
    """Wait until the transaction has ended; return its state."""
    async with asyncio.timeout(ENDED_DEADLINE_S):
        while True:
            state = await transaction.state()
            if state in (TransactionState.ABORTED, TransactionState.COMMITTED):
                return state
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("change", "hits_all"),
    [(seal_a_parent, True), (delete_a_parent, True), (truncate_own, False), (delete_own, False)],
    ids=["parent sealed", "parent deleted", "own truncated", "own deleted"],
)
async def test_transactions_and_their_stream_end(change: Change, hits_all: bool, tmp_path: Path) -> None:
    async with Server(tmp_path, options=("--cache", "64MiB", "--containers", "2")) as server:
        await server.start()
        async with Client(server.controller) as client:
            await create_stream(client, STREAM, 2)
            async with client.transactional_writer(STREAM) as writer:
                changed, other = await writer.begin(), await writer.begin()
                for transaction in (changed, other):
                    await transaction.write_event(b"event", "key")
                    await transaction.flush()
                own = [names.transaction_segment_name(parent, changed.transaction_id) for parent in PARENTS]
                await change(client.context.segments, own)
                for transaction in (changed, other):
                    await transaction.commit()
                assert await last_state(changed) is TransactionState.ABORTED
                expected = TransactionState.ABORTED if hits_all else TransactionState.COMMITTED
                assert await last_state(other) is expected
                with pytest.raises(IllegalStateError):
                    await client.context.controller.commit_transaction(
                        STREAM, changed.transaction_id, writer="", timestamp_ms=0
                    )
            logged = server.log_events("transaction can never be committed whole, it is aborted")
            assert str(changed.transaction_id) in [line["transaction"] for line in logged]
            await client.streams.seal_stream(STREAM)
            assert await client.streams.delete_stream(STREAM)
