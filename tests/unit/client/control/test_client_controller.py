"""Calls to the controller: messages, statuses as errors, retries, addresses, paging, endpoints."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from harness.localtransport import LocalTransport
from tailrace.client.control.caller import check_status
from tailrace.client.control.controller import ControllerClient
from tailrace.client.control.groups import group_config_of, group_message
from tailrace.client.control.streams import config_message, config_of
from tailrace.client.control.tables import TableConfig
from tailrace.client.control.transport import GrpcTransport, UnknownStatusError, error_of_status, parse_controller_uri
from tailrace.client.model import PingStatus, ReaderGroupConfig, StreamName, TransactionState
from tailrace.client.types import Endpoint
from tailrace.common import errors, limits
from tailrace.common.errors import (
    AlreadyExistsError,
    BadRequestError,
    DeadlineError,
    IllegalStateError,
    InvalidNameError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    NotEmptyError,
    NotFoundError,
    TailraceError,
    UnavailableError,
    UnsupportedError,
    WriteConflictError,
)
from tailrace.common.ranges import KeyRange
from tailrace.common.stream_cut import StreamCut
from tailrace.common.stream_policies import RetentionPolicy, ScalingPolicy, StreamConfig
from tailrace.rpc import controller_pb2 as pb

STREAM = StreamName("s", "t")
TRANSACTION = uuid.UUID(int=(5 << 96) + 7)
GROUP_ID = uuid.UUID(int=9)


class Script:
    """Answers calls in turn; an error is raised."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, Any]] = []

    async def __call__(self, method: str, request: Any) -> Any:
        self.calls.append((method, request))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def client(script: Script, **options: Any) -> ControllerClient:
    return ControllerClient(LocalTransport(script), **options)


Call = Callable[[ControllerClient], Awaitable[object]]


@pytest.mark.parametrize(
    ("answer", "call", "expected"),
    [
        (pb.CreateScopeStatus(status=0), lambda c: c.create_scope("s"), True),
        (pb.CreateScopeStatus(status=2), lambda c: c.create_scope("s"), False),
        (pb.CreateScopeStatus(status=3), lambda c: c.create_scope("s"), InvalidNameError),
        (pb.CreateScopeStatus(status=1), lambda c: c.create_scope("s"), IllegalStateError),
        (pb.DeleteScopeStatus(status=2), lambda c: c.delete_scope("s"), False),
        (pb.DeleteScopeStatus(status=3), lambda c: c.delete_scope("s"), NotEmptyError),
        (pb.ExistsResponse(exists=True), lambda c: c.scope_exists("s"), True),
        (pb.CreateStreamStatus(status=0), lambda c: c.create_stream(STREAM, StreamConfig()), True),
        (pb.CreateStreamStatus(status=2), lambda c: c.create_stream(STREAM, StreamConfig()), False),
        (pb.CreateStreamStatus(status=3), lambda c: c.create_stream(STREAM, StreamConfig()), NoSuchScopeError),
        (pb.CreateStreamStatus(status=4), lambda c: c.create_stream(STREAM, StreamConfig()), InvalidNameError),
        (pb.UpdateStreamStatus(status=0), lambda c: c.update_stream(STREAM, StreamConfig()), None),
        (pb.UpdateStreamStatus(status=2), lambda c: c.update_stream(STREAM, StreamConfig()), NoSuchStreamError),
        (pb.UpdateStreamStatus(status=4), lambda c: c.update_stream(STREAM, StreamConfig()), UnsupportedError),
        (pb.UpdateStreamStatus(status=1), lambda c: c.truncate_stream(STREAM, {0: 1}), IllegalStateError),
        (pb.UpdateStreamStatus(status=2), lambda c: c.seal_stream(STREAM), NoSuchStreamError),
        (pb.DeleteStreamStatus(status=2), lambda c: c.delete_stream(STREAM), False),
        (pb.DeleteStreamStatus(status=3), lambda c: c.delete_stream(STREAM), IllegalStateError),
        (pb.ScaleResponse(status=2), lambda c: c.start_scale(STREAM, [0], []), WriteConflictError),
        (pb.ScaleResponse(status=1), lambda c: c.start_scale(STREAM, [0], []), IllegalStateError),
        (pb.ScaleStatusResponse(status=0), lambda c: c.scale_is_done(STREAM, 1), False),
        (pb.ScaleStatusResponse(status=1), lambda c: c.scale_is_done(STREAM, 1), True),
        (pb.ScaleStatusResponse(status=2), lambda c: c.scale_is_done(STREAM, 1), IllegalStateError),
        (pb.PingTxnStatus(status=5), lambda c: c.ping_transaction(STREAM, TRANSACTION, 1), PingStatus.COMMITTED),
        (pb.TxnState(state=3), lambda c: c.transaction_state(STREAM, TRANSACTION), TransactionState.COMMITTED),
        (pb.TxnStatus(status=1), lambda c: c.commit_transaction(STREAM, TRANSACTION), IllegalStateError),
        (pb.TxnStatus(status=2), lambda c: c.abort_transaction(STREAM, TRANSACTION), NoSuchStreamError),
        (pb.TimestampResponse(result=1), lambda c: c.note_timestamp(STREAM, "w", 1, {}), BadRequestError),
        (pb.TimestampResponse(result=3), lambda c: c.note_timestamp(STREAM, "w", 1, {}), IllegalStateError),
        (pb.RemoveWriterResponse(result=1), lambda c: c.remove_writer(STREAM, "w"), None),
        (pb.RemoveWriterResponse(result=2), lambda c: c.remove_writer(STREAM, "w"), NoSuchStreamError),
        (pb.ReaderGroupConfigResponse(status=2), lambda c: c.reader_group_config("s", "g"), NoSuchReaderGroupError),
        (
            pb.UpdateReaderGroupResponse(status=3),
            lambda c: c.update_reader_group("s", "g", ReaderGroupConfig()),
            WriteConflictError,
        ),
        (pb.DeleteReaderGroupStatus(status=2), lambda c: c.delete_reader_group("s", "g", GROUP_ID), NotFoundError),
        (pb.SubscribersResponse(subscribers=["s/g"]), lambda c: c.list_subscribers(STREAM), ["s/g"]),
        (
            pb.UpdateSubscriberStatus(status=4),
            lambda c: c.update_subscriber_cut(STREAM, "s/g", GROUP_ID, 0, {}),
            BadRequestError,
        ),
        (pb.DelegationToken(delegationToken="x"), lambda c: c.delegation_token(STREAM), "x"),
        (pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint="h", port=1)]), lambda c: c.controllers(), [Endpoint("h", 1)]),
        (pb.CreateKeyValueTableStatus(status=2), lambda c: c.create_table("s", "k", TableConfig(1, 8)), False),
        (pb.DeleteKVTableStatus(status=2), lambda c: c.delete_table("s", "k"), False),
        (pb.KeyValueTableConfigResponse(status=2), lambda c: c.table_config("s", "k"), NotFoundError),
    ],
)
async def test_answers_become_values_and_errors(answer: object, call: Call, expected: object) -> None:
    script = client(Script(*[answer] * limits.CLIENT_CONTROLLER_ATTEMPTS_MAX))
    if isinstance(expected, type) and issubclass(expected, TailraceError):
        with pytest.raises(expected):
            await call(script)
    else:
        assert await call(script) == expected


async def test_pages_are_followed_to_the_end() -> None:
    token = pb.ContinuationToken(token="next")
    script = Script(
        pb.ScopesResponse(scopes=["a", "b"], continuationToken=token),
        pb.ScopesResponse(scopes=["c"], continuationToken=token),
        pb.ScopesResponse(continuationToken=token),
    )
    assert [scope async for scope in client(script).list_scopes()] == ["a", "b", "c"]
    assert [request.continuationToken.token for _, request in script.calls] == ["", "next", "next"]
    info = pb.StreamInfo(scope="s", stream="t")
    script = Script(pb.StreamsInScopeResponse(streams=[info], continuationToken=token), pb.StreamsInScopeResponse())
    assert [stream async for stream in client(script).list_streams("s", tag="x")] == [STREAM]
    assert [method for method, _ in script.calls] == ["listStreamsInScopeForTag"] * 2
    assert script.calls[0][1].tag == "x"


@pytest.mark.parametrize(
    "config",
    [
        StreamConfig(),
        StreamConfig(ScalingPolicy.by_events(10, 2, 3), RetentionPolicy.by_time_ms(5, 6), ("a", "b"), 7, 8),
        StreamConfig(ScalingPolicy.by_kbytes(10, 2, 3), RetentionPolicy.by_size_bytes(5)),
    ],
)
def test_configurations_round_trip(config: StreamConfig) -> None:
    assert config_of(config_message(STREAM, config)) == config


def test_group_configurations_round_trip() -> None:

    config = ReaderGroupConfig(
        1, 2, {"s/t": StreamCut("s", "t", {0: 5}), "s/u": None}, {"s/t": None}, 4, 1, 5, GROUP_ID
    )
    assert group_config_of(group_message("s", "g", config)) == config
    with pytest.raises(IllegalStateError, match="id"):
        group_config_of(pb.ReaderGroupConfiguration(readerGroupId="x"))


async def test_transactions_carry_the_halves_of_their_id() -> None:
    high, low = -(2**63) + 1, -1
    segments = [
        pb.SegmentRange(segmentId=pb.SegmentId(segmentId=7), minKey=0.5, maxKey=1.0),
        pb.SegmentRange(segmentId=pb.SegmentId(segmentId=6), minKey=0.0, maxKey=0.5),
    ]
    opened = pb.CreateTxnResponse(txnId=pb.TxnId(highBits=high, lowBits=low), activeSegments=segments)
    script = Script(opened, pb.TxnStatus())
    found = await client(script).create_transaction(STREAM, 10_000)
    assert found.transaction == uuid.UUID("80000000-0000-0001-ffff-ffffffffffff")
    assert [segment.identifier for segment in found.segments] == [6, 7]
    await client(script).commit_transaction(STREAM, found.transaction)
    sent = script.calls[1][1]
    assert (sent.txnId.highBits, sent.txnId.lowBits, sent.timestamp) == (high, low, -(2**63))


async def test_errors_that_may_pass_are_retried() -> None:
    script = Script(UnavailableError("down"), IllegalStateError("restarting"), pb.ExistsResponse(exists=True))
    assert await client(script).scope_exists("s")
    script = Script(BadRequestError("lease"))
    with pytest.raises(BadRequestError):
        await client(script).create_transaction(STREAM, 1)
    assert len(script.calls) == 1


async def test_retries_end() -> None:
    unreachable = Script(*[UnavailableError("down")] * 1000)
    with pytest.raises(UnavailableError):
        await client(unreachable, deadline_s=0.2).scope_exists("s")
    assert len(unreachable.calls) > 2
    broken = Script(*[IllegalStateError("broken")] * 1000)
    with pytest.raises(IllegalStateError):
        await client(broken, deadline_s=100).scope_exists("s")
    assert len(broken.calls) == limits.CLIENT_CONTROLLER_ATTEMPTS_MAX


async def test_endpoints_are_remembered_until_they_are_wrong() -> None:
    script = Script(*[pb.NodeUri(endpoint="h", port=port) for port in (1, 2)])
    controller = client(script)
    segment = STREAM.segment(5)
    assert await controller.locate(segment) == Endpoint("h", 1)
    assert await controller.locate(f"{segment}#transaction.{0:032x}") == Endpoint("h", 1)
    controller.forget(segment)
    assert await controller.locate(segment) == Endpoint("h", 2)
    assert script.calls[0][1].segmentId == 5
    with pytest.raises(InvalidNameError):
        await controller.locate("_system/_tables/b0")


async def test_successors_come_with_their_predecessors() -> None:
    entries = [
        pb.SuccessorResponse.SegmentEntry(
            segment=pb.SegmentRange(segmentId=pb.SegmentId(segmentId=9), minKey=0.0, maxKey=1.0), value=[1, 2]
        )
    ]
    (found,) = await client(Script(pb.SuccessorResponse(segments=entries))).successors(STREAM, 1)
    assert (found.segment, found.predecessors) == ((9, KeyRange(0.0, 1.0)), (1, 2))


@pytest.mark.parametrize(
    ("uri", "targets", "tls"),
    [
        ("tcp://h:9090", ["h:9090"], False),
        ("h:1", ["h:1"], False),
        ("tls://a:1,b:2", ["a:1", "b:2"], True),
        ("pravega://[::1]:9090", ["[::1]:9090"], False),
        ("pravegas://h:1/", ["h:1"], True),
    ],
)
def test_addresses(uri: str, targets: list[str], tls: bool) -> None:
    assert parse_controller_uri(uri) == (targets, tls)


@pytest.mark.parametrize("uri", ["http://h:1", "tcp://", "tcp://h", "h", "tcp://h:x", "tcp://:1", "tcp://h:99999"])
def test_bad_addresses(uri: str) -> None:
    with pytest.raises(BadRequestError, match="controller address"):
        parse_controller_uri(uri)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errors.GRPC_UNKNOWN, UnknownStatusError),
        (errors.GRPC_NOT_FOUND, NotFoundError),
        (errors.GRPC_ALREADY_EXISTS, AlreadyExistsError),
        (errors.GRPC_FAILED_PRECONDITION, WriteConflictError),
        (errors.GRPC_OUT_OF_RANGE, errors.AnswerTooLargeError),
        (errors.GRPC_UNAVAILABLE, UnavailableError),
        (1, UnavailableError),
    ],
)
def test_statuses_become_errors(code: int, kind: type[Exception]) -> None:
    assert type(error_of_status(code, "text", "h:1")) is kind


def test_only_success_is_success() -> None:
    assert check_status(pb.TxnStatus(), "x", {}) == "SUCCESS"


async def test_calls_over_the_network() -> None:
    """One real gRPC server that answers, refuses, and goes away."""

    async def exists(request: pb.ScopeInfo, context: Any) -> pb.ExistsResponse:
        if request.scope == "missing":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such scope")
        if request.scope == "slow":
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "slow")
        return pb.ExistsResponse(exists=True)

    handler = grpc.unary_unary_rpc_method_handler(
        exists,
        request_deserializer=pb.ScopeInfo.FromString,
        response_serializer=pb.ExistsResponse.SerializeToString,
    )
    service = "io.pravega.controller.stream.api.grpc.v1.ControllerService"
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"checkScopeExists": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    controller = ControllerClient(GrpcTransport(f"tcp://127.0.0.1:1,127.0.0.1:{port}"), deadline_s=10)
    try:
        assert await controller.scope_exists("s")
        with pytest.raises(NotFoundError, match="no such scope"):
            await controller.scope_exists("missing")
        with pytest.raises(DeadlineError):
            await ControllerClient(f"127.0.0.1:{port}", deadline_s=0.3).scope_exists("slow")
    finally:
        await controller.close()
        await server.stop(grace=None)
