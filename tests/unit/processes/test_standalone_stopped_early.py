"""A standalone server that is asked to stop while it starts does not wait for the end of its start."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.server import STOP_DEADLINE_S, Server
from harness.streamserver import StreamServer, stream_server

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@pytest.fixture
async def silent() -> AsyncIterator[StreamServer]:
    """An endpoint of S3 that takes requests, never answers, and holds its connections."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass

    async with stream_server(hold) as server:
        yield server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminated", "interrupted"])
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_start_that_waits_for_the_object_store_ends_with_the_signal(
    tmp_path: Path, silent: StreamServer, workers: int, number: signal.Signals
) -> None:
    """A start that goes on until the store's deadline fails: it ends with code 1 and says that Tier 2 is away."""
    tier2 = ("--tier2", "s3://bucket/p", "--s3-endpoint", f"http://127.0.0.1:{silent.address[1]}")
    async with Server(tmp_path, (*tier2, "--cache", "128MiB"), KEYS, workers=workers) as server:
        await server.spawn()
        process = server.process
        assert process is not None
        async with asyncio.timeout(STOP_DEADLINE_S):
            while not silent.connections:
                assert process.returncode is None, server.log
                await asyncio.sleep(0.01)
        process.send_signal(number)
        async with asyncio.timeout(STOP_DEADLINE_S):
            code = await process.wait()
        assert code == 0, server.log
        assert len(server.log_events("stopping")) == 1
        assert not server.log_events("serving")
        assert "Traceback" not in server.log
        assert "tailrace: " not in server.log, "it gives no reason: it was asked to stop"
