"""A transaction whose lease ends is aborted, although the server was killed while the lease ran."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.server import Server
from harness.workload import create_stream, read_from_head
from tailrace.client import Client, StreamName
from tailrace.client.model import TransactionState
from tailrace.common import limits
from tailrace.common.errors import IllegalStateError

STREAM = StreamName("leases", "events")
LEASE_S = limits.TRANSACTION_LEASE_MIN_MS / 1000
ABORTED_DEADLINE_S = 240.0


async def test_a_lease_ends_after_a_kill(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with Server(tmp_path, options=("--cache", "64MiB", "--containers", "2")) as server:
        await server.start()
        async with Client(server.controller) as client:
            await create_stream(client, STREAM, 2)
            async with client.transactional_writer(STREAM, lease_ms=limits.TRANSACTION_LEASE_MIN_MS) as writer:
                began_s = loop.time()
                transaction = await writer.begin()
                await transaction.write_event(b"never seen", "key")
                transaction.stop_pinging()
                await server.kill()
                await server.start()
                async with asyncio.timeout(ABORTED_DEADLINE_S):
                    while await transaction.state() is not TransactionState.ABORTED:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                assert loop.time() - began_s >= LEASE_S, "it was aborted before its lease ended"
                with pytest.raises(IllegalStateError):
                    await transaction.commit()
            async with client.writer(STREAM) as plain:
                await plain.write_event(b"seen", "key")
            assert [event for segment in (await read_from_head(client, STREAM)) for event in segment] == [b"seen"]
