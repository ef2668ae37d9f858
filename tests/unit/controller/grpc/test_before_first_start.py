"""A controller without its tables reports UnavailableError, so that clients retry, instead of "not found"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.message import Message

from tailrace.common.errors import GRPC_UNAVAILABLE, UnavailableError
from tailrace.controller.grpc.server import ControllerServer
from tailrace.controller.metadata.metadata_store import PENDING_TABLE, SCOPES_TABLE
from tailrace.controller.rest.app import create_app
from tailrace.rpc import controller_pb2 as pb
from tailrace.rpc import controller_pb2_grpc
from tailrace.rpc import operator_pb2 as pb_operator

SCOPE = pb.ScopeInfo(scope="scope")
STREAM = pb.StreamInfo(scope="scope", stream="stream")
SEGMENT = pb.SegmentId(streamInfo=STREAM, segmentId=0)
CUT = pb.StreamCut(streamInfo=STREAM, cut={0: 0})
CONFIG = pb.StreamConfig(streamInfo=STREAM, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))
TXN = pb.TxnRequest(streamInfo=STREAM, txnId=pb.TxnId(highBits=0, lowBits=1))
KEY_RANGE = pb.ScaleRequest.KeyRangeEntry(start=0.0, end=1.0)
GROUP_ID = "11111111-2222-3333-4444-555555555555"
GROUP = pb.ReaderGroupConfiguration(
    scope="scope", readerGroupName="group", readerGroupId=GROUP_ID, startingStreamCuts=[CUT]
)
GROUP_INFO = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=GROUP_ID)
TABLE = pb.KeyValueTableInfo(scope="scope", kvtName="table")
CALLS: list[tuple[str, Message]] = [
    ("createScope", SCOPE),
    ("deleteScope", SCOPE),
    ("deleteScopeRecursive", SCOPE),
    ("listScopes", pb.ScopesRequest()),
    ("checkScopeExists", SCOPE),
    ("createStream", CONFIG),
    ("updateStream", CONFIG),
    ("truncateStream", CUT),
    ("sealStream", STREAM),
    ("deleteStream", STREAM),
    ("getStreamConfiguration", STREAM),
    ("checkStreamExists", STREAM),
    ("listStreamsInScope", pb.StreamsInScopeRequest(scope=SCOPE)),
    ("listStreamsInScopeForTag", pb.StreamsInScopeWithTagRequest(scope=SCOPE, tag="tag")),
    ("getCurrentSegments", STREAM),
    ("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=STREAM, epoch=0)),
    ("getSegments", pb.GetSegmentsRequest(streamInfo=STREAM)),
    ("getSegmentsImmediatelyFollowing", SEGMENT),
    ("getSegmentsBetween", pb.StreamCutRange(streamInfo=STREAM, **{"from": {0: 0}, "to": {0: 1}})),
    ("isSegmentValid", SEGMENT),
    ("isStreamCutValid", CUT),
    ("scale", pb.ScaleRequest(streamInfo=STREAM, sealedSegments=[0], newKeyRanges=[KEY_RANGE])),
    ("checkScale", pb.ScaleStatusRequest(streamInfo=STREAM, epoch=0)),
    ("createTransaction", pb.CreateTxnRequest(streamInfo=STREAM, lease=20_000)),
    ("pingTransaction", pb.PingTxnRequest(streamInfo=STREAM, txnId=TXN.txnId, lease=20_000)),
    ("commitTransaction", TXN),
    ("abortTransaction", TXN),
    ("checkTransactionState", TXN),
    ("listCompletedTransactions", pb.ListCompletedTxnRequest(streamInfo=STREAM)),
    ("noteTimestampFromWriter", pb.TimestampFromWriter(writer="writer", timestamp=1, position=CUT)),
    ("removeWriter", pb.RemoveWriterRequest(writer="writer", stream=STREAM)),
    ("createReaderGroup", GROUP),
    ("getReaderGroupConfig", GROUP_INFO),
    ("updateReaderGroup", GROUP),
    ("deleteReaderGroup", GROUP_INFO),
    ("listSubscribers", STREAM),
    ("streamHistory", pb_operator.StreamHistoryRequest(scope="scope", stream="stream")),
    ("streamCuts", pb_operator.StreamCutsRequest(scope="scope", stream="stream")),
    ("updateSubscriberStreamCut", pb.SubscriberStreamCut(subscriber="group", readerGroupId=GROUP_ID, streamCut=CUT)),
    (
        "createKeyValueTable",
        pb.KeyValueTableConfig(scope="scope", kvtName="table", partitionCount=1, primaryKeyLength=4),
    ),
    ("deleteKeyValueTable", TABLE),
    ("getKeyValueTableConfiguration", TABLE),
    ("getCurrentSegmentsKeyValueTable", TABLE),
    ("listKeyValueTablesInScope", pb.KVTablesInScopeRequest(scope=SCOPE)),
]


@pytest.mark.parametrize(("rpc", "request_message"), CALLS, ids=[rpc for rpc, _ in CALLS])
@pytest.mark.parametrize("made", [(), (PENDING_TABLE,)], ids=["nothing", "one-table"])
async def test_no_call_is_answered_without_the_tables(
    world: Any, rpc: str, request_message: Message, made: tuple[str, ...]
) -> None:
    for table in made:
        await world.metadata.create_table(table)
    controller = world.make(blocking_deadline_s=0.5)
    with pytest.raises(UnavailableError, match="does not exist yet") as caught:
        await controller.services.call(rpc, request_message)
    assert caught.value.grpc_code == GRPC_UNAVAILABLE


async def test_a_stream_needs_the_table_of_its_bucket(world: Any, wait_until: Callable[..., Awaitable[None]]) -> None:
    """A first start that was cut short made some tables; the next one makes the others."""
    for table in (SCOPES_TABLE, PENDING_TABLE):
        await world.metadata.create_table(table)
    controller = world.make()
    await controller.services.call("createScope", SCOPE)
    with pytest.raises(UnavailableError, match="does not exist yet"):
        await controller.services.call("createStream", CONFIG)
    controller.start_when_possible()

    async def ready() -> bool:
        return bool(controller.ready)

    await wait_until(ready)
    created = await controller.services.call("createStream", CONFIG)
    assert created.status == pb.CreateStreamStatus.SUCCESS


async def test_clients_get_a_retriable_error(world: Any) -> None:
    controller = world.make()
    server = ControllerServer(controller.services, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await controller_pb2_grpc.ControllerServiceStub(channel).createScope(SCOPE)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await server.close()
    transport = httpx.ASGITransport(app=create_app(controller))
    async with httpx.AsyncClient(transport=transport, base_url="http://controller") as rest:
        assert (await rest.post("/v1/scopes", json={"scopeName": "scope"})).status_code == 503
        assert (await rest.get("/v1/scopes/scope")).status_code == 503
        assert (await rest.get("/v1/scopes/scope/streams/stream")).status_code == 503
