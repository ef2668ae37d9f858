"""How listeners for HTTP end: no connection outlasts them, nor holds them up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
import uvicorn

from harness.streamserver import read_to_the_end
from tailrace.common import limits
from tailrace.common.http import listen, serve_app

DEADLINE_S = 120.0


async def wait_for_the_end(scope: Any, receive: Any, send: Any) -> None:
    """An application that never answers."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_while_it_ends_does_not_hold_it_up(
    turns: int, peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has turned so many times since a client connected."""
    monkeypatch.setattr(limits, "CLOSE_DEADLINE_S", 3600.0)
    listener = listen("test", "127.0.0.1", 0)
    address = listener.getsockname()
    began = asyncio.Event()
    serving = uvicorn.Server.main_loop

    async def connect_last(server: uvicorn.Server) -> None:
        began.set()
        await serving(server)
        with contextlib.suppress(BlockingIOError):
            peer.connect(address)
        for _ in range(turns):
            await asyncio.sleep(0)

    monkeypatch.setattr(uvicorn.Server, "main_loop", connect_last)
    async with asyncio.timeout(DEADLINE_S):
        async with serve_app(wait_for_the_end, listener):
            await began.wait()
        await read_to_the_end(peer)


async def test_a_request_that_outlasts_the_deadline_ends_with_its_connection(
    peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLOSE_DEADLINE_S", 1.0)
    began = asyncio.Event()

    async def begin(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        await wait_for_the_end(scope, receive, send)

    listener = listen("test", "127.0.0.1", 0)
    async with asyncio.timeout(DEADLINE_S):
        async with serve_app(begin, listener):
            loop = asyncio.get_running_loop()
            await loop.sock_connect(peer, listener.getsockname())
            await loop.sock_sendall(peer, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await began.wait()
        await read_to_the_end(peer)


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\n", b"HEAD / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nContent-Length: 1000000\r\n"]
)
async def test_a_read_ends_with_its_peer(peer: socket.socket, head: bytes) -> None:
    """A list that goes on for a peer that is gone would cost minutes, as often as peers come."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        try:
            await wait_for_the_end(scope, receive, send)
        finally:
            ended.set()

    listener = listen("test", "127.0.0.1", 0)
    async with asyncio.timeout(DEADLINE_S), serve_app(work, listener):
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, listener.getsockname())
        await loop.sock_sendall(peer, head + b"Host: x\r\n\r\n")
        await began.wait()
        peer.close()
        await ended.wait()


async def test_a_change_goes_on_without_its_peer(peer: socket.socket) -> None:
    began, gone, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        await asyncio.sleep(0)
        ended.set()

    listener = listen("test", "127.0.0.1", 0)
    async with asyncio.timeout(DEADLINE_S), serve_app(work, listener):
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, listener.getsockname())
        await loop.sock_sendall(peer, b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        await began.wait()
        peer.close()
        await gone.wait()
        await ended.wait()


async def test_a_change_behind_a_read_has_its_body(peer: socket.socket) -> None:
    """The read has looked for the end of the connection until then, and takes nothing of the next request."""

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        length = b"%d" % len(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await asyncio.sleep(0)  # until it waits for the peer
        await send({"type": "http.response.body", "body": body})

    listener = listen("test", "127.0.0.1", 0)
    async with asyncio.timeout(DEADLINE_S), serve_app(echo, listener):
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, listener.getsockname())
        read = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        change = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nchange"
        last = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlast"
        await loop.sock_sendall(peer, read + change + read + read + last)
        answered = b""
        while part := await loop.sock_recv(peer, 65536):
            answered += part
    assert answered.count(b"HTTP/1.1 200") == 5
    assert b"\r\n\r\nchangeHTTP" in answered
    assert answered.endswith(b"\r\n\r\nlast")
