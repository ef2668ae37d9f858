"""The server of tests' event loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import pytest

from harness.streamserver import read_to_the_end, stream_server


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)


@pytest.mark.parametrize("turns", range(8))
async def test_no_connection_outlasts_it(turns: int, peer: socket.socket) -> None:
    """Wherever the server is with a connection when it is closed: warnings of the collector fail this test."""
    async with stream_server(echo) as server:
        with contextlib.suppress(BlockingIOError):
            peer.connect(server.address)
        for _ in range(turns):
            await asyncio.sleep(0)
    async with asyncio.timeout(120):
        await read_to_the_end(peer)
    gc.collect()


async def test_it_serves_until_the_client_ends() -> None:
    async with stream_server(echo) as server, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"ab")
        assert await reader.readexactly(2) == b"ab"
        assert len(server.connections) == 1
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_errors_are_raised_at_the_end() -> None:
    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise LookupError("planted")

    async def use() -> None:
        async with stream_server(fail) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    with pytest.raises(ExceptionGroup, match="serving failed") as caught:
        await use()
    assert [str(error) for error in caught.value.exceptions] == ["planted"]
