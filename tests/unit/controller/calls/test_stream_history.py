"""The history of a stream: its epochs in pages, sizes of sealed segments, its head and its subscribers."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client import StreamName
from tailrace.client.control.history import HistoryCalls
from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2
from tailrace.rpc import operator_pb2 as pb

MISSING = pb.StreamHistory.STREAM_NOT_FOUND
HALVES = [(0.0, 0.5), (0.5, 1.0)]
WHOLE = [(0.0, 1.0)]
RETAIN = controller_pb2.RetentionPolicy(retentionType=controller_pb2.RetentionPolicy.SIZE, retentionParam=1 << 40)


async def history(api: Any, first: int = 0) -> pb.StreamHistory:
    request = pb.StreamHistoryRequest(scope=api.scope, stream=api.stream, firstEpoch=first)
    found: pb.StreamHistory = await api.call("streamHistory", request)
    return found


def segment(api: Any, identifier: int) -> str:
    return f"{api.scope}/{api.stream}/{identifier & 0xFFFFFFFF}.#epoch.{identifier >> 32}"


async def test_epochs_with_sizes_head_and_subscribers(world: Any, api: Any) -> None:
    assert (await history(api)).status == MISSING
    await api.setup(1)
    created_ms = world.clock.ms
    config = controller_pb2.ReaderGroupConfiguration(
        scope=api.scope,
        readerGroupName="g",
        retentionType=1,
        startingStreamCuts=[controller_pb2.StreamCut(streamInfo=api.info)],
    )
    made = (await api.call("createReaderGroup", config)).config
    world.segments.append(segment(api, 0), bytes(100))
    world.clock.ms += 1000
    left, right = await api.scaled([0], HALVES)
    world.segments.append(segment(api, left), bytes(30))
    cut = controller_pb2.StreamCut(streamInfo=api.info, cut={0: 40})
    await api.call(
        "updateSubscriberStreamCut",
        controller_pb2.SubscriberStreamCut(
            subscriber=f"{api.scope}/g", generation=0, readerGroupId=made.readerGroupId, streamCut=cut
        ),
    )
    await api.call("truncateStream", controller_pb2.StreamCut(streamInfo=api.info, cut={0: 20}))
    found = await history(api)
    assert (found.status, found.state, found.nextEpoch, found.sealedMs) == (0, "active", 0, 0)
    first, second = found.epochs
    assert (first.epoch, first.createdMs, first.reference, first.splits, first.merges) == (0, created_ms, 0, 0, 0)
    assert (second.epoch, second.createdMs, second.splits) == (1, created_ms + 1000, 1)
    assert [(each.segment, each.low, each.high) for each in second.segments] == [(left, 0, 0.5), (right, 0.5, 1)]
    assert (dict(first.sealedSizes), dict(second.sealedSizes)) == ({}, {0: 100})
    assert dict(found.head) == {0: 20}
    assert [(each.subscriber, dict(each.cut)) for each in found.subscribers] == [(f"{api.scope}/g", {0: 40})]
    world.clock.ms += 1000
    await api.call("sealStream", api.info)
    found = await history(api)
    assert (found.state, found.sealedMs, dict(found.sealedSizes)) == (
        "sealed",
        created_ms + 2000,
        {left: 30, right: 0},
    )


@pytest.mark.parametrize("at_a_time", [2, 20])
async def test_pages_have_all_epochs(api: Any, monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    monkeypatch.setattr(limits, "HISTORY_SEGMENTS_PER_REPLY_MAX", 4)
    monkeypatch.setattr(limits, "HISTORY_EPOCHS_PER_READ", at_a_time)
    await api.setup(1)
    (active,) = await api.current()
    for _ in range(3):
        halves = await api.scaled([active], HALVES)
        (active,) = await api.scaled(halves, WHOLE)
    following, epochs = 0, []
    while True:
        page = await history(api, following)
        epochs += [each.epoch for each in page.epochs]
        assert sum(len(each.segments) for each in page.epochs[:-1]) < 4, "however many epochs are read at a time"
        for each in page.epochs:
            assert len(each.sealedSizes) == (0, *[1, 2] * 3)[each.epoch]
        following = page.nextEpoch
        if following == 0:
            break
        assert len(page.epochs) == 3, "until they have four segments"
    assert epochs == list(range(7))
    with pytest.raises(BadRequestError, match="not from 0 to 6"):
        await history(api, 7)


async def cuts(api: Any, from_ms: int = 0, to_ms: int = 0) -> pb.StreamCuts:
    request = pb.StreamCutsRequest(scope=api.scope, stream=api.stream, fromMs=from_ms, toMs=to_ms)
    found: pb.StreamCuts = await api.call("streamCuts", request)
    return found


async def test_recorded_cuts_are_returned_by_their_times(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await world.start(sole=True, retention_period_s=10_000)
    api = make_api(controller)
    assert (await cuts(api)).status == pb.StreamCuts.STREAM_NOT_FOUND
    await api.setup(1, retentionPolicy=RETAIN)
    assert list((await cuts(api)).cuts) == []
    key, times = StreamKey(api.scope, api.stream), []
    for _ in range(4):
        world.segments.append(segment(api, 0), bytes(10))
        world.clock.ms += 10_000_000
        times.append(world.clock.ms)
        await controller.services.core.retention.apply(key)
    found = await cuts(api)
    assert [(each.recordedMs, dict(each.cut)) for each in found.cuts] == [
        (time, {0: 10 * (number + 1)}) for number, time in enumerate(times)
    ]
    between = await cuts(api, times[1] + 1, times[2] - 1)
    assert [each.recordedMs for each in between.cuts] == times[1:3]
    monkeypatch.setattr(limits, "HISTORY_SEGMENTS_PER_REPLY_MAX", 2)
    first = await cuts(api)
    assert ([each.recordedMs for each in first.cuts], first.nextMs) == (times[:2], times[2])
    rest = await cuts(api, first.nextMs)
    assert ([each.recordedMs for each in rest.cuts], rest.nextMs) == (times[2:], 0)


@pytest.mark.parametrize("per_reply", [1, 2, 100])
async def test_cuts_that_share_a_time_are_all_returned(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch, per_reply: int
) -> None:
    """After a cut by a clock that was ahead, the next ones have its time."""
    controller = await world.start(sole=True, retention_period_s=10_000)
    api = make_api(controller)
    await api.setup(1, retentionPolicy=RETAIN)
    monkeypatch.setattr(limits, "RETENTION_CLOCK_LEAP_MS", 10**15)
    key, start_ms, ahead_ms = StreamKey(api.scope, api.stream), world.clock.ms, 10**12
    for number in range(8):
        world.segments.append(segment(api, 0), bytes(10))
        world.clock.ms = start_ms + number * 10_000_000 + (ahead_ms if number == 2 else 0)
        await controller.services.core.retention.apply(key)

    class Calls(HistoryCalls):
        """The client's calls, without a network."""

        def __init__(self) -> None:
            pass

        async def _call(self, method: str, request: Any, *_: Any, **__: Any) -> Any:
            return await api.call(method, request)

    monkeypatch.setattr(limits, "HISTORY_SEGMENTS_PER_REPLY_MAX", per_reply)
    found = await Calls().stream_cuts(StreamName(api.scope, api.stream))
    assert [dict(each.positions) for each in found] == [{0: 10 * number} for number in range(1, 9)]
    held_ms = start_ms + 20_000_000 + ahead_ms
    assert [each.recorded_ms for each in found] == [start_ms, start_ms + 10_000_000, *[held_ms] * 6]
    some = await Calls().stream_cuts(StreamName(api.scope, api.stream), held_ms, held_ms)
    assert [dict(each.positions) for each in some] == [{0: 80}], "the newest one of that time"
