"""The gRPC listener: statuses, metadata, ports; and the seams that every request passes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from harness.endpoints import single_endpoint_map
from tailrace.cluster.endpoints import Endpoint, ListenerKind
from tailrace.common import limits
from tailrace.common.auth import AccessLevel, Principal
from tailrace.common.errors import PermissionDeniedError, StartError
from tailrace.controller.calls.access import RULES
from tailrace.controller.calls.services import SERVICES
from tailrace.controller.grpc.server import ControllerServer
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb
from tailrace.rpc import controller_pb2_grpc

SETTINGS, PING, ACK = 4, 6, 1
"""Kinds of HTTP/2 frames, and the flag of those that answer another one."""
DEADLINE_S = 120.0


@pytest.fixture
async def server(controller: Any) -> AsyncIterator[ControllerServer]:
    """A listener on an ephemeral port."""
    made = ControllerServer(controller.services, "127.0.0.1", 0, advertise="controller.example")
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def stub(server: ControllerServer) -> AsyncIterator[Any]:
    """A stub connected to the listener."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield controller_pb2_grpc.ControllerServiceStub(channel)


async def test_calls_travel(stub: Any, server: ControllerServer) -> None:
    created = await stub.createScope(pb.ScopeInfo(scope="scope"), metadata=[("requestdescriptor", "x")])
    assert created.status == pb.CreateScopeStatus.SUCCESS
    listed = await stub.getControllerServerList(pb.ServerRequest())
    assert [(node.endpoint, node.port) for node in listed.nodeURI] == [("controller.example", server.port)]
    info = pb.StreamInfo(scope="scope", stream="any")
    node = await stub.getURI(pb.SegmentId(streamInfo=info, segmentId=5))
    assert (node.endpoint, node.port) == ("store", 1)
    assert (await stub.getDelegationToken(info)).delegationToken == ""


@pytest.mark.parametrize(
    ("rpc", "request_message", "code", "text"),
    [
        (
            "getCurrentSegments",
            pb.StreamInfo(scope="s", stream="x"),
            grpc.StatusCode.NOT_FOUND,
            "stream s/x does not exist",
        ),
        (
            "createTransaction",
            pb.CreateTxnRequest(streamInfo=pb.StreamInfo(scope="s", stream="x"), lease=1),
            grpc.StatusCode.UNKNOWN,
            "lease is 1 ms",
        ),
        ("createStream", pb.StreamConfig(streamInfo=pb.StreamInfo(stream="x")), grpc.StatusCode.UNKNOWN, "minNum"),
    ],
)
async def test_errors_are_statuses(stub: Any, rpc: str, request_message: Any, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(stub, rpc)(request_message)
    assert caught.value.code() is code
    assert text in (caught.value.details() or "")
    trailing: Any = caught.value.trailing_metadata()
    named = dict(trailing or ())
    assert str(named["tailrace-error"]).endswith("Error"), "the trailing metadata names the error behind a status"


async def test_what_is_no_request_is_refused(server: ControllerServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICES[0].full_name}/createScope", bytes, bytes)(b"\xff")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == "the request is no ScopeInfo"


async def test_an_answer_that_is_too_long_is_an_error_that_says_so(
    stub: Any, world: Any, make_api: Any, controller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of an earlier version, whose segments have more names than a message has room for."""
    api = make_api(controller, stream="s" * 100)
    await api.setup(100)
    monkeypatch.setattr(limits, "RPC_MESSAGE_MAX_BYTES", 10_000)
    for rpc, request in (
        ("getCurrentSegments", api.info),
        ("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=api.info, epoch=0)),
        ("getSegments", pb.GetSegmentsRequest(streamInfo=api.info)),
        ("createTransaction", pb.CreateTxnRequest(streamInfo=api.info, lease=20_000)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(stub, rpc)(request)
        assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE, "clients do not try again"
        assert re.search(r"answer .* \d+ bytes, .* 10000", caught.value.details() or ""), caught.value.details()
    root = await controller.services.core.context.store.load(StreamKey("scope", api.stream))
    assert (root.open_count, root.transaction_counter) == (0, 0), "a transaction that a client cannot learn of"


async def test_large_requests_run_one_after_the_other_and_small_ones_beside_them(
    server: ControllerServer, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes many times its length, decoded."""
    begun: list[str] = []
    go = asyncio.Event()
    call = server._services.call

    async def held(rpc: str, request: Any, *arguments: Any) -> Any:
        begun.append(request.scope[:1])
        await go.wait()
        return await call(rpc, request, *arguments)

    monkeypatch.setattr(server._services, "call", held)
    large, small = pb.ScopeInfo(scope="x" * 3_000_000), pb.ScopeInfo(scope="s")
    answers = [asyncio.ensure_future(stub.checkScopeExists(large)) for _ in range(3)]
    async with asyncio.timeout(120):
        while not begun:  # noqa: ASYNC110 - of the server's making
            await asyncio.sleep(0.001)
        answers.append(asyncio.ensure_future(stub.checkScopeExists(small)))
        while "s" not in begun:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert begun == ["x", "s"]
        go.set()
        assert not any(answer.exists for answer in await asyncio.gather(*answers))
    assert begun.count("x") == 3


async def test_a_port_in_use_is_reported(server: ControllerServer, controller: Any) -> None:
    with pytest.raises(StartError, match=str(server.port)):
        await ControllerServer(controller.services, "127.0.0.1", server.port).start()


def test_every_call_has_its_rule() -> None:
    assert sorted(RULES) == sorted(method.name for service in SERVICES for method in service.methods)


class Seams:
    """Records what is asked, and refuses one resource."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, AccessLevel]] = []
        self.used: list[tuple[str, int, int]] = []

    def authorize(self, principal: Principal, token: str, resource: str, level: AccessLevel) -> None:
        """Record; refuse what is secret."""
        self.asked.append((token, resource, level))
        if "secret" in resource:
            raise PermissionDeniedError("authorization failed")

    def account(self, scope: str, length_bytes: int, operations: int) -> None:
        """Record."""
        self.used.append((scope, length_bytes, operations))


async def test_requests_pass_the_seams(world: Any) -> None:
    seams = Seams()
    controller = await world.start(authorize=seams.authorize, account=seams.account)
    server = ControllerServer(controller.services, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = controller_pb2_grpc.ControllerServiceStub(channel)
        await stub.checkScopeExists(pb.ScopeInfo(scope="a"), metadata=[("authorization", "Basic eA==")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.sealStream(pb.StreamInfo(scope="secret", stream="s"))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        for stream in ("_RGg", "_MARKs"):
            await stub.checkStreamExists(pb.StreamInfo(scope="a", stream=stream))
    await server.close()
    assert seams.asked == [
        ("Basic eA==", "prn::/scope:a", AccessLevel.READ),
        ("", "prn::/scope:secret/stream:s", AccessLevel.READ_UPDATE),
        ("", "prn::/scope:a/reader-group:g", AccessLevel.READ),
        ("", "prn::/scope:a/stream:s", AccessLevel.READ),
    ]
    assert seams.used == [("a", 0, 1)] * 3


async def test_external_clients_are_sent_to_external_endpoints(world: Any) -> None:
    containers = single_endpoint_map(4, Endpoint("inside", 1), Endpoint("outside", 2))
    controller = await world.start(containers=containers)
    for kind, host in ((ListenerKind.INTERNAL, "inside"), (ListenerKind.EXTERNAL, "outside")):
        server = ControllerServer(controller.services, "127.0.0.1", 0, listener=kind)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = controller_pb2_grpc.ControllerServiceStub(channel)
            segment = pb.SegmentId(streamInfo=pb.StreamInfo(scope="scope", stream="any"))
            assert (await stub.getURI(segment)).endpoint == host
        await server.close()


async def test_calls_above_the_limit_are_to_be_repeated(world: Any, monkeypatch: Any) -> None:
    gate, reached, get = asyncio.Event(), asyncio.Event(), world.metadata.get
    begun = 0

    async def gated(*arguments: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == 3:
            reached.set()
        await gate.wait()
        return await get(*arguments)

    controller = await world.start()
    server = ControllerServer(controller.services, "127.0.0.1", 0, calls_max=3)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel, asyncio.timeout(120):
        stub = controller_pb2_grpc.ControllerServiceStub(channel)
        monkeypatch.setattr(world.metadata, "get", gated)
        running = [stub.checkScopeExists(pb.ScopeInfo(scope=f"scope{number}")) for number in range(3)]
        await reached.wait()
        for number in range(3):
            with pytest.raises(grpc.aio.AioRpcError, match="3 calls are running") as caught:
                await stub.checkScopeExists(pb.ScopeInfo(scope=f"more{number}"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # what the Java client repeats
        gate.set()
        assert not any([(await call).exists for call in running])
        assert not (await stub.checkScopeExists(pb.ScopeInfo(scope="later"))).exists
    await server.close()


async def test_calls_far_above_the_limit_are_to_be_repeated_too(world: Any, monkeypatch: Any) -> None:
    """They wait in gRPC until the loop takes them. Without room there they would end as if the client had cancelled."""
    gate, get = asyncio.Event(), world.metadata.get

    async def gated(*arguments: Any) -> Any:
        await gate.wait()
        return await get(*arguments)

    controller = await world.start()
    server = ControllerServer(controller.services, "127.0.0.1", 0, calls_max=2)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel, asyncio.timeout(DEADLINE_S):
        stub = controller_pb2_grpc.ControllerServiceStub(channel)
        assert not (await stub.checkScopeExists(pb.ScopeInfo(scope="connected"))).exists
        monkeypatch.setattr(world.metadata, "get", gated)
        calls = [asyncio.ensure_future(_status(stub, number)) for number in range(2500)]
        while sum(call.done() for call in calls) < len(calls) - 2:
            await asyncio.wait([call for call in calls if not call.done()], return_when=asyncio.FIRST_COMPLETED)
        gate.set()
        statuses = await asyncio.gather(*calls)
    await server.close()
    assert statuses.count((grpc.StatusCode.OK, "")) == 2
    refusals = {
        (grpc.StatusCode.UNAVAILABLE, "2 calls are running, which is the limit; try again"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!"),  # gRPC's own; Java repeats it as well
    }
    assert set(statuses) - refusals == {(grpc.StatusCode.OK, "")}


async def _status(stub: Any, number: int) -> tuple[grpc.StatusCode, str]:
    try:
        await stub.checkScopeExists(pb.ScopeInfo(scope=f"scope{number}"))
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def test_a_silent_peer_that_answers_no_ping_is_given_up(controller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node may be dead, and its place is one of those that connections have."""
    monkeypatch.setattr(limits, "RPC_PING_AFTER_S", 1.0)
    monkeypatch.setattr(limits, "RPC_PING_TIMEOUT_S", 10.0)  # while this test answers, however slow its machine is
    server = ControllerServer(controller.services, "127.0.0.1", 0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _http2_frame(SETTINGS))
        answered = 0
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    head = await reader.readexactly(9)
                    payload = await reader.readexactly(int.from_bytes(head[:3]))
                except asyncio.IncompleteReadError:
                    break  # the server closed the connection
                kind, is_answer = head[3], head[4] & ACK
                if kind == SETTINGS and not is_answer:
                    writer.write(_http2_frame(SETTINGS, ACK))
                if kind == PING and not is_answer and answered < 3:
                    answered += 1
                    writer.write(_http2_frame(PING, ACK, payload))
        assert answered == 3, "it stayed while it answered"
    finally:
        writer.close()
        await server.close()


def _http2_frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + bytes(4) + payload
