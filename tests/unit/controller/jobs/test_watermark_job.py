"""The job that writes watermarks: which streams it finds, on which controller, and what does not stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import deadline_s
from tailrace.common.errors import NoSuchSegmentError, NoSuchStreamError, UnavailableError
from tailrace.common.names import qualified_segment_name, segment_id
from tailrace.common.watermarks import Watermark
from tailrace.controller.metadata.metadata_store import MARKED_TABLE, bucket_of
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import BucketsRecord, WriterMark, decode, encode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

PERIOD_S = 0.01
KEY = StreamKey("scope", "stream")


class ModelMarks:
    """The watermarks in all mark streams, and the segments of them that controllers open."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.written: dict[str, list[Watermark]] = {}
        self.opened = 0
        self.failing = ""
        self.slow = ""
        self.slow_looks: list[str] = []
        """The names of the segments with ``slow`` in them that were looked at, again at each look."""
        self.slow_now = self.slow_most = 0
        """How many looks at them are under way, now and at most."""
        self.left_s: list[float] = []
        """The time that requests have, at each look."""

    def open(self, name: str) -> ModelMarkSegment:
        """Open a mark stream's segment."""
        self.opened += 1
        return ModelMarkSegment(self, name)

    def of(self, stream: str = "stream") -> list[tuple[int, int, dict[int, int]]]:
        """Bounds and position of each watermark of a stream."""
        found = self.written.get(qualified_segment_name("scope", f"_MARK{stream}", 0), [])
        return [
            (each.lower, each.upper, {segment.identifier: offset for segment, offset in each.positions.items()})
            for each in found
        ]


class ModelMarkSegment:
    """As the port promises it."""

    def __init__(self, marks: ModelMarks, name: str) -> None:
        self._marks = marks
        self._name = name
        self._known = -1

    def _written(self) -> list[Watermark]:
        if self._name not in self._marks.world.segments.segments:
            raise NoSuchSegmentError(self._name)
        if self._marks.failing and self._marks.failing in self._name:
            raise UnavailableError("container 1 is away")
        return self._marks.written.setdefault(self._name, [])

    async def newest(self) -> Watermark | None:
        """The newest one."""
        await self._be_slow()
        written = self._written()
        self._known = len(written)
        return written[-1] if written else None

    async def _be_slow(self) -> None:
        """Wait until nothing is slow any more."""
        marks = self._marks
        marks.left_s.append(deadline_s() - asyncio.get_running_loop().time())
        if not marks.slow or marks.slow not in self._name:
            return
        marks.slow_looks.append(self._name)
        marks.slow_now += 1
        marks.slow_most = max(marks.slow_most, marks.slow_now)
        try:
            while marks.slow:  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.001)
        finally:
            marks.slow_now -= 1

    async def append(self, watermark: Watermark) -> bool:
        """Append if the last one is the one that is known."""
        written = self._written()
        if self._known != len(written):
            return False
        written.append(watermark)
        self._known += 1
        return True


@pytest.fixture
def marks(world: Any) -> ModelMarks:
    return ModelMarks(world)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait until a condition holds."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.001)

    return wait


async def note(api: Any, writer: str, time: int, position: dict[int, int]) -> int:
    cut = pb.StreamCut(streamInfo=api.info, cut=position)
    answer = await api.call(
        "noteTimestampFromWriter", pb.TimestampFromWriter(writer=writer, timestamp=time, position=cut)
    )
    return int(answer.result)


def listed(world: Any) -> set[bytes]:
    return set(world.metadata.dump_table(MARKED_TABLE))


async def rounds(controller: Any, until: Any, count: int = 2) -> None:
    """Wait for rounds that began from now on: the one that runs may have read the records before."""
    wanted = controller.watermarks.rounds + count
    await until(lambda: controller.watermarks.rounds >= wanted)


async def test_watermarks_follow_the_writers(world: Any, make_api: Any, until: Any, marks: ModelMarks) -> None:
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api = make_api(controller)
    await api.setup(timestampAggregationTimeout=60_000)
    assert not listed(world)
    assert await note(api, "a", 10, {0: 100}) == pb.TimestampResponse.SUCCESS
    assert listed(world) == {b"scope/stream"}
    await until(lambda: marks.of() == [(10, 10, {0: 100})])
    await note(api, "b", 15, {0: 80})
    await rounds(controller, until)
    assert len(marks.of()) == 1, "the first writer has not advanced"
    await note(api, "a", 20, {0: 130})
    await until(lambda: marks.of()[1:] == [(15, 20, {0: 130})])
    await note(api, "a", 30, {0: 140})
    await rounds(controller, until)
    assert len(marks.of()) == 2, "the second writer has not advanced"
    world.clock.ms += 60_000
    assert await note(api, "a", 31, {0: 150}) == pb.TimestampResponse.SUCCESS
    await until(lambda: marks.of()[2:] == [(31, 31, {0: 150})])
    assert controller.watermarks.written == 3
    assert controller.watermarks.failures == 0
    assert marks.opened == 1


async def test_positions_follow_a_scale(world: Any, make_api: Any, until: Any, marks: ModelMarks) -> None:
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api = make_api(controller)
    await api.setup(timestampAggregationTimeout=60_000)
    await note(api, "a", 10, {0: 100})
    await note(api, "b", 10, {0: 90})
    await until(lambda: len(marks.of()) >= 1)
    left, right = await api.scaled([0], [(0.0, 0.5), (0.5, 1.0)])
    await note(api, "a", 11, {left: 3})
    await note(api, "b", 12, {0: 120})
    await until(lambda: marks.of()[-1] == (11, 12, {left: 3, right: 0}))


async def test_a_writer_that_restarts_is_not_overtaken_by_its_own_watermark(
    world: Any, make_api: Any, until: Any, marks: ModelMarks
) -> None:
    """The first watermark after the restart lies behind what the writer had written before, in all segments."""
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api = make_api(controller)
    await api.setup(2, timestampAggregationTimeout=60_000)
    await note(api, "sync", 0, {1: 10})
    await until(lambda: marks.of() == [(0, 0, {0: 0, 1: 10})])
    await api.call("removeWriter", pb.RemoveWriterRequest(writer="sync", stream=api.info))
    await controller.watermarks.close()  # so that no look sees the first of the two notes alone
    await note(api, "stable", 30, {0: 492, 1: 174})
    await note(api, "stable", 32, {1: 186})
    controller.watermarks.start()
    await until(lambda: len(marks.of()) > 1)
    assert marks.of()[1:] == [(32, 32, {0: 492, 1: 186})]


async def test_removed_writers_and_streams_without_writers_leave(
    world: Any, make_api: Any, until: Any, marks: ModelMarks
) -> None:
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api, gone = make_api(controller), make_api(controller, stream="gone")
    await api.setup(timestampAggregationTimeout=10**9)
    await gone.call("createStream", gone.config(timestampAggregationTimeout=10**9))
    for each in (api, gone):
        await note(each, "a", 10, {0: 100})
    await until(lambda: len(marks.of()) + len(marks.of("gone")) == 2)
    await gone.call("sealStream", gone.info)
    await gone.call("deleteStream", gone.info)
    await api.call("removeWriter", pb.RemoveWriterRequest(writer="a", stream=api.info))
    await rounds(controller, until)
    assert listed(world) == {b"scope/stream", b"scope/gone"}, "a call may be about to add a writer"
    world.clock.ms += limits.MARKED_WITHOUT_WRITERS_MS
    await until(lambda: not listed(world))
    assert await note(api, "a", 5, {0: 50}) == pb.TimestampResponse.SUCCESS, "the writer was forgotten"
    assert listed(world) == {b"scope/stream"}
    await rounds(controller, until)
    assert len(marks.of()) == 1, "a watermark's lower bound does not go back"
    await note(api, "a", 11, {0: 110})
    await until(lambda: marks.of()[1:] == [(11, 11, {0: 110})])


async def test_times_of_commits_count(world: Any, make_api: Any, until: Any, marks: ModelMarks) -> None:
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api = make_api(controller)
    await api.setup(timestampAggregationTimeout=60_000)
    begun = await api.begin()
    await api.commit(begun.txnId, writerId="a", timestamp=7)
    await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    await until(lambda: [each[:2] for each in marks.of()] == [(7, 7)])


async def test_another_controller_continues(world: Any, make_api: Any, until: Any, marks: ModelMarks) -> None:
    fast = {"beat_s": 0.02, "look_s": 0.02, "lapse_s": 5.0, "watermark_period_s": PERIOD_S}
    first = await world.start(seed=1, mark_segments=marks.open, **fast)
    second = await world.start(seed=2, mark_segments=marks.open, **fast)
    shares = [each.services.core.membership for each in (first, second)]
    await until(lambda: all(each.own_buckets for each in shares))
    await until(lambda: not shares[0].own_buckets & shares[1].own_buckets)
    await make_api(first).call("createScope", pb.ScopeInfo(scope="scope"))
    apis = [make_api(second, stream=f"s{number}") for number in range(12)]
    for api in apis:
        made = await api.call("createStream", api.config(timestampAggregationTimeout=60_000))
        assert made.status == pb.CreateStreamStatus.SUCCESS
        await note(api, "a", 1, {0: 10})
    await until(lambda: all(len(marks.of(api.stream)) == 1 for api in apis))
    await until(lambda: first.watermarks.written > 0 and second.watermarks.written > 0)
    await first.close()
    for api in apis:
        await note(api, "a", 2, {0: 20})
    await until(lambda: all(marks.of(api.stream)[1:] == [(2, 2, {0: 20})] for api in apis))
    assert first.watermarks.written + second.watermarks.written == 24


async def test_a_controller_remembers_a_bounded_number_of_positions(
    world: Any, make_api: Any, until: Any, marks: ModelMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATERMARK_POSITIONS_KEPT_MAX", 5)
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    first = make_api(controller, stream="s0")
    await first.setup(timestampAggregationTimeout=60_000)
    apis = [first, *(make_api(controller, stream=f"s{number}") for number in range(1, 5))]
    for api in apis[1:]:
        await api.call("createStream", api.config(timestampAggregationTimeout=60_000))
    for time in (1, 2, 3):
        for api in apis:
            await note(api, "a", time, {0: 10 * time})
        await until(lambda time=time: all(len(marks.of(api.stream)) == time for api in apis))
    remembered = controller.watermarks._watermarks._remembered
    assert remembered._positions == sum(each.positions for each in remembered._streams.values()) <= 5
    assert len(remembered._streams) == 2
    assert marks.opened > len(apis), "what was forgotten is read again"


async def test_a_controller_that_was_overtaken_reads_the_newest_one(
    world: Any, make_api: Any, until: Any, marks: ModelMarks
) -> None:
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api = make_api(controller)
    await api.setup(timestampAggregationTimeout=60_000)
    await note(api, "a", 1, {0: 10})
    await until(lambda: len(marks.of()) == 1)
    (written,) = marks.written.values()
    written.append(Watermark(5, 9, written[0].positions))  # by a controller that was taken for dead, and was not
    await note(api, "a", 3, {0: 30})
    await rounds(controller, until, 3)
    assert len(written) == 2, "a time below the newest watermark makes none"
    await note(api, "a", 6, {0: 60})
    await until(lambda: marks.of()[2:] == [(6, 6, {0: 60})])


async def test_a_stream_that_fails_stops_no_other(world: Any, make_api: Any, until: Any, marks: ModelMarks) -> None:
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api, bad = make_api(controller), make_api(controller, stream="bad")
    await api.setup()
    await bad.call("createStream", bad.config())
    marks.failing = "_MARKbad"
    for each in (bad, api):
        await note(each, "a", 1, {0: 10})
    await until(lambda: marks.of() == [(1, 1, {0: 10})])
    await until(lambda: controller.watermarks.failures > 1)
    marks.failing = ""
    await until(lambda: marks.of("bad") == [(1, 1, {0: 10})])


@pytest.fixture
def soon_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKFLOW_STEP_SLOW_S", 0.02)


@pytest.mark.usefixtures("soon_slow")
async def test_a_round_does_not_wait_for_slow_streams(world: Any, make_api: Any, until: Any, marks: ModelMarks) -> None:
    """Of which each is looked at once, until that look has ended."""
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api, bad = make_api(controller), make_api(controller, stream="bad")
    await api.setup()
    await bad.call("createStream", bad.config())
    marks.slow = "_MARKbad"
    await note(bad, "a", 1, {0: 10})
    for time in range(1, 4):
        await note(api, "a", time, {0: 10 * time})
        await until(lambda: len(marks.of()) == time)  # noqa: B023 - it is awaited in this turn
        await rounds(controller, until)
    assert len(marks.slow_looks) == 1
    assert marks.of("bad") == []
    marks.slow = ""
    await until(lambda: marks.of("bad") == [(1, 1, {0: 10})])
    assert controller.watermarks.failures == 0
    await until(lambda: not controller.watermarks._under_way)


@pytest.mark.usefixtures("soon_slow")
async def test_slow_streams_are_bounded_and_end_with_the_job(
    world: Any, make_api: Any, until: Any, marks: ModelMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATERMARK_STREAMS_UNDER_WAY_MAX", 2)
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    apis = [make_api(controller, stream=f"bad{number}") for number in range(4)]
    await apis[0].setup()
    marks.slow = "_MARKbad"
    for api in apis:
        await api.call("createStream", api.config())
        await note(api, "a", 1, {0: 10})
    await until(lambda: marks.slow_now == 2)
    await asyncio.sleep(0.1)
    assert marks.slow_most == 2
    await controller.watermarks.close()
    assert marks.slow_now == 0


@pytest.mark.usefixtures("soon_slow")
async def test_streams_that_failed_leave_room_for_the_others(
    world: Any, make_api: Any, until: Any, marks: ModelMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATERMARK_STREAMS_UNDER_WAY_MAX", 4)
    monkeypatch.setattr(limits, "WATERMARK_STREAMS_CONCURRENT_MAX", 1)
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api = make_api(controller)
    await api.setup()
    marks.failing = "_MARKbad"
    for bad in (make_api(controller, stream=f"bad{number}") for number in range(4)):
        await bad.call("createStream", bad.config())
        await note(bad, "a", 1, {0: 10})
    await until(lambda: len(controller.watermarks._failing) == 4)
    monkeypatch.setattr(limits, "WORKFLOW_SLOW_STEPS_MAX", 0)  # no look gives its slot to another one
    marks.slow = "_MARKbad"
    await until(lambda: marks.slow_now == 1)
    for time in range(1, 4):
        await note(api, "a", time, {0: 10 * time})
        await until(lambda: len(marks.of()) == time)  # noqa: B023 - it is awaited in this turn
    assert marks.slow_most == 1


async def test_streams_that_failed_once_are_looked_at_again_beside_many_others(
    world: Any, make_api: Any, until: Any, marks: ModelMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATERMARK_STREAMS_UNDER_WAY_MAX", 2)
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    await make_api(controller).setup()
    marks.failing = "_MARKbad"
    names = [f"{kind}{number}" for number in range(4) for kind in ("bad", "good")]
    for api in (make_api(controller, stream=name) for name in names):
        await api.call("createStream", api.config())
        await note(api, "a", 1, {0: 10})
    await until(lambda: len(controller.watermarks._failing) == 4)
    marks.failing = ""
    await until(lambda: all(marks.of(name) == [(1, 1, {0: 10})] for name in names))


async def test_the_requests_for_a_stream_have_the_deadline_of_a_call(
    world: Any, make_api: Any, until: Any, marks: ModelMarks
) -> None:
    controller = await world.start(
        sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open, requests_deadline_s=7.0
    )
    api = make_api(controller)
    await api.setup()
    await note(api, "a", 1, {0: 10})
    await until(lambda: marks.of() == [(1, 1, {0: 10})])
    assert all(0 < left <= 7.0 for left in marks.left_s), marks.left_s


async def test_a_stream_that_failed_is_forgotten_when_another_controller_has_it(
    world: Any, make_api: Any, until: Any, marks: ModelMarks
) -> None:
    """Also when this one has no stream left; a failure after that is logged, since it is the first one again."""
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api, bad = make_api(controller), make_api(controller, stream="bad")
    await api.setup()
    await bad.call("createStream", bad.config())
    marks.failing = "_MARK"
    job, membership = controller.watermarks, controller.services.core.membership
    all_buckets = membership._buckets
    bucket = bucket_of("scope", "bad")
    assert bucket_of("scope", "stream") != bucket
    others = tuple("other" if number == bucket else owner for number, owner in enumerate(all_buckets.owners))
    with structlog.testing.capture_logs() as logs:

        def logged() -> list[str]:
            return sorted(line["stream"] for line in logs if line["event"] == "watermark_failed")

        for each in (bad, api):
            await note(each, "a", 1, {0: 10})
        await until(lambda: logged() == ["scope/bad", "scope/stream"])
        membership._buckets = BucketsRecord(1, others)
        await until(lambda: job._failing == {KEY})
        membership._buckets = BucketsRecord(2, ("other",) * limits.METADATA_BUCKETS)
        await until(lambda: job._failing == set())
        assert logged() == ["scope/bad", "scope/stream"], "each logged once, while it failed in each round"
        membership._buckets = all_buckets
        await until(lambda: logged() == ["scope/bad", "scope/bad", "scope/stream", "scope/stream"])


async def test_a_stream_that_is_made_again_has_its_own_watermarks(
    world: Any, make_api: Any, until: Any, marks: ModelMarks
) -> None:
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api = make_api(controller)
    await api.setup(timestampAggregationTimeout=60_000)
    await note(api, "a", 100, {0: 10})
    await until(lambda: len(marks.of()) == 1)
    await api.call("sealStream", api.info)
    await api.call("deleteStream", api.info)
    await api.call("createStream", api.config(timestampAggregationTimeout=60_000))
    (segment,) = await api.current()
    await note(api, "a", 50, {segment: 1})
    await until(lambda: marks.of()[1:] == [] and len(marks.written) == 2)
    assert [each.lower for each in list(marks.written.values())[1]] == [50]


async def test_a_commit_that_waits_while_its_writer_is_forgotten_lists_the_stream_again(
    world: Any, make_api: Any, until: Any, marks: ModelMarks
) -> None:
    controller = await world.start(sole=True, watermark_period_s=PERIOD_S, mark_segments=marks.open)
    api = make_api(controller)
    await api.setup(timestampAggregationTimeout=60_000)
    merge, begun, released = world.segments.merge_batch, asyncio.Event(), asyncio.Event()

    async def waiting(*arguments: Any) -> Any:
        begun.set()
        await released.wait()
        return await merge(*arguments)

    async def commit(time: int) -> Any:
        made = await api.begin()
        assert await api.commit(made.txnId, writerId="w", timestamp=time) == pb.TxnStatus.SUCCESS
        return made.txnId

    await api.until_state(await commit(10), pb.TxnState.COMMITTED)
    await until(lambda: len(marks.of()) == 1)
    world.segments.merge_batch = waiting
    late = await commit(20)
    await begun.wait()
    world.clock.ms += 2 * limits.MARKED_WITHOUT_WRITERS_MS
    await until(lambda: not listed(world))
    released.set()
    await api.until_state(late, pb.TxnState.COMMITTED)
    assert listed(world) == {b"scope/stream"}
    await until(lambda: [lower for lower, _, _ in marks.of()] == [10, 20])


async def test_a_stream_that_is_being_deleted_gets_no_more_marks(world: Any, make_api: Any) -> None:
    api = make_api(await world.start(sole=True))
    await api.setup()
    await note(api, "known", 10, {0: 0})
    await api.call("sealStream", api.info)
    delete, begun, released = world.segments.delete_segment, asyncio.Event(), asyncio.Event()

    async def waiting(name: str) -> Any:
        begun.set()
        await released.wait()
        return await delete(name)

    world.segments.delete_segment = waiting
    deleting = asyncio.create_task(api.call("deleteStream", api.info))
    await begun.wait()
    for writer in ("known", "new"):
        with pytest.raises(NoSuchStreamError, match="stream scope/stream is being deleted"):
            await note(api, writer, 20, {0: 0})
    released.set()
    assert (await deleting).status == pb.DeleteStreamStatus.SUCCESS
    assert [key for key in world.metadata.dump_table(KEY.table) if key.startswith(b"scope/stream/")] == []


async def test_a_mark_that_an_earlier_stream_of_the_name_left_counts_for_nothing(world: Any, make_api: Any) -> None:
    api = make_api(await world.start(sole=True))
    await api.setup()
    left = encode(WriterMark(1000, {segment_id(7, 0): 100}, world.clock.ms))
    await world.metadata.put(KEY.table, [Put(KEY.writer(writer), left, UNCONDITIONAL) for writer in ("a", "b", "c")])
    removed = await api.call("removeWriter", pb.RemoveWriterRequest(writer="a", stream=api.info))
    assert removed.result == pb.RemoveWriterResponse.UNKNOWN_WRITER
    assert await note(api, "a", 10, {0: 0}) == pb.TimestampResponse.SUCCESS
    made = await api.begin()
    assert await api.commit(made.txnId, writerId="b", timestamp=20) == pb.TxnStatus.SUCCESS
    await api.until_state(made.txnId, pb.TxnState.COMMITTED)
    stored = {writer: world.metadata.dump_table(KEY.table)[KEY.writer(writer)] for writer in ("a", "b")}
    times = {writer: decode(WriterMark, value, "test").timestamp for writer, value in stored.items()}
    assert times == {"a": 10, "b": 20}
