"""Who answers on the port of a worker that is away.

See docs/design.md#processes, docs/protocol/wire.md#failure-replies.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from harness.streamserver import stream_server
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.prober import HelloProber
from tailrace.common.http import listen
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.wrong_host_responder import NoContainers, WrongHostResponder
from tailrace.wire import codec
from tailrace.wire import commands as c

NAME = "scope/stream/0.#epoch.0"
WRITER = bytes(16)
REQUESTS: list[c.Command] = [
    c.SetupAppend(7, WRITER, NAME, ""),
    c.ReadSegment(NAME, 0, 100, "", 7),
    c.GetStreamSegmentInfo(7, NAME, ""),
    c.GetSegmentAttribute(7, NAME, WRITER, ""),
    c.UpdateSegmentAttribute(7, NAME, WRITER, 1, 2, ""),
    c.CreateSegment(7, NAME, 0, 0, ""),
    c.CreateTransientSegment(7, WRITER, NAME, ""),
    c.SealSegment(7, NAME, ""),
    c.DeleteSegment(7, NAME, ""),
    c.UpdateSegmentPolicy(7, NAME, 0, 0, ""),
    c.TruncateSegment(7, NAME, 0, ""),
    c.MergeSegments(7, NAME, NAME + "#transaction", ""),
    c.GetTableSegmentInfo(7, NAME, ""),
    c.CreateTableSegment(7, NAME, ""),
    c.DeleteTableSegment(7, NAME, False, ""),
    c.ReadTable(7, NAME, "", []),
    c.ReadTableKeys(7, NAME, "", 10),
    c.UpdateTableEntries(7, NAME, "", []),
    c.RemoveTableKeys(7, NAME, "", []),
]


@pytest.fixture
def listener() -> socket.socket:
    return listen("store", "127.0.0.1", 0)


@pytest.fixture
async def stand_in(listener: socket.socket) -> AsyncIterator[WrongHostResponder]:
    made = WrongHostResponder(listener, SystemClock(), SystemEntropy())
    yield made
    await made.end()
    listener.close()


async def connect(listener: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*listener.getsockname()[:2])


async def receive(reader: asyncio.StreamReader) -> c.Command:
    async with asyncio.timeout(120):
        code, length = codec.FRAME_HEADER.unpack(await reader.readexactly(8))
        return codec.decode(code, await reader.readexactly(length))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda command: type(command).__name__)
async def test_every_request_is_sent_elsewhere(
    stand_in: WrongHostResponder, listener: socket.socket, request_: c.Command
) -> None:
    await stand_in.begin()
    reader, writer = await connect(listener)
    writer.write(codec.encode(c.Hello(16, 5)) + codec.encode(request_) + codec.encode(c.KeepAlive()))
    assert isinstance(await receive(reader), c.Hello)
    answers = [await receive(reader), await receive(reader)]
    assert c.KeepAlive() in answers
    assert c.WrongHost(7, NAME, "", "") in answers
    writer.close()


async def test_it_answers_clients_that_waited_and_leaves_the_socket_to_the_worker(
    stand_in: WrongHostResponder, listener: socket.socket
) -> None:
    """A client that connected before is answered; all connections are closed when the worker is back."""
    reader, writer = await connect(listener)
    writer.write(codec.encode(c.SealSegment(1, NAME, "")))
    await stand_in.begin()
    await stand_in.begin()  # a second call changes nothing
    assert stand_in.answers
    assert await receive(reader) == c.WrongHost(1, NAME, "", "")
    await stand_in.end()
    assert not stand_in.answers
    assert await reader.read() == b"", "the client must meet the worker"
    writer.close()

    async def close(_: asyncio.StreamReader, made: asyncio.StreamWriter) -> None:
        made.close()

    async with stream_server(close, sock=listener.dup()):  # the worker
        reader, writer = await connect(listener)
        assert await reader.read() == b""
        writer.close()

    reader, writer = await connect(listener)
    await stand_in.begin()  # and away again
    writer.write(codec.encode(c.SealSegment(2, NAME, "")))
    assert await receive(reader) == c.WrongHost(2, NAME, "", "")
    writer.close()


async def test_a_client_that_asks_for_the_worker_is_not_misled(
    stand_in: WrongHostResponder, listener: socket.socket
) -> None:
    await stand_in.begin()
    host, port = listener.getsockname()[:2]
    endpoints = ContainerEndpoints(Endpoint(host, port))
    assert not await HelloProber().answers("w", endpoints)
    await stand_in.end()
    server = SegmentStoreServer(NoContainers(), InFlightBudget(), SystemClock(), SystemEntropy())
    await server.start_on(listener.dup())
    assert await HelloProber().answers("w", endpoints), "a worker without containers is there"
    await server.close()
