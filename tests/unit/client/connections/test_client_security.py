"""TLS to controller and segment stores, credentials, and delegation tokens that expire."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from harness.localtransport import LocalTransport
from harness.pauses import PausesPastAnyDeadline
from harness.streamserver import stream_server
from tailrace.cli.session import connected
from tailrace.client import (
    BlockingClient,
    Client,
    ClientConfig,
    StreamName,
    TlsOptions,
    basic_authorization,
    bearer_authorization,
)
from tailrace.client.connections.tokens import TokenSource, expiry_ms
from tailrace.client.context import ClientContext
from tailrace.client.control.controller import ControllerClient
from tailrace.client.control.transport import GrpcTransport
from tailrace.client.types import Endpoint
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, PermissionDeniedError, TokenExpiredError, UnavailableError
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
SEGMENT = STREAM.segment(0)
TLS = Path(__file__).parent / "tls"
TLS_HANDSHAKE = b"\x16"  # the first byte of a connection with TLS
SERVICE = "io.pravega.controller.stream.api.grpc.v1.ControllerService"
DEADLINE_S = 120.0


class Cluster:
    """The tiny controller and the tiny store behind TLS; remembers the authorization of each call."""

    def __init__(self, controller: Any) -> None:
        self.controller = controller
        self.authorizations: list[str] = []
        self.address = ""

    def handler(self, name: str, kind: type[Any]) -> Any:
        """Serves one call."""

        async def handle(request: bytes, context: Any) -> Any:
            metadata = dict(context.invocation_metadata())
            self.authorizations.append(metadata.get("authorization", ""))
            return (await self.controller.handle(name, kind.FromString(request))).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handle)


CALLS = {
    "getCurrentSegments": pb.StreamInfo,
    "getURI": pb.SegmentId,
    "getDelegationToken": pb.StreamInfo,
    "getSegments": pb.GetSegmentsRequest,
}


@pytest.fixture(params=["server.pem", "other.pem"])
async def cluster(request: pytest.FixtureRequest, store: Any, controller: Any) -> AsyncIterator[Cluster]:
    """A cluster that wants a client's certificate."""
    key, chain, ca = ((TLS / name).read_bytes() for name in ("server.key", request.param, "ca.pem"))
    cluster = Cluster(controller)
    handlers = {name: cluster.handler(name, kind) for name, kind in CALLS.items()}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    credentials = grpc.ssl_server_credentials([(key, chain)], ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(TLS / request.param, TLS / "server.key")
    tls.load_verify_locations(TLS / "ca.pem")
    tls.verify_mode = ssl.CERT_REQUIRED
    await store.stop()
    await store.start(tls)
    cluster.address = f"tls://127.0.0.1:{port}"
    controller.begin((0, 0.0, 1.0))
    yield cluster
    await server.stop(grace=None)


def options(name: str | None) -> TlsOptions:
    return TlsOptions(TLS / "ca.pem", TLS / "client.pem", TLS / "client.key", name)


async def test_both_channels_use_tls_and_show_the_clients_certificate(cluster: Cluster, store: Any) -> None:
    config = ClientConfig(cluster.address, options("tailrace.test"), basic_authorization("ada", "x:y"))
    cluster.controller.answers["getDelegationToken"] = lambda _: pb.DelegationToken(delegationToken="tok")
    async with Client(config) as client, client.writer(STREAM) as writer:
        await writer.write_event(b"secret", "k")
    assert b"secret" in store.segments[SEGMENT].data
    assert set(cluster.authorizations) == {"Basic " + base64.b64encode(b"ada:x:y").decode()}
    setups = [command for command in store.seen if isinstance(command, c.SetupAppend)]
    assert [setup.token for setup in setups] == ["tok"]


@pytest.mark.parametrize("cluster", ["other.pem"], indirect=True)
async def test_a_certificate_for_another_name_is_refused(cluster: Cluster, store: Any) -> None:
    context = ClientContext(cluster.address, tls=options(None))
    context.controller._deadline_s = 0.5
    try:
        with pytest.raises(UnavailableError):
            await context.controller.current_segments(STREAM)
        with pytest.raises(UnavailableError):
            await context.pool.get(store.endpoint)
    finally:
        await context.close()


@pytest.mark.parametrize("cluster", ["server.pem"], indirect=True)
async def test_the_tls_of_a_transport_is_that_of_the_segment_stores(cluster: Cluster, store: Any) -> None:
    context = ClientContext(GrpcTransport(cluster.address, tls=options(None)))
    try:
        async with asyncio.timeout(DEADLINE_S), EventWriter(context, STREAM) as writer:
            await writer.write_event(b"secret", "k")
    finally:
        await context.close()
    assert b"secret" in store.segments[SEGMENT].data


@pytest.mark.parametrize(("scheme", "tls"), [("tcp", False), ("tls", True)])
async def test_commands_use_tls_to_segment_stores_when_the_address_says_so(
    scheme: str, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not first.done():
            first.set_result(await reader.read(1))

    async def reachable(*_: Any) -> bool:
        return True

    monkeypatch.setattr("tailrace.cli.session.check_reachable", reachable)
    monkeypatch.setattr(GrpcTransport, "wait_ready", reachable)
    async with stream_server(look) as listener, connected(f"{scheme}://127.0.0.1:1") as context:
        with pytest.raises(UnavailableError):
            await context.pool.get(Endpoint(*listener.address))
    assert (first.result() == TLS_HANDSHAKE) == tls


@pytest.mark.parametrize("cluster", ["server.pem"], indirect=True)
async def test_the_blocking_client_takes_the_same_options(cluster: Cluster, store: Any) -> None:
    def work() -> None:
        with BlockingClient(cluster.address, tls=options(None)) as client, client.writer("s/t") as writer:
            writer.write_event(b"secret", "k")

    await asyncio.to_thread(work)
    assert b"secret" in store.segments[SEGMENT].data
    assert set(cluster.authorizations) == {""}


@pytest.mark.parametrize("cluster", ["server.pem"], indirect=True)
async def test_a_function_for_the_authorization_that_fails_is_called_again(cluster: Cluster) -> None:
    failures: list[Exception] = [FileNotFoundError("token"), PermissionDeniedError("unchanged"), ValueError("token")]

    def token() -> str:
        if failures:
            raise failures.pop()
        return "Bearer x"

    transport = GrpcTransport(cluster.address, tls=options(None), authorization=token)
    request = pb.StreamInfo(scope="s", stream="t")
    client = ControllerClient(transport)
    try:
        with pytest.raises(UnavailableError, match="authorization failed: ValueError: token"):
            await transport.call("getCurrentSegments", request, pb.SegmentRanges, DEADLINE_S)
        with pytest.raises(PermissionDeniedError, match="unchanged"):
            await transport.call("getCurrentSegments", request, pb.SegmentRanges, DEADLINE_S)
        assert len(await client.current_segments(STREAM)) == 1
    finally:
        await client.close()
    assert cluster.authorizations == ["Bearer x"]


async def test_an_authorization_that_no_header_can_carry_is_refused() -> None:
    transport = GrpcTransport("tcp://127.0.0.1:1", authorization=lambda: "Bearer x\n")
    with pytest.raises(BadRequestError, match="line end"):
        await transport.call("getCurrentSegments", pb.StreamInfo(), pb.SegmentRanges, DEADLINE_S)
    await transport.close()


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match=r"missing\.pem"):
        ClientContext("tls://127.0.0.1:1", tls=TlsOptions(tmp_path / "missing.pem"))
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(BadRequestError, match=r"bad\.pem"):
        TlsOptions(tmp_path / "bad.pem").context()
    with pytest.raises(BadRequestError, match="must be given together"):
        TlsOptions(certificate_file="a")
    with pytest.raises(BadRequestError, match="colon"):
        basic_authorization("a:b", "c")
    assert bearer_authorization("x") == "Bearer x"


# -- delegation tokens ----------------------------------------------------------------------------------------------


def jwt(expires_s: float | None, serial: int = 0) -> str:
    """A token as a controller issues them (docs/protocol/wire.md#delegation-tokens)."""
    claims = {"sub": "segmentstoreresource", "serial": serial} | ({} if expires_s is None else {"exp": expires_s})
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in ({"alg": "HS512"}, claims)]
    return f"{parts[0]}.{parts[1].rstrip('=')}.signature"


class Clock:
    """A clock that is set by hand."""

    now = 1_000_000

    def now_ms(self) -> int:
        return self.now


def test_expiry_is_read_from_the_claims() -> None:
    assert expiry_ms(jwt(1234.5)) == 1_234_500
    padded = base64.b64encode(b'{"exp": 7, "a": "??>>"}').decode()
    assert expiry_ms(f"x.{padded}.z") == 7000
    for token in ("", "x", "a.b.c", jwt(None), "a.%%%.c", "x." + base64.b64encode(b"[1]").decode() + ".z"):
        assert expiry_ms(token) == 2**63 - 1


async def test_tokens_are_renewed_before_they_expire_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    issued: list[StreamName] = []

    async def issue(stream: StreamName) -> str:
        issued.append(stream)
        return jwt(clock.now / 1000 + 60, len(issued))

    tokens = TokenSource(clock, issue)
    first = await tokens.token(SEGMENT)
    assert await tokens.token(STREAM.segment(7)) == first
    clock.now += 49_000
    assert await tokens.token(SEGMENT) == first
    clock.now += 2_000
    second = await tokens.token(SEGMENT)
    assert second != first
    tokens.forget(SEGMENT)
    assert await tokens.token(SEGMENT) not in (first, second)
    monkeypatch.setattr(limits, "CLIENT_TOKENS_CACHED_MAX", 2)
    for name in ("a", "b", "c"):
        await tokens.token(StreamName("s", name).segment(0))
    assert len(tokens._known) == 2


async def test_an_expired_token_is_replaced_and_nothing_is_lost(store: Any, controller: Any, split: Any) -> None:
    """The store refuses whatever is not the newest token; it forgets it after every few requests."""
    controller.begin((0, 0.0, 1.0))
    issued = 0
    uses = 0

    def issue(_: object) -> pb.DelegationToken:
        nonlocal issued, uses
        issued, uses = issued + 1, 0
        return pb.DelegationToken(delegationToken=jwt(None, issued))

    def check(command: Any) -> list[c.Command] | None:
        nonlocal uses
        token = getattr(command, "token", None)
        if token is None:
            return None
        uses += 1
        if token == jwt(None, issued) and uses <= 3:
            return None
        return [c.AuthTokenCheckFailed(command.request_id, "", 1)]

    controller.answers["getDelegationToken"] = issue
    store.rules.append(check)
    context = ClientContext(LocalTransport(controller.handle), authorization="Basic x")
    try:
        writer = await EventWriter(context, STREAM).start()
        for turn in range(12):
            await writer.write_event(b"%d" % turn, "k")
            await context.segments.segment_info(SEGMENT)
            store.drop_all()
        async with asyncio.timeout(DEADLINE_S):
            await writer.close()
        assert (await context.segments.read(SEGMENT, 0, 1000)).data == bytes(store.segments[SEGMENT].data)
    finally:
        await context.close()
    assert split(store.segments[SEGMENT].data) == [b"%d" % turn for turn in range(12)]
    assert issued > 4


async def test_a_token_that_stays_expired_or_is_refused_is_an_error(store: Any, controller: Any) -> None:
    controller.begin((0, 0.0, 1.0))
    controller.answers["getDelegationToken"] = lambda _: pb.DelegationToken(delegationToken="t")
    context = ClientContext(LocalTransport(controller.handle), authorization="Basic x")
    context.segments._entropy = PausesPastAnyDeadline(after=2)
    try:
        store.answer(c.GetStreamSegmentInfo, lambda i: c.AuthTokenCheckFailed(i, "", 0))
        with pytest.raises(PermissionDeniedError):
            await context.segments.segment_info(SEGMENT)
        store.answer(c.GetStreamSegmentInfo, lambda i: c.AuthTokenCheckFailed(i, "", 1), times=1000)
        store.seen.clear()
        with pytest.raises(TokenExpiredError):
            await context.segments.segment_info(SEGMENT)
        assert sum(isinstance(command, c.GetStreamSegmentInfo) for command in store.seen) == 3
    finally:
        await context.close()
