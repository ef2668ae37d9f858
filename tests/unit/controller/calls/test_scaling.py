"""Manual scales: what is refused, what readers and writers see, and the sizes that are recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import AnswerTooLargeError, BadRequestError, NotFoundError
from tailrace.common.names import segment_id
from tailrace.controller.calls.convert import segment_ranges
from tailrace.controller.metadata.model import Epoch, StreamSegment
from tailrace.controller.metadata.policies import segments_max
from tailrace.controller.metadata.records import StreamRecord
from tailrace.controller.metadata.stream_store import StreamKey, StreamStore
from tailrace.rpc import controller_pb2 as pb

S = "scope/stream/"
HALVES = [(0.0, 0.5), (0.5, 1.0)]


async def followers(api: Any, identifier: int) -> dict[int, list[int]]:
    request = pb.SegmentId(streamInfo=api.info, segmentId=identifier)
    found = await api.call("getSegmentsImmediatelyFollowing", request)
    return {entry.segment.segmentId.segmentId: list(entry.value) for entry in found.segments}


async def test_split_and_merge(api: Any, world: Any) -> None:
    await api.setup(1)
    one, two = await api.scaled([0], HALVES)
    assert (one, two) == (segment_id(1, 1), segment_id(2, 1))
    assert await followers(api, 0) == {one: [0], two: [0]}
    assert await followers(api, one) == {}
    (three,) = await api.scaled([one, two], [(0.0, 1.0)])
    assert await followers(api, one) == await followers(api, two) == {three: [one, two]}
    assert await followers(api, 0) == {one: [0], two: [0]}
    assert [world.segments.segments[name].sealed for name in world.segments.names(S)] == [True, True, True, False]


async def test_segments_that_live_through_scales_keep_their_ids(api: Any) -> None:
    await api.setup(3)
    for _ in range(3):
        active = await api.current()
        await api.scaled([active[0]], [(0.0, 1 / 3)])
    assert (await api.current())[1:] == [1, 2]
    assert await followers(api, 1) == {}
    with pytest.raises(NotFoundError):
        await followers(api, 9)
    with pytest.raises(NotFoundError):
        await followers(api, segment_id(0, 9))


async def test_the_answer_names_the_epoch_before(api: Any) -> None:
    await api.setup(1)
    started = await api.scale([0], HALVES)
    assert started.status == pb.ScaleResponse.STARTED
    assert started.epoch == 0
    assert [(r.segmentId.segmentId, r.minKey, r.maxKey) for r in started.segments] == [
        (segment_id(1, 1), 0.0, 0.5),
        (segment_id(2, 1), 0.5, 1.0),
    ]
    await api.until_scaled(0)
    later = await api.call("checkScale", pb.ScaleStatusRequest(streamInfo=api.info, epoch=5))
    assert later.status == pb.ScaleStatusResponse.INVALID_INPUT


@pytest.mark.parametrize(
    ("sealed", "ranges", "status"),
    [
        ([5], [(0.0, 0.5)], pb.ScaleResponse.PRECONDITION_FAILED),
        ([0, 1], [(0.0, 1.0)], pb.ScaleResponse.PRECONDITION_FAILED),
        ([0], [(0.0, 0.25)], pb.ScaleResponse.FAILURE),
        ([0], [(0.0, 0.3), (0.2, 0.5)], pb.ScaleResponse.FAILURE),
        ([0, 0], [(0.0, 0.5)], pb.ScaleResponse.FAILURE),
        ([], [], pb.ScaleResponse.FAILURE),
    ],
)
async def test_scales_that_are_refused(api: Any, sealed: list[int], ranges: list[Any], status: int) -> None:
    await api.setup(2)
    assert (await api.scale(sealed, ranges)).status == status
    assert await api.current() == [0, 1]


async def test_a_scale_leaves_no_more_segments_than_a_stream_may_have(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAM_SEGMENTS_MAX", 4)
    await api.setup(2)
    parts = [(0.0, 0.125), (0.125, 0.25), (0.25, 0.375), (0.375, 0.5)]
    assert (await api.scale([0], parts)).status == pb.ScaleResponse.PRECONDITION_FAILED
    assert await api.current() == [0, 1]
    assert len(await api.scaled([0], [*parts[:2], (0.25, 0.5)])) == 4


@pytest.mark.parametrize("key_range", [(0.5, 0.5), (0.5, 0.2), (-0.1, 0.5), (0.5, 1.1), (float("nan"), 1.0)])
async def test_impossible_key_ranges_are_named(api: Any, key_range: tuple[float, float]) -> None:
    await api.setup(1)
    with pytest.raises(BadRequestError, match="key range"):
        await api.scale([0], [key_range])


async def test_between_two_cuts(api: Any) -> None:
    await api.setup(1)
    one, two = await api.scaled([0], HALVES)
    three, _ = await api.scaled([one], [(0.0, 0.5)])

    async def between(start: dict[int, int], end: dict[int, int]) -> list[int]:
        request = pb.StreamCutRange(**{"streamInfo": api.info, "from": start, "to": end})
        found = await api.call("getSegmentsBetween", request)
        return [item.segmentId for item in found.segments]

    assert await between({}, {one: 0, two: 0}) == [0, one, two]
    assert await between({one: 0, two: 0}, {}) == [one, two, three]
    assert await between({0: 0}, {0: 0}) == [0]
    with pytest.raises(BadRequestError, match="both empty"):
        await between({}, {})
    with pytest.raises(BadRequestError, match="after"):
        await between({one: 5, two: 0}, {0: 0})


async def test_sealed_sizes_are_recorded(api: Any, world: Any, controller: Any) -> None:
    await api.setup(1)
    world.segments.append(f"{S}0.#epoch.0", b"12345")
    one, two = await api.scaled([0], HALVES)
    world.segments.append(f"{S}1.#epoch.1", b"123")
    await api.call("sealStream", api.info)
    core = controller.services.core
    key = StreamKey("scope", "stream")
    root = await core.context.store.load(key)
    records = await core.context.store.sealed(key, root, 0, 2)
    assert [(record.epoch, record.sizes, record.total_bytes) for record in records] == [
        (1, {0: 5}, 5),
        (2, {one: 3, two: 0}, 8),
    ]


@pytest.mark.parametrize("other", [0, 1])
async def test_a_scale_that_ends_between_look_and_decision_decides_by_what_is_active_then(
    api: Any, monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    await api.setup(2)
    active_epoch = StreamStore.active_epoch
    others = [other]

    async def overtaken(self: StreamStore, key: StreamKey, root: StreamRecord) -> Epoch:
        found = await active_epoch(self, key, root)
        while others:
            await api.scaled([others.pop()], [(other / 2, other / 2 + 0.25), (other / 2 + 0.25, other / 2 + 0.5)])
        return found

    monkeypatch.setattr(StreamStore, "active_epoch", overtaken)
    answer = await api.scale([0], [(0.0, 0.25), (0.25, 0.5)])
    expected = pb.ScaleResponse.STARTED if other else pb.ScaleResponse.PRECONDITION_FAILED
    assert answer.status == expected
    if other:
        await api.until_scaled(answer.epoch)
    assert len(await api.current()) == 3 + other


async def test_a_stream_has_no_more_segments_than_an_answer_can_name(make_api: Any, controller: Any) -> None:
    """Two names of 250 bytes: one message has room for some 7,400 segments of the stream."""
    api = make_api(controller, scope="s" * 250, stream="x" * 250)
    most = segments_max(api.scope, api.stream)
    assert 7000 < most < limits.STREAM_SEGMENTS_MAX
    with pytest.raises(BadRequestError, match=rf"minNumSegments is {most + 1}, .* has {most} at most"):
        await api.setup(most + 1)
    await api.setup(2)
    with pytest.raises(BadRequestError, match="minNumSegments"):
        await api.call("updateStream", api.config(most + 1))
    parts = [(0.5 * number / most, 0.5 * (number + 1) / most) for number in range(most)]
    assert (await api.scale([0], parts)).status == pb.ScaleResponse.PRECONDITION_FAILED
    key = StreamKey(api.scope, api.stream)
    fullest = [StreamSegment(segment_id(2**31 - 1, 2**31 - 1), 0.1, 0.9)] * most
    assert segment_ranges(key, fullest).ByteSize() <= limits.RPC_MESSAGE_MAX_BYTES
    short = segments_max("scope", "stream")
    assert short == limits.STREAM_SEGMENTS_MAX


@pytest.mark.parametrize("bound", ["RPC_MESSAGE_MAX_BYTES", "SEGMENTS_BETWEEN_CUTS_MAX"])
async def test_too_many_segments_between_two_cuts_are_refused(
    api: Any, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    await api.setup(1)
    active = [0]
    for _ in range(4):
        active = await api.scaled(active, HALVES)
        active = await api.scaled(active, [(0.0, 1.0)])
    request = pb.StreamCutRange(**{"streamInfo": api.info, "from": {0: 0}})
    assert len((await api.call("getSegmentsBetween", request)).segments) == 13
    monkeypatch.setattr(limits, bound, {"RPC_MESSAGE_MAX_BYTES": 200}.get(bound, 12))
    with pytest.raises(AnswerTooLargeError, match="segments"):
        await api.call("getSegmentsBetween", request)
    near = pb.StreamCutRange(**{"streamInfo": api.info, "from": {active[0]: 0}})
    assert len((await api.call("getSegmentsBetween", near)).segments) == 1


@pytest.mark.parametrize(
    ("scope", "stream"),
    [("scope", "s" * 301), ("s" * 301, "stream"), ("scope", "#transaction."), ("a/b", "c"), ("scope", "")],
)
async def test_names_that_no_stream_has_are_at_no_store(api: Any, scope: str, stream: str) -> None:
    """A store is found by hashing the name, and the answer is kept."""
    info = pb.StreamInfo(scope=scope, stream=stream)
    with pytest.raises(NotFoundError):
        await api.call("getURI", pb.SegmentId(streamInfo=info, segmentId=0))


@pytest.mark.parametrize("stream", ["any", "_MARKany", "_RGgroup", "table_kvtable", "s" * 255 + "_kvtable"])
async def test_segments_that_do_not_exist_have_a_store(api: Any, stream: str) -> None:
    info = pb.StreamInfo(scope="scope", stream=stream)
    assert (await api.call("getURI", pb.SegmentId(streamInfo=info, segmentId=-1))).endpoint


async def test_a_scale_looks_each_segment_up(api: Any) -> None:
    """If each were compared with every active one, this would keep the controller from all other work for minutes."""
    await api.setup(limits.STREAM_SEGMENTS_MAX)
    sealed = range(limits.STREAM_SEGMENTS_MAX, 100 * limits.STREAM_SEGMENTS_MAX)  # as many as a request has room for
    refused = await api.scale(sealed, [(0.0, 1.0)])
    assert refused.status == pb.ScaleResponse.PRECONDITION_FAILED
