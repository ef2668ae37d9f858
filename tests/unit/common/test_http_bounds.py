"""An HTTP listener bounds what anybody may send it: bodies, connections, and the time to say something."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil
import pytest
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from tailrace.common import limits
from tailrace.common.http import Awaited, listen, serve_app

CONNECTIONS_MAX = 4


async def length_of_body(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with the length of the body."""
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": b"%8d" % length})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets listeners wait only shortly for their peers from the call on."""

    def shorten() -> None:
        monkeypatch.setattr(limits, "HTTP_PEER_DEADLINE_S", 0.2)

    return shorten


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A listener with that application and few connections."""
    listener = listen("test", "127.0.0.1", 0)
    async with serve_app(length_of_body, listener, CONNECTIONS_MAX):
        yield listener.getsockname()[1]


async def ask(port: int, *parts: bytes) -> bytes:
    """Everything that is answered to these bytes; the connection is closed by the server, or kept by it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(120):
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await reader.read(4096)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_bodies_are_bounded_by_what_they_say_and_by_what_they_are(port: int) -> None:
    most = limits.HTTP_BODY_MAX_BYTES
    head = b"POST / HTTP/1.1\r\nHost: x\r\n"
    fits = await ask(port, head + b"Content-Length: %d\r\n\r\n" % most, bytes(most))
    assert fits.startswith(b"HTTP/1.1 200")
    assert fits.endswith(b"%8d" % most)
    declared = await ask(port, head + b"Content-Length: %d\r\n\r\n" % (most + 1))
    assert declared.startswith(b"HTTP/1.1 413")
    chunk = b"%x\r\n" % 65536 + bytes(65536) + b"\r\n"
    chunked = await ask(port, head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * (most // 65536 + 1))
    assert chunked.startswith(b"HTTP/1.1 413")


async def test_a_body_that_turns_out_too_large_is_413_also_where_a_framework_takes_the_error_for_bad_json() -> None:
    app = FastAPI()

    @app.post("/")
    async def echo(body: dict[str, Any]) -> dict[str, Any]:
        return body

    listener = listen("test", "127.0.0.1", 0)
    async with serve_app(app, listener, CONNECTIONS_MAX):
        port = listener.getsockname()[1]
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        chunk = b"%x\r\n" % 65536 + b" " * 65536 + b"\r\n"
        chunks = [chunk] * (limits.HTTP_BODY_MAX_BYTES // 65536 + 1)
        assert (await ask(port, head + b"Transfer-Encoding: chunked\r\n\r\n", *chunks)).startswith(b"HTTP/1.1 413")
        fits = await ask(port, head + b"Content-Length: 9\r\n\r\n", b'{"a": 1}\n')
        assert fits.endswith(b'{"a":1}')


@pytest.mark.parametrize(
    "header",
    ["Origin: http://evil.example", "origin: null", "Referer: http://x/", "Sec-Fetch-Site: same-origin"],
)
async def test_web_pages_change_nothing(port: int, header: str) -> None:
    """Also a page whose own name resolves to this listener, so that its requests are of one origin."""
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        refused = await ask(port, f"{method} / HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
        assert refused.startswith(b"HTTP/1.1 403"), method
    read = await ask(port, f"GET / HTTP/1.1\r\nHost: x\r\n{header}\r\nConnection: close\r\n\r\n".encode())
    assert read.startswith(b"HTTP/1.1 200")
    program = await ask(port, b"DELETE / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert program.startswith(b"HTTP/1.1 200")


async def test_who_says_nothing_is_sent_away(port: int, impatient: Callable[[], None]) -> None:
    assert (await ask(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 200")
    impatient()
    assert await ask(port, b"") == b""
    assert await ask(port, b"GET / HTTP/1.1\r\nX: ") == b""


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
LARGE_BYTES = 64 << 20


@pytest.mark.parametrize("rest", [HEAD, HEAD + b"12345678", b"P", HEAD[:-2]], ids=["head", "body", "byte", "end"])
@pytest.mark.parametrize("first", [b"", HEAD + b"123456789"], ids=["first", "second"])
async def test_who_begins_a_request_and_does_not_end_it_is_sent_away(
    port: int, first: bytes, rest: bytes, impatient: Callable[[], None]
) -> None:
    """Also when another request on the connection was answered before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(120):
        if first:
            writer.write(first)
            assert (await reader.readuntil(b"       9")).startswith(b"HTTP/1.1 200")
        impatient()
        writer.write(rest)
        with contextlib.suppress(ConnectionError):
            await reader.read()
    writer.close()


async def test_a_connection_that_was_answered_before_its_body_came_is_sent_away(impatient: Callable[[], None]) -> None:
    """The body that follows the answer ends the time that the connection may be kept for."""

    async def at_once(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    listener = listen("test", "127.0.0.1", 0)
    async with serve_app(at_once, listener, CONNECTIONS_MAX):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        async with asyncio.timeout(120):
            for _ in range(2):
                writer.write(HEAD)
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
                writer.write(b"123456789")
            impatient()
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("seen", "found", "stands"),
    [
        (None, ("end the head", None, 0), False),
        (("end the head", None, 0), ("end the head", None, 0), True),
        (("end the head", 1, 0), ("end the head", 2, 0), False),
        (("end the head", 1, 0), ("end the body", 1, 0), False),
        (("take the answer", None, 5), ("take the answer", None, 4), False),
        (("take the answer", None, 5), ("take the answer", None, 5), True),
    ],
)
def test_a_peer_that_goes_on_is_waited_for(seen: Any, found: Any, stands: bool) -> None:
    """However slowly it takes an answer, and also between two requests of one connection."""
    assert Awaited(*found).is_as(Awaited(*seen) if seen else None) is stands


async def test_who_takes_nothing_more_of_an_answer_that_closes_is_sent_away(impatient: Callable[[], None]) -> None:
    """Also of its last bytes: the connection is closing then."""

    async def much(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": bytes(LARGE_BYTES)})

    def open_connections() -> int:
        own = psutil.Process().net_connections("tcp")
        return sum(one.laddr[1] == port and one.status != psutil.CONN_LISTEN for one in own)

    listener = listen("test", "127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with serve_app(much, listener, CONNECTIONS_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        async with asyncio.timeout(120):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readexactly(LARGE_BYTES // 2)
            assert open_connections() == 1
            impatient()
            while open_connections():  # noqa: ASYNC110 - of the kernel's table
                await asyncio.sleep(0.01)
        writer.close()


async def test_who_does_not_take_the_answer_is_sent_away(impatient: Callable[[], None]) -> None:
    impatient()
    ended = asyncio.Event()

    async def much(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(LARGE_BYTES), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        ended.set()

    listener = listen("test", "127.0.0.1", 0)
    async with serve_app(much, listener, CONNECTIONS_MAX):
        _, writer = await asyncio.open_connection(*listener.getsockname(), limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(120):
            await ended.wait()
        writer.close()


async def test_connections_are_bounded(
    port: int, impatient: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_PEER_DEADLINE_S", 120.0)
    left = {asyncio.create_task(ask(port, b"GET / HTTP/1.1\r\n")) for _ in range(3 * CONNECTIONS_MAX)}
    while len(left) > CONNECTIONS_MAX:
        refused, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result() for task in refused} == {b""}
    impatient()
    assert len(left) == CONNECTIONS_MAX, "they have not waited for the peers' deadline"
    await asyncio.wait(left)
    monkeypatch.setattr(limits, "HTTP_PEER_DEADLINE_S", 120.0)
    assert (await ask(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 200")


GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
WITHOUT_BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"


@pytest.fixture
async def opened(port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Opens connections that send these bytes and stay; the listener closes none of them for being slow."""
    monkeypatch.setattr(limits, "HTTP_PEER_DEADLINE_S", 120.0)
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open_some(count: int, sent: bytes = b"") -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            streams.append((reader, writer))
            writer.write(sent)
        return streams[-count:]

    yield open_some
    for _, writer in streams:
        writer.close()


async def closed(reader: asyncio.StreamReader) -> None:
    """Wait until the server closes a connection on which it answers nothing."""
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


@pytest.mark.parametrize("held", [CONNECTIONS_MAX, 10 * CONNECTIONS_MAX])
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX: "], ids=["silent", "head"])
async def test_connections_without_a_request_keep_no_others_out(
    port: int, opened: Callable[..., Any], held: int, sent: bytes
) -> None:
    streams = await opened(held, sent)
    assert (await ask(port, HEALTH)).startswith(b"HTTP/1.1 200")
    for _, writer in streams[-CONNECTIONS_MAX:]:  # bytes of a head that goes on make a connection no younger
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET / HTTP/1.1\r\nX: y" if not sent else b"y")
            await writer.drain()
    assert (await ask(port, GET)).startswith(b"HTTP/1.1 200")


async def test_the_connection_that_has_had_no_request_for_longest_is_closed(
    port: int, opened: Callable[..., Any]
) -> None:
    streams = await opened(CONNECTIONS_MAX)
    asked, askers = streams[0]
    async with asyncio.timeout(120):
        askers.write(HEAD + b"123456789")
        assert (await asked.readuntil(b"       9")).startswith(b"HTTP/1.1 200")
        assert (await ask(port, GET)).startswith(b"HTTP/1.1 200")
        await closed(streams[1][0])
        for reader, writer in (streams[0], *streams[2:]):
            writer.write(GET)
            assert (await reader.read()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("beside", [b"", WITHOUT_BODY, HEALTH[:-2]], ids=["silent", "body", "health"])
async def test_health_is_answered_while_requests_hold_all_connections(
    port: int, opened: Callable[..., Any], beside: bytes
) -> None:
    """Others are refused meanwhile, and served again once a request has ended."""
    streams = await opened(CONNECTIONS_MAX, WITHOUT_BODY)
    async with asyncio.timeout(120):
        for reader, _ in streams:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await opened(5 * CONNECTIONS_MAX, beside)
        answer = await ask(port, HEALTH.replace(b"Connection: close\r\n", b""))
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer.lower()
        refused = await ask(port, GET)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"too many requests at a time" in refused
        reader, writer = streams[0]
        writer.write(b"123456789")
        assert (await reader.readuntil(b"       9")).startswith(b"HTTP/1.1 200")
        assert (await ask(port, GET)).startswith(b"HTTP/1.1 200")


async def test_connections_are_bounded_also_beside_requests_that_hold_all(
    port: int, opened: Callable[..., Any]
) -> None:
    streams = await opened(CONNECTIONS_MAX, WITHOUT_BODY)
    async with asyncio.timeout(120):
        for reader, _ in streams:
            await reader.readuntil(b"\r\n\r\n")
        silent = await opened(5 * CONNECTIONS_MAX)
        reserve = min(CONNECTIONS_MAX, limits.HTTP_CONNECTIONS_RESERVED)
        left = {asyncio.create_task(closed(reader)) for reader, _ in silent}
        while len(left) > reserve:
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        assert (await ask(port, HEALTH)).startswith(b"HTTP/1.1 200")
        assert len(left) == reserve
        for task in left:
            task.cancel()
        await asyncio.wait(left)


async def slow_body(port: int, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request from an address of this machine, whose body has begun and goes on with a byte now and then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    writer.write(HEAD + b"1")
    await writer.drain()
    return reader, writer


async def test_slow_bodies_of_one_host_keep_no_other_host_out() -> None:
    begun = asyncio.Semaphore(0)

    async def begins(scope: Any, receive: Any, send: Any) -> None:
        begun.release()
        await length_of_body(scope, receive, send)

    listener = listen("test", "127.0.0.1", 0)
    async with serve_app(begins, listener, CONNECTIONS_MAX), asyncio.timeout(120):
        port = listener.getsockname()[1]
        slow = [await slow_body(port, "127.0.0.2") for _ in range(CONNECTIONS_MAX)]
        for _ in slow:
            await begun.acquire()
        same_host, late = await slow_body(port, "127.0.0.2")
        assert (await same_host.read(4096)).startswith(b"HTTP/1.1 503"), "of one host, those that came first"
        late.close()
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.3", 0))
            writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"123456789")
            assert (await reader.read(4096)).startswith(b"HTTP/1.1 200")
            writer.close()
            await begun.acquire()
        others = []
        for _ in range(2):
            others.append(await slow_body(port, "127.0.0.3"))
            await begun.acquire()
        refused, third = await slow_body(port, "127.0.0.3")
        assert (await refused.read(4096)).startswith(b"HTTP/1.1 503"), "each host has half of the places"
        third.close()
        for reader, writer in slow[:2]:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1)
            writer.close()
        for reader, writer in (*slow[2:], *others):
            writer.write(b"23456789")
            assert (await reader.readuntil(b"       9")).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_a_connection_that_has_ended_leaves_no_cyclic_garbage(port: int) -> None:
    """A server looks for cycles rarely (`tailrace.common.cycle_collector`)."""

    def kept() -> int:
        return sum(isinstance(each, H11Protocol) for each in gc.get_objects())

    gc.collect()
    before = kept()
    gc.disable()
    try:
        assert (await ask(port, GET)).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(120):
            while kept() > before:  # noqa: ASYNC110 - of the interpreter's objects
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
