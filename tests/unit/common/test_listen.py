"""Listening sockets."""

from __future__ import annotations

import asyncio
import socket

from harness.streamserver import stream_server
from tailrace.common import limits
from tailrace.common.http import listen


async def test_answers_are_not_held_back_for_acknowledgements_and_peers_that_vanish_are_noticed() -> None:
    accepted: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

    async def on_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("socket")
        options = (socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval = (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        accepted.set_result([own.getsockopt(*option) for option in (*options, idle, interval)])

    listener = listen("test", "127.0.0.1", 0)
    async with stream_server(on_connection, sock=listener):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        found = await accepted
        assert all(found[:2])
        assert found[2:] == [limits.TCP_KEEPALIVE_IDLE_S, limits.TCP_KEEPALIVE_INTERVAL_S]
        await reader.read()
        writer.close()
        await writer.wait_closed()
