"""A reset to the last checkpoint does not read again what the group had finished before that checkpoint."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.kernel import pack_events
from tailrace.rpc import controller_pb2 as pb

LIVE, DONE = StreamName("s", "t"), StreamName("s", "u")


@pytest.fixture(autouse=True)
def _two_streams(controller: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that goes on, and one that is sealed; each has one segment."""
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)
    controller.begin((0, 0.0, 1.0))
    store.create(DONE.segment(0), pack_events([b"u1", b"u2"])).sealed = True
    store.segments[LIVE.segment(0)].data += pack_events([b"t1"])
    current = controller.handle

    def heads(request: Any) -> pb.SegmentsAtTime:
        segment = pb.SegmentId(streamInfo=request.streamInfo, segmentId=0)
        return pb.SegmentsAtTime(segments=[pb.SegmentsAtTime.SegmentLocation(segmentId=segment, offset=0)])

    controller.answers["getSegments"] = heads
    controller.answers["getSegmentsBetween"] = lambda request: pb.StreamCutRangeResponse(
        segments=[pb.SegmentId(streamInfo=request.streamInfo, segmentId=0)]
    )
    controller.answers["getEpochSegments"] = lambda request: pb.SegmentRanges(
        segmentRanges=[
            pb.SegmentRange(segmentId=pb.SegmentId(streamInfo=request.streamInfo, segmentId=0), minKey=0.0, maxKey=1.0)
        ]
        if request.epoch == 0
        else []
    )

    async def handle(method: str, request: Any) -> Any:
        if method == "getCurrentSegments" and request.stream == "u":
            return pb.SegmentRanges()  # sealed
        return await current(method, request)

    controller.handle = handle


@pytest.fixture
async def context(controller: Any, _two_streams: None) -> AsyncIterator[ClientContext]:
    from harness.localtransport import LocalTransport

    context = ClientContext(LocalTransport(lambda *call: controller.handle(*call)))
    yield context
    await context.close()


async def read(reader: EventReader, group: ReaderGroup, name: str) -> list[bytes]:
    """Events until a checkpoint is complete."""
    found: list[bytes] = []
    asked = asyncio.create_task(group.checkpoint(name, deadline_s=120))
    async with asyncio.timeout(120):
        while not asked.done():
            found += [item.event for item in await reader.read_events(10, 20) if item.checkpoint is None]
    await asked
    return found


async def test_a_finished_stream_is_not_read_again(context: ClientContext) -> None:
    manager = ReaderGroupManager(context, "s")
    config = group_config({LIVE: None, DONE: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1)
    await manager.create("g", config)
    group = await manager.open("g")
    first: list[bytes] = []
    async with EventReader(context, "s", "g", "r1") as reader, asyncio.timeout(120):
        names = itertools.count()
        # The finished segment leaves the group after a checkpoint; the next ones are without it.
        while set((await group.state()).last_checkpoint or ()) != {LIVE.segment(0)}:
            first += await read(reader, group, f"c{next(names)}")
            first += [item.event for item in await reader.read_events(10, 50)]
    assert sorted(first) == [b"t1", b"u1", b"u2"]
    await group.reset()
    async with EventReader(context, "s", "g", "r2") as reader:
        again = await read(reader, group, "e")
    assert again == [], "everything was read before the checkpoint to which the group was reset"
