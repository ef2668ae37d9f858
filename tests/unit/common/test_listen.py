"""Listening sockets."""

from __future__ import annotations

import asyncio
import socket

from tailrace.common.http import listen


async def test_answers_are_not_held_back_for_acknowledgements() -> None:
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def on_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("socket")
        accepted.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = listen("test", "127.0.0.1", 0)
    server = await asyncio.start_server(on_connection, sock=listener)
    async with server:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await accepted != 0
        await reader.read()
        writer.close()
        await writer.wait_closed()
