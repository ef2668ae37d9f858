"""The job that scales streams by their rates: what it asks, for which streams, and what does not stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import deadline_s
from tailrace.common.errors import UnavailableError
from tailrace.common.names import parse_segment_name
from tailrace.controller.jobs.scaling import ScalingJob
from tailrace.controller.managers.segment_rates import SegmentRates
from tailrace.controller.metadata.metadata_store import bucket_of
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.scaling.times import ScalingTimes
from tailrace.rpc import controller_pb2 as pb
from tailrace.rpc import operator_pb2
from tailrace.wire.commands import MeasuredRate

CONTAINERS = 3
HOT, COLD = 1000.0, 1.0
TARGET = 100


class ModelRates:
    """The rates that a test gives to segments, spread over three containers."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.container_count = CONTAINERS
        self.speed: Callable[[str], float] = lambda name: HOT
        self.age_s = 3600.0
        self.away: set[int] = set()
        self.asked: list[tuple[int, Sequence[int]]] = []

    async def rates(self, container_id: int, windows_ms: Sequence[int]) -> list[MeasuredRate]:
        self.asked.append((container_id, windows_ms))
        if container_id in self.away:
            raise UnavailableError(f"container {container_id} has no owner")
        found = []
        for number, (name, segment) in enumerate(sorted(self._world.segments.segments.items())):
            if segment.scale_type and not segment.sealed and number % CONTAINERS == container_id:
                rates = [round(1000 * self.speed(name))] * len(windows_ms)
                kind, target = segment.scale_type, segment.target_rate
                found.append(MeasuredRate(name, number, kind, target, round(1000 * self.age_s), rates))
        return found


@pytest.fixture
def source(world: Any) -> ModelRates:
    return ModelRates(world)


def by_events(factor: int = 2, minimum: int = 1) -> Any:
    return pb.ScalingPolicy(
        scaleType=pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC,
        targetRate=TARGET,
        scaleFactor=factor,
        minNumSegments=minimum,
    )


async def make(api: Any, policy: Any = None, stream: str = "stream") -> None:
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    info = pb.StreamInfo(scope="scope", stream=stream)
    config = pb.StreamConfig(streamInfo=info, scalingPolicy=policy or by_events())
    assert (await api.call("createStream", config)).status == pb.CreateStreamStatus.SUCCESS


async def described(api: Any) -> Any:
    """The stream, with its last scale."""
    return await api.call("describeStream", operator_pb2.DescribeStreamRequest(scope="scope", stream="stream"))


async def test_hot_segments_are_split_and_cold_ones_merged(world: Any, make_api: Any, source: ModelRates) -> None:
    controller = await world.start(sole=True)
    api, job = make_api(controller), controller.scaling
    await make(api, by_events(4))
    await job.round(source)
    assert {number for number, _ in source.asked} == set(range(CONTAINERS))
    assert all(list(windows) == [120_000, 300_000, 600_000, 1_200_000] for _, windows in source.asked)
    await api.until_scaled(0)
    assert len(await api.current()) == 4
    assert (job.splits, job.merges, job.failures) == (1, 0, 0)
    assert (await described(api)).lastScale.reason == "Rate"
    source.speed = lambda name: COLD
    await job.round(source)
    await api.until_scaled(1)
    await job.round(source)
    await api.until_scaled(2)
    assert len(await api.current()) == 1
    assert (await described(api)).lastScale.reason == "Rate"
    assert (job.rounds, job.splits, job.merges, job.failures) == (3, 1, 2, 0)
    await job.round(source)
    assert job.merges == 2, "one segment has no neighbour"


async def test_a_young_segment_is_left_alone(world: Any, make_api: Any, source: ModelRates) -> None:
    controller = await world.start(sole=True)
    api = make_api(controller)
    await make(api)
    source.age_s = 599
    await controller.scaling.round(source)
    assert await api.current() == [0]
    assert controller.scaling.splits == 0


async def test_a_container_that_is_away_stops_nothing_else(world: Any, make_api: Any, source: ModelRates) -> None:
    controller = await world.start(sole=True)
    api, job = make_api(controller), controller.scaling
    await make(api, by_events(2, 3))
    silent = [parse_segment_name(each.name).identifier for each in await source.rates(1, [1])]
    assert len(silent) == 1
    source.away = {1}
    with structlog.testing.capture_logs() as logs:
        await job.round(source)
        await api.until_scaled(0)
        assert job.splits == 2
        source.speed = lambda name: COLD
        await job.round(source)
    assert [each["container"] for each in logs if each["event"] == "rates_not_reported"] == [1], "each time it is said"
    assert set(silent) & set(await api.current()) == set(silent), "a segment without rates was changed"


async def test_only_streams_of_own_buckets_are_scaled(world: Any, make_api: Any, source: ModelRates) -> None:
    controller = await world.start(sole=True)
    api = make_api(controller)
    await make(api)
    source.asked.clear()

    class Others:
        own_buckets: frozenset[int] = frozenset()

    context, streams = controller.retention._context, controller.services.core.streams
    job = ScalingJob(context, Others(), streams, source, SegmentRates(ScalingTimes()))  # type: ignore[arg-type]
    await job.round(source)
    Others.own_buckets = frozenset(range(limits.METADATA_BUCKETS)) - {bucket_of("scope", "stream")}
    await job.round(source)
    assert await api.current() == [0]
    Others.own_buckets = frozenset({bucket_of("scope", "stream")})
    await job.round(source)
    await api.until_scaled(0)
    assert len(await api.current()) == 2


async def test_the_policy_of_the_stream_decides(world: Any, make_api: Any, source: ModelRates) -> None:
    """A segment's copy can be older than the policy: another target counts at once, another unit not at all."""
    controller = await world.start(sole=True)
    api, job = make_api(controller), controller.scaling
    await make(api)
    (segment,) = [each for each in world.segments.segments.values() if each.scale_type]
    policy = by_events()
    policy.targetRate = 10 * TARGET
    await api.call("updateStream", pb.StreamConfig(streamInfo=api.info, scalingPolicy=policy))
    segment.target_rate = 1
    await job.round(source)
    assert await api.current() == [0]
    policy = by_events()
    policy.scaleType = pb.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC
    await api.call("updateStream", pb.StreamConfig(streamInfo=api.info, scalingPolicy=policy))
    segment.scale_type, segment.target_rate = 2, TARGET
    await job.round(source)
    assert await api.current() == [0]
    segment.scale_type = 1
    await job.round(source)
    await api.until_scaled(0)
    assert len(await api.current()) == 2


@pytest.mark.parametrize("then", ["fixed", "target", "same"])
async def test_a_policy_of_yesterday_scales_nothing(
    world: Any, make_api: Any, source: ModelRates, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The policy is changed after the decision; the number of segments, and so the epoch, stays."""
    controller = await world.start(sole=True)
    api, job = make_api(controller), controller.scaling
    await make(api)
    policy = {"fixed": pb.ScalingPolicy(minNumSegments=1), "target": by_events(3), "same": by_events()}[then]
    plan = job._plan

    async def overtaken(key: StreamKey, rates: Any) -> Any:
        found = await plan(key, rates)
        answer = await api.call("updateStream", pb.StreamConfig(streamInfo=api.info, scalingPolicy=policy))
        assert answer.status == pb.UpdateStreamStatus.SUCCESS
        return found

    monkeypatch.setattr(job, "_plan", overtaken)
    await job.round(source)
    assert job.failures == 0
    if then == "same":
        await api.until_scaled(0)
        assert job.splits == 1
        return
    await asyncio.sleep(0.05)
    assert (await api.current(), job.splits) == ([0], 0)
    monkeypatch.setattr(job, "_plan", plan)
    await job.round(source)
    if then == "target":
        await api.until_scaled(0)
    assert len(await api.current()) == (3 if then == "target" else 1)


async def test_a_scale_by_a_client_needs_no_policy(world: Any, make_api: Any) -> None:
    controller = await world.start(sole=True)
    api = make_api(controller)
    await make(api)
    await api.call(
        "updateStream", pb.StreamConfig(streamInfo=api.info, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))
    )
    assert len(await api.scaled([0], [(0.0, 0.5), (0.5, 1.0)])) == 2


async def test_a_sealed_or_deleted_stream_is_not_scaled(world: Any, make_api: Any, source: ModelRates) -> None:
    controller = await world.start(sole=True)
    api, job = make_api(controller), controller.scaling
    await make(api)
    found = [await source.rates(number, [1, 2, 3, 4]) for number in range(CONTAINERS)]

    async def old(container_id: int, windows_ms: Sequence[int]) -> list[MeasuredRate]:
        return found[container_id]

    source.rates = old  # type: ignore[method-assign]
    await api.call("sealStream", api.info)
    await job.round(source)
    await api.call("deleteStream", api.info)
    await job.round(source)
    assert (job.splits, job.failures, job.rounds) == (0, 0, 2)


async def test_a_stream_with_a_workflow_waits(
    world: Any, make_api: Any, source: ModelRates, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await world.start(sole=True)
    api, job = make_api(controller), controller.scaling
    await make(api)
    create = world.segments.create_segment

    async def failing(name: str, **fields: Any) -> None:
        raise UnavailableError("container 1 is away")

    monkeypatch.setattr(world.segments, "create_segment", failing)
    assert (await api.scale([0], [(0.0, 0.5), (0.5, 1.0)])).status == pb.ScaleResponse.STARTED
    await job.round(source)
    assert (job.splits, job.failures) == (0, 0)
    monkeypatch.setattr(world.segments, "create_segment", create)
    await api.until_scaled(0)
    await job.round(source)
    await api.until_scaled(1)
    assert job.splits == 2


async def test_a_stream_that_fails_stops_no_other(
    world: Any, make_api: Any, source: ModelRates, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await world.start(sole=True)
    api, job = make_api(controller), controller.scaling
    await make(api)
    await make(api, stream="bad")
    scale = controller.services.core.streams.scale

    async def failing(key: StreamKey, *arguments: Any) -> Any:
        if key.stream == "bad":
            raise UnavailableError("the metadata store does not answer")
        return await scale(key, *arguments)

    monkeypatch.setattr(controller.services.core.streams, "scale", failing)
    await job.round(source)
    await api.until_scaled(0)
    assert len(await api.current()) == 2
    assert (job.splits, job.failures) == (1, 1)


async def test_the_requests_for_a_stream_have_the_deadline_of_a_call(
    world: Any, make_api: Any, source: ModelRates, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await world.start(sole=True, requests_deadline_s=7.0)
    await make(make_api(controller))
    streams, left_s = controller.services.core.streams, []
    scale = streams.scale

    async def timed(*arguments: Any) -> Any:
        left_s.append(deadline_s() - asyncio.get_running_loop().time())
        return await scale(*arguments)

    monkeypatch.setattr(streams, "scale", timed)
    await controller.scaling.round(source)
    assert [0 < left <= 7.0 for left in left_s] == [True], left_s


async def test_segments_of_others_are_ignored(world: Any, make_api: Any, source: ModelRates) -> None:
    """Segments that clients made by themselves, with a rate policy, and transactions are no streams."""
    controller = await world.start(sole=True)
    await make(make_api(controller))
    for name in ("no segment of a stream", "scope/stream/0.#epoch.0#transaction." + "0" * 32, "a/b/0.#epoch.0"):
        await world.segments.create_segment(name, scale_type=2, target_rate=1)
    source.age_s = 1
    await controller.scaling.round(source)
    source.speed, source.age_s = (lambda name: COLD), 3600
    await controller.scaling.round(source)
    assert controller.scaling.failures == 0


async def test_rounds_come_by_themselves(world: Any, make_api: Any, source: ModelRates) -> None:
    source.age_s = 0.4
    controller = await world.start(sole=True, rates=source, scaling_time_factor=0.0005)
    api = make_api(controller)
    await make(api)
    await api.until_scaled(0)
    assert len(await api.current()) >= 2
