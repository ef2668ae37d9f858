"""Resets after a stream of the group was deleted, by readers, to a checkpoint and by the command: they leave it out."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from tailrace.cli.groups import reset_group
from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.group.state import records as r
from tailrace.client.model import ReaderGroupConfig, StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.common import limits
from tailrace.common.errors import NotFoundError, ReinitializationRequiredError
from tailrace.rpc import controller_pb2 as pb

STREAM, OTHER = StreamName("s", "t"), StreamName("s", "u")
DEADLINE_S = 120.0


def config(*streams: StreamName, refresh_ms: int = 10) -> ReaderGroupConfig:
    return group_config(dict.fromkeys(streams), group_refresh_ms=refresh_ms, automatic_checkpoint_ms=-1)


@pytest.fixture
def missing(controller: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the streams that do not exist; each other one has one segment."""
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)
    controller.begin((0, 0.0, 1.0))
    store.create(OTHER.segment(0))
    names: set[str] = set()

    def named(info: Any) -> pb.SegmentId:
        if info.stream in names:
            raise NotFoundError(f"stream s/{info.stream} does not exist")
        return pb.SegmentId(streamInfo=info, segmentId=0)

    def heads(request: Any) -> pb.SegmentsAtTime:
        location = pb.SegmentsAtTime.SegmentLocation(segmentId=named(request.streamInfo), offset=0)
        return pb.SegmentsAtTime(segments=[location])

    def segments(info: Any) -> pb.SegmentRanges:
        return pb.SegmentRanges(segmentRanges=[pb.SegmentRange(segmentId=named(info), minKey=0.0, maxKey=1.0)])

    controller.answers["getSegments"] = heads
    controller.answers["getCurrentSegments"] = segments
    controller.answers["getEpochSegments"] = lambda request: segments(request.streamInfo)
    return names


@pytest.fixture
async def group(missing: set[str], context: ClientContext) -> ReaderGroup:
    """A group over both streams."""
    manager = ReaderGroupManager(context, "s")
    await manager.create("g", config(STREAM, OTHER))
    return await manager.open("g")


async def interrupted_reset(context: ClientContext, group: ReaderGroup, wanted: ReaderGroupConfig) -> None:
    """What a client leaves that ended between the controller's update and the group's new state."""
    current = (await group.state()).config
    await group._synchronizer.update(lambda _: [r.UpdatingConfig(True)])
    asked = dataclasses.replace(wanted, group_id=current.group_id, generation=current.generation)
    await context.controller.update_reader_group("s", "g", asked)


async def read_to_checkpoint(context: ClientContext, group: ReaderGroup) -> None:
    async with EventReader(context, "s", "g", "r") as reader, asyncio.timeout(DEADLINE_S):
        while (await group.state()).unassigned:
            await reader.read_events(1, 10)
        asked = asyncio.create_task(group.checkpoint("c", deadline_s=DEADLINE_S))
        while not asked.done():
            await reader.read_events(1, 10)
        await asked


async def read_on(reader: EventReader) -> None:
    while True:
        await reader.read_events(1, 10)


async def test_a_reader_finishes_a_reset_without_a_stream_that_was_deleted_since(
    missing: set[str], group: ReaderGroup, context: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READER_GROUP_CONFIG_CHECK_S", 0.01)
    async with EventReader(context, "s", "g", "r") as reader:
        await interrupted_reset(context, group, config(STREAM, OTHER, refresh_ms=11))
        missing.add("u")
        with pytest.raises(ReinitializationRequiredError):
            await asyncio.wait_for(read_on(reader), DEADLINE_S)
    state = await group.state()
    assert (state.config.group_refresh_ms, state.unassigned) == (11, {STREAM.segment(0): 0})


async def test_a_reset_to_the_last_checkpoint_leaves_a_deleted_stream(
    missing: set[str], group: ReaderGroup, context: ClientContext
) -> None:
    await read_to_checkpoint(context, group)
    missing.add("u")
    await group.reset()
    state = await group.state()
    assert (list(state.config.starting), state.unassigned) == (["s/t"], {STREAM.segment(0): 0})
    assert list(state.config.ending) == ["s/t"]


@pytest.mark.parametrize("places", [[], ["head"], ["tail"]])
async def test_the_command_resets_a_group_one_of_whose_streams_was_deleted(
    missing: set[str], group: ReaderGroup, context: ClientContext, places: list[str]
) -> None:
    missing.add("u")
    await reset_group(context, group, places)
    state = await group.state()
    assert (list(state.config.starting), list(state.unassigned)) == (["s/t"], [STREAM.segment(0)])
