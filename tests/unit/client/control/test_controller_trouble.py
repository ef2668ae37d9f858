"""Calls to the controller whose answers are lost or unclear: what is retried, and how an unknown outcome is settled."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog

from harness.localtransport import LocalTransport
from harness.streamserver import StreamServer
from tailrace.client.context import ClientContext
from tailrace.client.control.controller import ControllerClient
from tailrace.client.control.groups import group_message
from tailrace.client.control.transport import ERROR_NAME_KEY, GrpcTransport, UnknownStatusError
from tailrace.client.model import ReaderGroupConfig, StreamName
from tailrace.client.writer.event_writer import EventWriter
from tailrace.client.writer.transactions import TransactionalWriter
from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    ClientClosedError,
    IllegalStateError,
    NoSuchReaderGroupError,
    UnavailableError,
    WriteConflictError,
)
from tailrace.common.ranges import KeyRange
from tailrace.common.stream_policies import StreamConfig
from tailrace.rpc import controller_pb2 as pb

STREAM = StreamName("s", "t")
TRANSACTION = uuid.UUID(int=7)
GROUP_ID = uuid.UUID(int=9)
SERVICE = "io.pravega.controller.stream.api.grpc.v1.ControllerService"
DEADLINE_S = 120.0
E1 = 1 << 32
LOST = UnavailableError("the answer was lost")


class Script:
    """Answers calls in turn; an error is raised."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.calls: list[str] = []

    async def __call__(self, method: str, request: Any) -> Any:
        self.calls.append(method)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def segments(*items: tuple[int, float, float]) -> pb.SegmentRanges:
    return pb.SegmentRanges(
        segmentRanges=[
            pb.SegmentRange(segmentId=pb.SegmentId(segmentId=identifier), minKey=low, maxKey=high)
            for identifier, low, high in items
        ]
    )


def stored_group(generation: int, **other: Any) -> pb.ReaderGroupConfigResponse:
    config = ReaderGroupConfig(generation=generation, group_id=GROUP_ID, starting={"s/t": None}, **other)
    return pb.ReaderGroupConfigResponse(config=group_message("s", "g", config))


ASKED = ReaderGroupConfig(generation=4, group_id=GROUP_ID, starting={"s/t": None})
OTHERS_CHANGE = pb.UpdateReaderGroupResponse(status=pb.UpdateReaderGroupResponse.INVALID_CONFIG)
REFUSED_SCALE = pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED)
REFUSED = pb.TxnStatus(status=pb.TxnStatus.FAILURE)
HALVES = [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)]


def state(value: int) -> pb.TxnState:
    return pb.TxnState(state=pb.TxnState.State.ValueType(value))


@pytest.mark.parametrize(
    ("answers", "call", "expected"),
    [
        ([LOST, REFUSED, state(pb.TxnState.COMMITTED)], lambda c: c.commit_transaction(STREAM, TRANSACTION), None),
        ([LOST, REFUSED, state(pb.TxnState.COMMITTING)], lambda c: c.commit_transaction(STREAM, TRANSACTION), None),
        (
            [LOST, REFUSED, state(pb.TxnState.ABORTED)],
            lambda c: c.commit_transaction(STREAM, TRANSACTION),
            "no longer open",
        ),
        ([REFUSED], lambda c: c.commit_transaction(STREAM, TRANSACTION), "no longer open"),
        ([LOST, REFUSED, state(pb.TxnState.ABORTING)], lambda c: c.abort_transaction(STREAM, TRANSACTION), None),
        (
            [LOST, REFUSED, state(pb.TxnState.COMMITTED)],
            lambda c: c.abort_transaction(STREAM, TRANSACTION),
            "no longer open",
        ),
        ([LOST, pb.DeleteStreamStatus(status=2)], lambda c: c.delete_stream(STREAM), True),
        ([pb.DeleteStreamStatus(status=2)], lambda c: c.delete_stream(STREAM), False),
        ([LOST, pb.DeleteScopeStatus(status=2)], lambda c: c.delete_scope("s"), True),
        ([LOST, pb.DeleteKVTableStatus(status=2)], lambda c: c.delete_table("s", "k"), True),
        ([LOST, pb.DeleteReaderGroupStatus(status=2)], lambda c: c.delete_reader_group("s", "g", GROUP_ID), None),
        (
            [LOST, pb.UpdateStreamStatus(status=1), pb.UpdateStreamStatus(status=1), pb.UpdateStreamStatus()],
            lambda c: c.update_stream(STREAM, StreamConfig()),
            None,
        ),
        ([pb.UpdateStreamStatus(status=1)], lambda c: c.update_stream(STREAM, StreamConfig()), "FAILURE"),
        ([LOST, OTHERS_CHANGE, stored_group(5)], lambda c: c.update_reader_group("s", "g", ASKED), 5),
        ([LOST, OTHERS_CHANGE, stored_group(6)], lambda c: c.update_reader_group("s", "g", ASKED), "another client"),
        (
            [LOST, OTHERS_CHANGE, stored_group(5, group_refresh_ms=1)],
            lambda c: c.update_reader_group("s", "g", ASKED),
            "another client",
        ),
    ],
)
async def test_a_refusal_after_a_lost_answer_is_compared_with_what_is_there(
    answers: list[object], call: Callable[[ControllerClient], Awaitable[object]], expected: object
) -> None:
    script = Script(*answers)
    client = ControllerClient(LocalTransport(script))
    if isinstance(expected, str):
        with pytest.raises((IllegalStateError, WriteConflictError), match=expected):
            await call(client)
    else:
        assert await call(client) == expected
    assert not script.answers


async def test_a_group_that_never_existed_is_still_missing() -> None:
    script = Script(pb.DeleteReaderGroupStatus(status=pb.DeleteReaderGroupStatus.RG_NOT_FOUND))
    with pytest.raises(NoSuchReaderGroupError):
        await ControllerClient(LocalTransport(script)).delete_reader_group("s", "g", GROUP_ID)


async def test_a_scale_whose_answer_was_lost_is_recognised() -> None:
    old, new = segments((0, 0.0, 1.0)), segments((E1 + 1, 0.0, 0.5), (E1 + 2, 0.5, 1.0))
    done = pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.SUCCESS)
    refusals = [REFUSED_SCALE, pb.ScaleResponse(status=pb.ScaleResponse.FAILURE)]
    for refused in refusals:
        script = Script(LOST, refused, old, new, done)
        found = await ControllerClient(LocalTransport(script)).scale(STREAM, [0], HALVES, deadline_s=5)
        assert [segment.identifier for segment in found] == [E1 + 1, E1 + 2]
        assert not script.answers
    other = segments((E1 + 1, 0.0, 0.3), (E1 + 2, 0.3, 1.0))
    with pytest.raises(WriteConflictError):
        await ControllerClient(LocalTransport(Script(LOST, REFUSED_SCALE, other))).start_scale(STREAM, [0], HALVES)


async def test_unknown_is_tried_again_but_not_for_long() -> None:
    unknown = UnknownStatusError("who knows")
    script = Script(unknown, unknown, pb.ExistsResponse(exists=True))
    assert await ControllerClient(LocalTransport(script)).scope_exists("s")
    script = Script(*[unknown] * 100)
    with pytest.raises(BadRequestError, match="who knows"):
        await ControllerClient(LocalTransport(script)).scope_exists("s")
    assert len(script.calls) == limits.CLIENT_CONTROLLER_UNKNOWN_ATTEMPTS_MAX


@pytest.mark.parametrize("named", [False, True])
async def test_a_server_that_names_its_errors_ends_the_doubt(named: bool) -> None:
    """Over the network: UNKNOWN of any controller, and of ours, which says that an argument was wrong."""
    calls = 0

    async def refuse(request: bytes, context: Any) -> bytes:
        nonlocal calls
        calls += 1
        if named:
            context.set_trailing_metadata(((ERROR_NAME_KEY, "BadRequestError"),))
        await context.abort(grpc.StatusCode.UNKNOWN, "bad lease")
        return b""

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(refuse)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"createTransaction": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ControllerClient(f"tcp://127.0.0.1:{port}")
    try:
        with pytest.raises(BadRequestError, match="bad lease"):
            await client.create_transaction(STREAM, 1)
    finally:
        await client.close()
        await server.stop(grace=None)
    assert calls == (1 if named else limits.CLIENT_CONTROLLER_UNKNOWN_ATTEMPTS_MAX)


async def test_closing_the_client_ends_its_calls_as_closed() -> None:
    reached = asyncio.Event()

    async def never(request: bytes, context: Any) -> bytes:
        reached.set()
        await asyncio.Event().wait()
        return b""

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(never)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"checkScopeExists": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ControllerClient(GrpcTransport(f"tcp://127.0.0.1:{port}"))
    try:
        asking = asyncio.create_task(client.scope_exists("s"))
        async with asyncio.timeout(DEADLINE_S):
            await reached.wait()
            await client.close()
            with pytest.raises(ClientClosedError):
                await asking
            with pytest.raises(ClientClosedError):
                await client.scope_exists("s")
    finally:
        await server.stop(grace=None)


async def test_a_controller_that_falls_silent_is_left_for_the_next_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is gone without a word: the connection stays, and nothing arrives on it."""
    monkeypatch.setattr(limits, "CLIENT_KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(limits, "CLIENT_PING_REPLY_S", 0.2)

    async def fall_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # empty SETTINGS of HTTP/2
        while await reader.read(65536):
            pass

    async def exists(request: bytes, context: Any) -> bytes:
        return pb.ExistsResponse(exists=True).SerializeToString()

    silent = StreamServer(fall_silent)
    await silent.start()
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(exists)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"checkScopeExists": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ControllerClient(f"tcp://127.0.0.1:{silent.address[1]},127.0.0.1:{port}")
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.gather(client.scope_exists("s"), client.scope_exists("t")) == [True, True]
    finally:
        await client.close()
        await server.stop(grace=None)
        await silent.close()


async def test_a_controller_in_trouble_does_not_end_a_writer(
    controller: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INTERNAL for a segment's place, for longer than one call is tried."""
    monkeypatch.setattr(limits, "CLIENT_CONTROLLER_ATTEMPTS_MAX", 2)
    controller.begin((0, 0.0, 1.0))
    asked = 0

    def place(_: object) -> pb.NodeUri:
        nonlocal asked
        asked += 1
        if asked < 7:
            raise IllegalStateError("starting")
        endpoint = controller.store.endpoint
        return pb.NodeUri(endpoint=endpoint.host, port=endpoint.port)

    controller.answers["getURI"] = place
    async with asyncio.timeout(DEADLINE_S):
        async with EventWriter(context, STREAM) as writer:
            await writer.write_event(b"x", "k")


@pytest.mark.parametrize("error", [IllegalStateError("starting"), UnavailableError("away")], ids=repr)
async def test_a_controller_in_trouble_during_a_scale_does_not_end_a_writer(
    controller: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(limits, "CLIENT_CONTROLLER_ATTEMPTS_MAX", 2)
    monkeypatch.setattr(context.controller, "_deadline_s", 0.2)
    monkeypatch.setattr(limits, "CLIENT_WAIT_NOTICE_S", 0.0)
    controller.begin((0, 0.0, 1.0))
    asked = 0

    def following(request: Any) -> pb.SuccessorResponse:
        nonlocal asked
        asked += 1
        if asked < 12:
            raise error
        return pb.SuccessorResponse(segments=controller.following[request.segmentId])

    controller.answers["getSegmentsImmediatelyFollowing"] = following
    async with asyncio.timeout(DEADLINE_S):
        async with EventWriter(context, STREAM) as writer:
            await writer.write_event(b"x", "k")
            controller.scale([0], (E1 + 1, 0.0, 0.5), (E1 + 2, 0.5, 1.0))
            structlog.configure()  # an application that has its own logs
            with structlog.testing.capture_logs() as logs:
                await writer.write_event(b"y", "k")
    assert [entry["event"] for entry in logs].count("write_waits") == 1, "once, however often it is asked"


async def test_a_controller_that_stays_in_trouble_ends_a_writer_at_last(
    controller: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_CONTROLLER_ATTEMPTS_MAX", 1)
    monkeypatch.setattr(limits, "WRITER_GIVE_UP_S", 0.2)
    controller.begin((0, 0.0, 1.0))

    def following(_: object) -> pb.SuccessorResponse:
        raise IllegalStateError("starting")

    controller.answers["getSegmentsImmediatelyFollowing"] = following
    writer = await EventWriter(context, STREAM).start()
    await writer.write_event(b"x", "k")
    controller.scale([0], (E1 + 1, 0.0, 0.5), (E1 + 2, 0.5, 1.0))
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(IllegalStateError):
            await writer.write_event(b"y", "k")
    await writer.abandon()


async def test_a_controller_in_trouble_is_no_refusal_of_a_token(
    controller: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer goes on after UnavailableError."""
    monkeypatch.setattr(limits, "CLIENT_CONTROLLER_ATTEMPTS_MAX", 1)

    def issue(_: object) -> pb.DelegationToken:
        raise IllegalStateError("starting")

    controller.answers["getDelegationToken"] = issue
    with pytest.raises(UnavailableError, match="did not return the token of s/t: starting"):
        await context.controller.delegation_token(STREAM)


async def test_a_controller_in_trouble_does_not_end_a_transaction(
    controller: Any, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_CONTROLLER_ATTEMPTS_MAX", 1)
    controller.begin((0, 0.0, 1.0))
    pings = asyncio.Semaphore(0)

    def ping(_: object) -> pb.PingTxnStatus:
        pings.release()
        raise IllegalStateError("starting")

    controller.answers["pingTransaction"] = ping
    async with TransactionalWriter(context, STREAM, lease_ms=30) as writer:
        transaction = await writer.begin()
        async with asyncio.timeout(DEADLINE_S):
            await pings.acquire()
            await pings.acquire()
            await transaction.write_event(b"x", "k")
            await transaction.commit()


async def test_what_went_wrong_in_a_transaction_is_not_hidden_by_its_abort(
    controller: Any, context: ClientContext
) -> None:
    controller.begin((0, 0.0, 1.0))
    controller.answers["abortTransaction"] = lambda _: REFUSED
    async with TransactionalWriter(context, STREAM) as writer:
        with pytest.raises(ZeroDivisionError) as caught:
            async with await writer.begin():
                raise ZeroDivisionError
        assert "was not aborted" in caught.value.__notes__[0]


async def test_a_transaction_that_was_decided_inside_its_block_is_left_alone(
    controller: Any, context: ClientContext
) -> None:
    controller.begin((0, 0.0, 1.0))
    async with TransactionalWriter(context, STREAM) as writer:
        async with await writer.begin() as transaction:
            await transaction.write_event(b"x", "k")
            await transaction.commit()
        async with await writer.begin() as transaction:
            await transaction.abort()
    methods = [method for method, _ in controller.calls]
    assert (methods.count("commitTransaction"), methods.count("abortTransaction")) == (1, 1)


async def test_writers_that_noted_a_time_are_removed_at_their_end(controller: Any, context: ClientContext) -> None:
    controller.begin((0, 0.0, 1.0))

    def removed() -> list[str]:
        return [request.writer for method, request in controller.calls if method == "removeWriter"]

    async with EventWriter(context, STREAM, writer_id="silent") as writer:
        await writer.write_event(b"x", "k")
    assert removed() == []
    async with EventWriter(context, STREAM, writer_id="w") as writer:
        await writer.write_event(b"x", "k")
        await writer.note_time(5)
    async with TransactionalWriter(context, STREAM, writer_id="t") as transactions:
        for timestamp in (7, None):
            transaction = await transactions.begin()
            await transaction.commit(timestamp)
    assert removed() == ["w", "t"]

    def away(_: object) -> object:
        raise UnavailableError("away")

    controller.answers["removeWriter"] = away
    context.controller._deadline_s = 0.1
    async with EventWriter(context, STREAM, writer_id="w") as writer:
        await writer.note_time(6)


async def test_the_reason_of_a_long_wait_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_WAIT_NOTICE_S", 0.05)
    script = Script(*[UnavailableError("container 3 stopped")] * 6, segments((0, 0.0, 1.0)))
    structlog.configure()  # an application that has its own logs
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(DEADLINE_S):
            await ControllerClient(LocalTransport(script)).current_segments(STREAM)
    (notice,) = [each for each in logs if each["event"] == "controller_call_waits"]
    assert (notice["call"], notice["reason"]) == ("getCurrentSegments", "container 3 stopped")
    assert not script.answers
