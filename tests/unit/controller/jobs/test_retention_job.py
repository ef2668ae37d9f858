"""The job that applies policies: which streams it finds, on which controller, and what does not stop it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import deadline_s
from tailrace.common.errors import BadRequestError, UnavailableError
from tailrace.common.names import qualified_segment_name
from tailrace.common.stream_policies import RetentionPolicy, StreamConfig
from tailrace.controller.jobs.retention import RetentionJob
from tailrace.controller.metadata.metadata_store import RETENTION_TABLE, bucket_of
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

POLICY = pb.RetentionPolicy(retentionType=pb.RetentionPolicy.SIZE, retentionParam=5, retentionMax=100)
PERIOD_S = 0.05
KEY = StreamKey("scope", "stream")


async def append(world: Any, stream: str, count: int = 10) -> None:
    world.segments.append(qualified_segment_name("scope", stream, 0), b"x" * count)


def start_of(world: Any, stream: str) -> int:
    return int(world.segments.segments[qualified_segment_name("scope", stream, 0)].start_offset)


def listed(world: Any) -> set[bytes]:
    return set(world.metadata.dump_table(RETENTION_TABLE))


@pytest.fixture
def until(world: Any) -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait until a condition holds, while the model's clock moves on, so that cuts are due in each round."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                world.clock.ms += 100
                await asyncio.sleep(0.001)

    return wait


async def test_streams_are_truncated_by_themselves(world: Any, make_api: Any, until: Any) -> None:
    controller = await world.start(sole=True, retention_period_s=PERIOD_S)
    api = make_api(controller)
    await api.setup(retentionPolicy=POLICY)
    other = make_api(controller, stream="other")
    assert (await other.call("createStream", other.config())).status == pb.CreateStreamStatus.SUCCESS
    assert listed(world) == {b"scope/stream"}
    await append(world, "stream")
    await append(world, "other")
    job = controller.retention
    rounds = job.rounds
    await until(lambda: job.rounds >= rounds + 2)
    await append(world, "stream")
    await until(lambda: start_of(world, "stream") == 10)
    assert start_of(world, "other") == 0
    await other.call("updateStream", other.config(retentionPolicy=POLICY))
    await append(world, "other")
    rounds = job.rounds
    await until(lambda: job.rounds >= rounds + 2)
    await append(world, "other")
    await until(lambda: start_of(world, "other") == 20)
    await until(lambda: job.truncations >= 2)
    assert job.freed_bytes == 30


async def test_a_changed_policy_acts_at_once(world: Any, make_api: Any, until: Any) -> None:
    api = await begin_with_data(world, make_api)
    assert start_of(world, "stream") == 0
    await api.call("updateStream", api.config(retentionPolicy=POLICY))
    await until(lambda: start_of(world, "stream") == 20)
    assert api.controller.retention.rounds == 0


async def begin_with_data(world: Any, make_api: Any) -> Any:
    """A stream that keeps everything, with three cuts; no round comes. Its API."""
    api = make_api(await world.start(sole=True, retention_period_s=10_000))
    await api.setup(retentionPolicy=pb.RetentionPolicy(retentionType=pb.RetentionPolicy.SIZE, retentionParam=1000))
    for _ in range(3):
        await append(world, "stream")
        world.clock.ms += 10_000_000
        await api.controller.services.core.retention.apply(KEY)
    return api


async def test_a_changed_policy_acts_at_once_beside_a_commit_that_rolls_over(
    world: Any, make_api: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that rolls over begins between the update and the application of its policy, and takes its time."""
    monkeypatch.setattr(limits, "RETENTION_START_S", 3600.0)  # no round does it
    api = await begin_with_data(world, make_api)
    begun = await api.begin()
    await api.scaled([0], [(0.0, 0.5), (0.5, 1.0)])
    create, failed = world.segments.create_segment, []

    async def failing(name: str, **fields: Any) -> None:
        failed.append(name)
        raise UnavailableError("container 1 is away")

    manager = api.controller.services.core.retention
    apply = manager.apply

    async def beside_a_pass(key: StreamKey) -> Any:
        monkeypatch.setattr(world.segments, "create_segment", failing)
        assert await api.commit(begun.txnId) == pb.TxnStatus.SUCCESS
        await until(lambda: bool(failed))
        monkeypatch.setattr(manager, "apply", apply)
        return await apply(key)

    monkeypatch.setattr(manager, "apply", beside_a_pass)
    changed = api.config(2, retentionPolicy=POLICY)
    assert (await api.call("updateStream", changed)).status == pb.UpdateStreamStatus.SUCCESS
    await until(lambda: bool(failed))
    await asyncio.sleep(0.05)
    assert start_of(world, "stream") == 0, "the commit pass is not over"
    monkeypatch.setattr(world.segments, "create_segment", create)
    async with asyncio.timeout(120):
        await until(lambda: start_of(world, "stream") == 20)
    assert api.controller.retention.rounds == 0
    await ends(api)


async def ends(api: Any) -> None:
    """A request that was carried out is not repeated, and nothing of it is left."""
    async with asyncio.timeout(120):
        while api.controller.retention.repeats or not api.controller.services.core.retention.requests.empty():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("what", ["store is away", "policy changed"])
async def test_a_request_is_repeated_until_it_was_carried_out(
    world: Any, make_api: Any, until: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(limits, "RETENTION_REQUEST_RETRY_S", 0.1)
    api = await begin_with_data(world, make_api)
    streams = api.controller.services.core.streams
    check, times = streams.check_truncation, []

    async def disturbed(*arguments: Any) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 3 and what == "store is away":
            raise UnavailableError("container 1 is away")
        await check(*arguments)
        if len(times) < 3:
            policy = RetentionPolicy.by_size_bytes(5 + len(times), 100)
            await streams.update(KEY, StreamConfig(retention=policy))  # as another controller does

    monkeypatch.setattr(streams, "check_truncation", disturbed)
    await api.call("updateStream", api.config(retentionPolicy=POLICY))
    async with asyncio.timeout(120):
        await until(lambda: start_of(world, "stream") == 20)
    assert len(times) == 3
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[1] > 1.5 * limits.RETENTION_REQUEST_RETRY_S, "each pause is twice as long"
    await ends(api)


@pytest.mark.parametrize("how", ["sealed", "deleted"])
async def test_a_request_ends_with_its_stream(
    world: Any, make_api: Any, until: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    api = await begin_with_data(world, make_api)
    create = world.segments.create_segment

    async def failing(name: str, **fields: Any) -> None:
        raise UnavailableError("container 1 is away")

    monkeypatch.setattr(world.segments, "create_segment", failing)
    assert (await api.scale([0], [(0.0, 1.0)])).status == pb.ScaleResponse.STARTED
    api.controller.services.core.retention.request(KEY)
    await until(lambda: api.controller.retention.repeats == 1)
    monkeypatch.setattr(world.segments, "create_segment", create)
    await api.until_scaled(0)
    await api.call("sealStream", api.info)
    if how == "deleted":
        await api.call("deleteStream", api.info)
    await ends(api)


async def test_a_cut_that_is_no_position_waits_for_the_next_round(
    world: Any, make_api: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await begin_with_data(world, make_api)

    async def refused(*_: Any) -> None:
        raise BadRequestError("cut names segment 7, which the stream does not have")

    monkeypatch.setattr(api.controller.services.core.streams, "check_truncation", refused)
    await api.call("updateStream", api.config(retentionPolicy=POLICY))
    await until(lambda: api.controller.retention.failures == 1)
    await ends(api)


async def test_streams_without_a_policy_leave_the_list(world: Any, make_api: Any, until: Any) -> None:
    api = make_api(await world.start(sole=True, retention_period_s=PERIOD_S))
    await api.setup(retentionPolicy=POLICY)
    gone = make_api(api.controller, stream="gone")
    await gone.call("createStream", gone.config(retentionPolicy=POLICY))
    assert listed(world) == {b"scope/stream", b"scope/gone"}
    await api.call("updateStream", api.config())
    await gone.call("sealStream", gone.info)
    await gone.call("deleteStream", gone.info)
    await until(lambda: not listed(world))
    await api.call("updateStream", api.config(retentionPolicy=POLICY))
    assert listed(world) == {b"scope/stream"}


async def test_two_controllers_share_the_streams_and_one_takes_over(world: Any, make_api: Any, until: Any) -> None:
    fast = {"beat_s": 0.02, "look_s": 0.02, "lapse_s": 5.0, "retention_period_s": PERIOD_S}
    first = await world.start(seed=1, **fast)
    second = await world.start(seed=2, **fast)
    api = make_api(first)
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    names = [f"s{number}" for number in range(12)]
    for name in names:
        made = make_api(first, stream=name)
        assert (await made.call("createStream", made.config(retentionPolicy=POLICY))).status == 0
    for turn in range(1, 3):
        for name in names:
            await append(world, name)
        await until(lambda turn=turn: all(start_of(world, name) >= 10 * (turn - 1) for name in names))
        # The round that runs now may have seen a stream before it grew; the next one has not.
        ends = [(each.retention, each.retention.rounds + 2) for each in (first, second)]
        await until(lambda ends=ends: all(job.rounds >= rounds for job, rounds in ends))
    await until(lambda: all(start_of(world, name) == 10 for name in names))
    await until(lambda: first.retention.truncations > 0 and second.retention.truncations > 0)
    await first.close()
    for name in names:
        await append(world, name)
    await until(lambda: all(start_of(world, name) == 20 for name in names))


async def test_a_stream_that_fails_stops_no_other(
    world: Any, make_api: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await world.start(sole=True, retention_period_s=PERIOD_S)
    api = make_api(controller)
    await api.setup(retentionPolicy=POLICY)
    bad = make_api(controller, stream="bad")
    await bad.call("createStream", bad.config(retentionPolicy=POLICY))
    lost = qualified_segment_name("scope", "bad", 0)
    info = world.segments.segment_info

    async def failing(name: str) -> Any:
        if name == lost:
            raise UnavailableError("container 1 is away")
        return await info(name)

    monkeypatch.setattr(world.segments, "segment_info", failing)
    await append(world, "stream")
    rounds = controller.retention.rounds
    await until(lambda: controller.retention.rounds >= rounds + 2)
    await append(world, "stream")
    await until(lambda: start_of(world, "stream") == 10)
    assert controller.retention.failures > 0
    monkeypatch.setattr(world.segments, "segment_info", info)
    await append(world, "bad")
    rounds = controller.retention.rounds
    await until(lambda: controller.retention.rounds >= rounds + 2)
    await append(world, "bad")
    await until(lambda: start_of(world, "bad") == 10)


class NoBuckets:
    """The membership of a controller that has no bucket, because others have them all. Counts the looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    @property
    def own_buckets(self) -> frozenset[int]:
        self.looks += 1
        return frozenset()


async def test_a_controller_without_buckets_waits(world: Any) -> None:
    controller = await world.start(sole=True, retention_period_s=PERIOD_S, look_s=0.2)
    membership = NoBuckets()
    context = controller.retention._context
    job = RetentionJob(context, membership, controller.services.core.retention)  # type: ignore[arg-type]
    job.start()
    await asyncio.sleep(10 * PERIOD_S)
    await job.close()
    assert 1 <= membership.looks <= 12, "it looked for buckets again and again, without a pause"


async def begin_with_a_round(world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A controller that has just begun and makes its only round soon, over a stream to truncate. Its API."""
    first = await begin_with_data(world, make_api)
    monkeypatch.setattr(first.controller.services.core.retention, "request", lambda _: True)  # the round is to apply it
    await first.call("updateStream", first.config(retentionPolicy=POLICY))
    await first.controller.close()
    assert start_of(world, "stream") == 0
    monkeypatch.setattr(limits, "RETENTION_START_S", 0.05)
    return make_api(await world.start(seed=2, sole=True, retention_period_s=10_000))


async def test_a_round_is_repeated_for_a_stream_that_runs_a_workflow(
    world: Any, make_api: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await begin_with_a_round(world, make_api, monkeypatch)
    create = world.segments.create_segment

    async def failing(name: str, **fields: Any) -> None:
        raise UnavailableError("container 1 is away")

    monkeypatch.setattr(world.segments, "create_segment", failing)
    assert (await api.scale([0], [(0.0, 1.0)])).status == pb.ScaleResponse.STARTED
    job = api.controller.retention
    await until(lambda: job.rounds == 1)
    assert (start_of(world, "stream"), job.failures) == (0, 0)
    monkeypatch.setattr(world.segments, "create_segment", create)
    async with asyncio.timeout(120):  # the second round comes much later
        await until(lambda: start_of(world, "stream") == 20)
    assert (job.rounds, job.failures) == (1, 0)
    await ends(api)


@pytest.mark.parametrize("how", ["round", "request", "no room"])
async def test_a_policy_that_could_not_be_applied_for_long_is_reported(
    world: Any, make_api: Any, until: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A subscriber's cut is no position, and the stream gets another epoch during each decision."""
    by_request = how == "request"
    api = await (begin_with_data(world, make_api) if by_request else begin_with_a_round(world, make_api, monkeypatch))
    monkeypatch.setattr(limits, "RETENTION_REQUEST_RETRY_S", 0.001)
    monkeypatch.setattr(limits, "RETENTION_RETRY_S", 0.001)
    monkeypatch.setattr(limits, "RETENTION_REQUESTS_MAX", 0 if how == "no room" else 1)
    manager, job = api.controller.services.core.retention, api.controller.retention
    reported: list[int] = []

    async def refused(*_: Any) -> None:
        reported.append(job.failures)
        raise BadRequestError("cut names segment 7, which the stream does not have")

    async def has_changed(_: Any) -> bool:
        return True

    monkeypatch.setattr(api.controller.services.core.streams, "check_truncation", refused)
    monkeypatch.setattr(manager, "_has_changed", has_changed)
    with structlog.testing.capture_logs() as logs:
        if by_request:
            await api.call("updateStream", api.config(retentionPolicy=POLICY))
        await until(lambda: job.failures == 1)
    assert reported.count(0) == (1 if how == "no room" else limits.RETENTION_INCOMPLETE_MAX)
    (logged,) = [line for line in logs if line["event"] == "retention_failed"]
    assert "cut names segment 7" in logged["reason"]
    if how != "no room":
        await until(lambda: len(reported) > 2 * limits.RETENTION_INCOMPLETE_MAX)
        assert job.failures == 1, "each round counts a stream once"
        await job._round({bucket_of(*KEY)})
        assert job.failures == 2


async def test_a_round_whose_clock_is_far_from_the_last_one_is_reported_once(world: Any, make_api: Any) -> None:
    period_s = 1000
    api = make_api(await world.start(sole=True, retention_period_s=period_s))
    policy = pb.RetentionPolicy(retentionType=pb.RetentionPolicy.TIME, retentionParam=3_600_000)
    await api.setup(retentionPolicy=policy)
    other = make_api(api.controller, stream="other")
    assert (await other.call("createStream", other.config(retentionPolicy=policy))).status == 0
    job, buckets = api.controller.retention, {bucket_of(*KEY), bucket_of("scope", "other")}
    waits = []
    with structlog.testing.capture_logs() as logs:
        for lapse_s in (0, period_s, 86_400, period_s, period_s):
            world.clock.ms += 1000 * lapse_s
            await append(world, "stream")
            await append(world, "other")
            await job._round(buckets)
            waits.append(job.clock_waits)
    assert waits == [0, 0, 2, 2, 2]
    (logged,) = [line for line in logs if line["event"] == "retention_waits_for_clock"]
    assert (logged["streams"], logged["lapse_s"]) == (2, 86_400)
    assert [start_of(world, stream) for stream in ("stream", "other")] == [20, 20]


@pytest.mark.parametrize("page", [1, 3, 1000])
async def test_streams_whose_container_is_silent_stop_no_others_in_a_round(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any, page: int
) -> None:
    monkeypatch.setattr(limits, "METADATA_TABLE_PAGE_ENTRIES", page)
    controller = await world.start(sole=True, retention_period_s=10_000, blocking_deadline_s=10_000)
    api = make_api(controller)
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    names = [f"s{number}" for number in range(12)]
    for name in names:
        made = make_api(controller, stream=name)
        assert (await made.call("createStream", made.config(retentionPolicy=POLICY))).status == 0
    silent, answers, left_s = set(names[::4]), asyncio.Event(), list[float]()
    info = world.segments.segment_info

    async def wait_for_answers(segment: str) -> Any:
        if segment.split("/")[1] in silent:
            left_s.append(deadline_s() - asyncio.get_running_loop().time())
            await answers.wait()
        return await info(segment)

    monkeypatch.setattr(world.segments, "segment_info", wait_for_answers)
    for _ in range(2):
        answers.clear()
        for name in names:
            await append(world, name)
        world.clock.ms += 10_000_000
        round_ = asyncio.ensure_future(controller.retention._round({bucket_of("scope", name) for name in names}))

        async def others_are_applied(before: int = world.clock.ms) -> bool:
            records = [await record_of(controller, name) for name in names if name not in silent]
            return all(record.applied_ms == before for record in records)

        await wait_until(others_are_applied)
        assert not round_.done()
        answers.set()
        await asyncio.wait_for(round_, 120)
    assert all(start_of(world, name) == 10 for name in names)
    assert max(left_s) <= limits.RPC_REQUESTS_DEADLINE_S, "a request that is not answered ends early"


async def record_of(controller: Any, stream: str) -> Any:
    return await controller.services.core.retention.record(StreamKey("scope", stream), 0)


async def test_a_round_that_is_cancelled_leaves_no_task(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await world.start(sole=True, retention_period_s=10_000)
    await make_api(controller).setup(retentionPolicy=POLICY)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: str) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(world.segments, "segment_info", wait)
    round_ = asyncio.ensure_future(controller.retention._round({bucket_of(*KEY)}))
    async with asyncio.timeout(120):
        await begun.wait()
    round_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await round_
    assert ended.is_set()


async def test_a_request_whose_clock_is_far_from_the_last_round_is_reported(
    world: Any, make_api: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a controller that makes no round, as one without buckets."""
    monkeypatch.setattr(limits, "RETENTION_START_S", 3600.0)
    api = await begin_with_data(world, make_api)
    world.clock.ms += 30 * 86_400_000
    policy = pb.RetentionPolicy(retentionType=pb.RetentionPolicy.TIME, retentionParam=3_600_000)
    with structlog.testing.capture_logs() as logs:
        await api.call("updateStream", api.config(retentionPolicy=policy))
        await until(lambda: any(line["event"] == "retention_waits_for_clock" for line in logs))
    assert (start_of(world, "stream"), api.controller.retention.rounds) == (0, 0)
