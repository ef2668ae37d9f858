"""Peers that go while the server does not read from them: their connections end, and what these hold is free again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.http import listen
from tailrace.common.limits import MIB
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.gone_peers import GonePeers, has_gone
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.wrong_host_responder import NoContainers
from tailrace.wire import codec
from tailrace.wire import commands as c

SEGMENT = "scope/stream/0.#epoch.0"
W = bytes(range(16))


def end(number: int, data: bytes, writer: bytes = W) -> c.AppendBlockEnd:
    return c.AppendBlockEnd(writer, 0, data, 1, number, number)


class FullContainer:
    """Makes appends to the model wait for room until `free`."""

    def __init__(self, setting: Any) -> None:
        self._model = setting.model
        self._submit = self._model.submit_append
        self._model.submit_append = self._wait
        self.waiters: list[asyncio.Future[None]] = []

    def _wait(self, request: Any) -> asyncio.Future[None]:
        self.waiters.append(asyncio.get_running_loop().create_future())
        return self.waiters[-1]

    def free(self) -> None:
        self._model.submit_append = self._submit
        for waiter in self.waiters:
            if not waiter.cancelled():  # its connection is there
                waiter.set_result(None)


async def waiting_client(setting: Any, full: FullContainer, data: bytes, behind: bytes = b"") -> Any:
    """A connection whose append waits for room; `behind` it bytes that are not read."""
    client = await setting.connect()
    waiting = len(full.waiters)
    writer = waiting.to_bytes(16, "big")
    await client.setup(writer, SEGMENT)
    client.send(end(1, data, writer))
    client.send_raw(behind)
    await setting.until(lambda: len(full.waiters) > waiting)
    return client


@pytest.mark.parametrize("behind", [b"", codec.encode(end(2, b"abc"))], ids=["alone", "with another behind it"])
async def test_clients_that_go_while_their_append_waits_for_room(tight: Any, behind: bytes) -> None:
    keeper = await tight.connect()
    await keeper.create(SEGMENT)
    full = FullContainer(tight)
    for _ in range(10):
        client = await waiting_client(tight, full, bytes(MIB), behind)
        client.writer.transport.abort()
    await tight.until(lambda: tight.server.connections == 1)
    assert tight.in_flight.outstanding_bytes == 0
    assert tight.receiving.pool.promised_bytes == 0
    assert all(waiter.cancelled() for waiter in full.waiters)
    full.free()
    await keeper.setup(W, SEGMENT)
    assert isinstance(await keeper.call(end(1, b"abc")), c.DataAppended)
    assert await keeper.read_all(SEGMENT) == b"abc"


async def test_a_client_that_goes_while_too_many_of_its_bytes_are_in_flight(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    model.model.hold()
    client.send(*(end(number, bytes(MIB)) for number in range(1, 18)))
    await model.until(lambda: model.in_flight.outstanding_bytes > limits.CONNECTION_IN_FLIGHT_MAX_BYTES)
    await client.writer.drain()
    client.writer.transport.abort()
    await model.until(lambda: model.server.connections == 0)
    model.model.release()
    await model.until(lambda: model.in_flight.outstanding_bytes == 0)


async def test_a_client_that_ended_its_sending_gets_what_is_queued_and_no_more(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    full = FullContainer(model)
    await client.setup(W, SEGMENT)
    client.send(c.KeepAlive(), end(1, b"abc"), c.KeepAlive())
    client.writer.write_eof()
    assert await client.receive() == c.KeepAlive()
    await client.expect_end()
    assert model.in_flight.outstanding_bytes == 0
    assert len(full.waiters) == 1


TLS = Path(__file__).parents[2] / "client/connections/tls"


@pytest.mark.parametrize("behind", [b"", codec.encode(end(2, bytes(MIB)))], ids=["alone", "with another behind it"])
async def test_a_client_that_ended_its_sending_over_tls_gets_what_is_queued(
    model: Any, behind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is not read: its end comes before the deadlines of closing, which are longer here than the test."""
    monkeypatch.setattr(limits, "CLOSE_FLUSH_DEADLINE_S", 600.0)
    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 600.0)
    keeper = await model.connect()
    await keeper.create(SEGMENT)
    full = FullContainer(model)
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    client_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_tls.check_hostname, client_tls.verify_mode = False, ssl.CERT_NONE
    server = SegmentStoreServer(model.registry, InFlightBudget(48 * MIB), SystemClock(), SystemEntropy())
    host, port = await server.start("127.0.0.1", 0, ssl=server_tls)
    reader, writer = await asyncio.open_connection(host, port, ssl=client_tls)
    async with asyncio.timeout(120):
        writer.write(b"".join(map(codec.encode, (c.Hello(16, 5), c.SetupAppend(1, W, SEGMENT, "")))))
        for _ in range(2):  # the replies: type, length and the rest of each
            await reader.readexactly(int.from_bytes((await reader.readexactly(8))[4:], "big"))
        writer.write(codec.encode(c.KeepAlive()) + codec.encode(end(1, b"abc")))
        await model.until(lambda: full.waiters)
        assert await reader.readexactly(8) == codec.encode(c.KeepAlive())
        writer.write(behind)
        writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await model.until(lambda: not server.connections)
    writer.close()
    monkeypatch.undo()
    await server.close()


async def test_clients_that_are_there_wait_on_and_each_look_is_at_a_few(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GONE_PEERS_LOOK_S", 0.01)
    monkeypatch.setattr(limits, "GONE_PEERS_PER_LOOK_MAX", 2)
    keeper = await model.connect()
    await keeper.create(SEGMENT)
    full = FullContainer(model)
    clients = [await waiting_client(model, full, b"abc") for _ in range(7)]
    for left in (6, 5, 4, 3):  # the looks come to the last one several times, and pass the others
        clients.pop().writer.transport.abort()
        await model.until(lambda left=left: model.server.connections == left + 1)
    full.free()
    for client in clients:
        assert isinstance(await client.receive(), c.DataAppended)


async def test_a_connection_whose_tls_lost_its_own_is_gone_and_the_looks_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS passes the loss on a turn of the event loop later; a look may come in between."""
    monkeypatch.setattr(limits, "GONE_PEERS_LOOK_S", 0.001)
    looks: list[str] = []

    class Lost:
        def get_extra_info(self, _: str) -> None:
            return None

    class Unread:
        def __init__(self, name: str, error: type[Exception] | None = None) -> None:
            self.name, self.error = name, error

        def end_if_peer_gone(self) -> bool:
            looks.append(self.name)
            if self.error is not None:
                raise self.error
            return False

    assert has_gone(Lost())  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    peers = GonePeers(loop)
    for each in (Unread("broken", RuntimeError), Unread("whole")):
        peers.stopped(each)
    async with asyncio.timeout(120):
        while looks.count("whole") < 2:  # noqa: ASYNC110 - by timers of the loop
            await asyncio.sleep(0.001)
    assert [type(error) for error in errors] == [RuntimeError], "the look ended there, and the next one came"


async def test_peers_that_vanish_are_probed(model: Any) -> None:
    """However the server came to its listener: it listens itself, or on a socket that its parent holds too."""
    inherited = SegmentStoreServer(NoContainers(), InFlightBudget(), SystemClock(), SystemEntropy())
    listener = listen("store", "127.0.0.1", 0)
    await inherited.start_on(listener.dup())
    for server, address in ((model.server, (model.host, model.port)), (inherited, listener.getsockname())):
        with socket.create_connection(address):
            await model.until(lambda server=server: server.connections)
            (connection,) = server._connections
            own = connection._transport.get_extra_info("socket")
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == limits.TCP_KEEPALIVE_IDLE_S
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == limits.TCP_KEEPALIVE_INTERVAL_S
    await inherited.close()
    listener.close()
