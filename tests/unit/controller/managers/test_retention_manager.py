"""Retention policies as the controller carries them out: what goes, what stays, and what the records say afterwards."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.common.names import qualified_segment_name, segment_id
from tailrace.controller.metadata.metadata_store import bucket_of, bucket_table
from tailrace.controller.metadata.model import TruncationReason
from tailrace.controller.metadata.records import RetentionRecord, decode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb
from tailrace.rpc import operator_pb2 as pb_operator

KEY = StreamKey("scope", "stream")
TABLE = bucket_table(bucket_of(*KEY))
PERIOD_MS = 60_000
WALKS_MIN, WALKS_MAX = 12, 200
"""Random walks, and further ones until each reason was met: in 12 of them the rarest one may be missing."""
GROUP_ID = "11111111-2222-3333-4444-555555555555"
TIME, SIZE = pb.RetentionPolicy.TIME, pb.RetentionPolicy.SIZE


def by_size(minimum: int, maximum: int = 2**63 - 1) -> pb.RetentionPolicy:
    return pb.RetentionPolicy(retentionType=SIZE, retentionParam=minimum, retentionMax=maximum)


def by_time(minimum_ms: int, maximum_ms: int = 2**63 - 1) -> pb.RetentionPolicy:
    return pb.RetentionPolicy(retentionType=TIME, retentionParam=minimum_ms, retentionMax=maximum_ms)


class Bench:
    """One stream, its policy, and what a test does with both."""

    def __init__(self, world: Any, make_api: Any) -> None:
        self.world = world
        self.make_api = make_api
        self.api: Any = None
        self.applied: Any = None

    async def begin(self, policy: pb.RetentionPolicy, segments: int = 1, crash: Any = None) -> None:
        """A controller and the stream."""
        await self.restart(crash)
        await self.api.setup(segments, retentionPolicy=policy)

    async def restart(self, crash: Any = None, seed: int = 1) -> None:
        """Another controller over the same stores."""
        controller = await self.world.start(crash, seed=seed, sole=True, retention_period_s=PERIOD_MS / 1000)
        self.api = self.make_api(controller)

    async def apply(self) -> Any:
        """A period later, apply the policy; the truncation."""
        self.world.clock.ms += PERIOD_MS
        self.applied = await self.api.controller.services.core.retention.apply(KEY)
        return self.applied.truncation

    async def append(self, count: int, identifier: int | None = None) -> None:
        """Bytes at the end of an active segment, the first one by default."""
        chosen = identifier if identifier is not None else (await self.api.current())[0]
        self.world.segments.append(name_of(chosen), b"x" * count)

    async def update(self, policy: pb.RetentionPolicy) -> None:
        """Another policy."""
        answer = await self.api.call("updateStream", self.api.config(retentionPolicy=policy))
        assert answer.status == pb.UpdateStreamStatus.SUCCESS

    async def subscribe(self, group: str = "group") -> None:
        """A reader group that publishes its cuts."""
        created = await self.api.call("createReaderGroup", self._group(group, await self.head(), 0))
        assert created.status == pb.CreateReaderGroupResponse.SUCCESS

    async def reset(self, cut: dict[int, int], generation: int = 0, group: str = "group") -> int:
        """Another beginning of the group, empty: the head; its generation from then on."""
        answer = await self.api.call("updateReaderGroup", self._group(group, cut, generation))
        assert answer.status == pb.UpdateReaderGroupResponse.SUCCESS
        return int(answer.generation)

    def _group(self, name: str, start: dict[int, int], generation: int) -> pb.ReaderGroupConfiguration:
        return pb.ReaderGroupConfiguration(
            scope="scope",
            readerGroupName=name,
            retentionType=2,
            readerGroupId=GROUP_ID,
            generation=generation,
            startingStreamCuts=[pb.StreamCut(streamInfo=self.api.info, cut=start)],
            endingStreamCuts=[pb.StreamCut(streamInfo=self.api.info)],
        )

    async def publish(self, cut: dict[int, int], group: str = "group", generation: int = 0) -> int:
        """What the group has read."""
        request = pb.SubscriberStreamCut(
            streamCut=pb.StreamCut(streamInfo=self.api.info, cut=cut),
            subscriber=f"scope/{group}",
            readerGroupId=GROUP_ID,
            generation=generation,
        )
        return int((await self.api.call("updateSubscriberStreamCut", request)).status)

    async def head(self) -> dict[int, int]:
        """The head as clients see it."""
        found = await self.api.call("getSegments", pb.GetSegmentsRequest(streamInfo=self.api.info, timestamp=0))
        return {item.segmentId.segmentId: item.offset for item in found.segments}

    def record(self) -> RetentionRecord:
        """The retention set; every cut that it lists is stored, and no other."""
        rows = self.world.metadata.dump_table(TABLE)
        stored = rows.get(KEY.retention(0))
        record = RetentionRecord() if stored is None else decode(RetentionRecord, stored, "test")
        cuts = {key for key in rows if key.startswith(KEY.retention(0) + b"/")}
        assert cuts == {KEY.retention_cut(0, each.number) for each in record.recorded}
        return record


def name_of(identifier: int) -> str:
    return qualified_segment_name(*KEY, identifier)


@pytest.fixture
def bench(world: Any, make_api: Any) -> Bench:
    return Bench(world, make_api)


async def test_by_size_the_minimum_stays(bench: Bench) -> None:
    await bench.begin(by_size(25))
    for _ in range(2):
        await bench.append(10)
        assert await bench.apply() is None
    for count in range(3, 8):
        await bench.append(10)
        made = await bench.apply()
        assert made is not None or count == 3
        assert await bench.head() == {0: max(0, 10 * count - 30)}, "the newest cut that leaves 25 bytes or more"
    assert (made.reason, made.before_bytes, made.freed_bytes) == (TruncationReason.MIN_LIMIT, 40, 10)
    assert bench.world.segments.segments[name_of(0)].start_offset == 40
    record = bench.record()
    assert record.last == made
    assert [each.size_bytes for each in record.recorded] == [40, 50, 60, 70]


async def test_by_time_what_is_old_enough_goes(bench: Bench) -> None:
    await bench.begin(by_time(3 * PERIOD_MS))
    for count in range(1, 8):
        await bench.append(10)
        await bench.apply()
        assert await bench.head() == {0: max(0, 10 * (count - 3))}
    for _ in range(4):
        await bench.apply()  # nothing is written: the last cut is at the tail, and gets old
    assert await bench.head() == {0: 70}
    assert len(bench.record().recorded) == 1


async def test_a_cut_is_recorded_once_a_period_and_only_after_new_data(bench: Bench) -> None:
    await bench.begin(by_size(25))
    await bench.apply()
    assert bench.record().recorded == ()
    await bench.append(10)
    await bench.apply()
    await bench.append(10)
    await bench.api.controller.services.core.retention.apply(KEY)  # in the same period
    assert [each.size_bytes for each in bench.record().recorded] == [10]
    await bench.apply()
    await bench.apply()
    assert [each.size_bytes for each in bench.record().recorded] == [10, 20]


async def test_consumption_decides_between_the_limits(bench: Bench) -> None:
    await bench.begin(by_size(20, 80))
    await bench.subscribe()
    for _ in range(5):
        await bench.append(10)
        await bench.apply()
    assert await bench.head() == {0: 30}, "without a cut of the subscriber the limits alone count"
    await bench.publish({0: 35})
    for _ in range(4):
        await bench.append(10)
        await bench.apply()
    assert await bench.head() == {0: 35}
    record = bench.record()
    assert record.last is not None
    assert (record.last.reason, record.last.freed_bytes) == (TruncationReason.CONSUMPTION, 5)
    for _ in range(3):
        await bench.append(10)
        await bench.apply()
    assert await bench.head() == {0: 40}, "80 bytes of 120 are kept, and the subscriber has lost 5"
    assert bench.record().last.reason == TruncationReason.MAX_LIMIT  # type: ignore[union-attr]
    await bench.publish({0: 120})
    await bench.apply()
    assert await bench.head() == {0: 100}, "the minimum stays, although all is read"


async def test_the_description_names_the_last_truncation_and_what_subscribers_have_not_read(bench: Bench) -> None:
    await bench.begin(by_size(20))

    async def described() -> pb_operator.Retention:
        request = pb_operator.DescribeStreamRequest(scope="scope", stream="stream", sizes=True)
        return (await bench.api.call("describeStream", request)).retention

    for group in ("behind", "ahead", "new"):
        await bench.subscribe(group)
    for _ in range(5):
        await bench.append(10)
    await bench.publish({0: 5}, "behind")
    await bench.publish({0: 45}, "ahead")
    found = await described()
    assert (found.truncatedMs, found.appliedMs) == (0, 0)
    published_ms = bench.world.clock.ms
    assert [(each.subscriber, each.hasPosition, each.unreadBytes) for each in found.holders] == [
        ("scope/behind", True, 45),
        ("scope/ahead", True, 5),
        ("scope/new", False, 0),
    ]
    await bench.apply()
    found = await described()
    assert (found.truncatedMs, found.reason, found.freedBytes) == (bench.world.clock.ms, "Consumption", 5)
    assert found.appliedMs == bench.world.clock.ms
    assert [each.publishedMs for each in found.holders] == [published_ms, published_ms, 0]
    assert [each.lostBytes for each in found.holders] == [0, 0, 0]
    cut = pb.StreamCut(streamInfo=bench.api.info, cut={0: 12})
    assert (await bench.api.call("truncateStream", cut)).status == pb.UpdateStreamStatus.SUCCESS
    holders = {each.subscriber: (each.unreadBytes, each.lostBytes) for each in (await described()).holders}
    assert holders == {"scope/behind": (38, 7), "scope/ahead": (5, 0), "scope/new": (0, 0)}


async def test_the_slowest_of_several_subscribers_counts_over_scales(bench: Bench) -> None:
    await bench.begin(by_size(0, 1000))
    left, right = await bench.api.scaled([0], [(0.0, 0.5), (0.5, 1.0)])
    for group in ("quick", "slow"):
        await bench.subscribe(group)
    await bench.append(10, left)
    await bench.append(20, right)
    (merged,) = await bench.api.scaled([left, right], [(0.0, 1.0)])
    await bench.append(10, merged)
    await bench.publish({merged: 10}, "quick")
    await bench.publish({left: 10, right: 5}, "slow")
    await bench.apply()
    assert await bench.head() == {left: 10, right: 5}
    await bench.publish({left: 10, right: 20}, "slow")
    made = await bench.apply()
    assert (made.reason, made.freed_bytes) == (TruncationReason.CONSUMPTION, 15)
    assert await bench.head() == {merged: 0}, "the end of what was merged is the beginning of what follows"
    assert bench.world.segments.names("scope/stream/") == [name_of(merged)]


async def test_a_deleted_group_holds_nothing(bench: Bench) -> None:
    await bench.begin(by_size(10))
    await bench.subscribe()
    await bench.append(50)
    await bench.publish({0: 5})
    await bench.apply()
    await bench.append(20)
    await bench.apply()
    assert await bench.head() == {0: 5}
    await bench.api.call(
        "deleteReaderGroup",
        pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=GROUP_ID, generation=0),
    )
    await bench.apply()
    assert await bench.head() == {0: 50}


@pytest.mark.parametrize("what", ["policy", "subscriber", "head", "stream"])
async def test_what_changes_during_a_decision_stops_it(
    bench: Bench, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.begin(by_size(10))
    await bench.append(20)
    await bench.apply()
    await bench.append(20)
    changes: dict[str, Callable[[], Any]] = {
        "policy": lambda: bench.update(by_size(1000)),
        "subscriber": lambda: subscribe_at_head(bench),
        "head": lambda: bench.api.call("truncateStream", pb.StreamCut(streamInfo=bench.api.info, cut={0: 3})),
        "stream": lambda: recreate(bench),
    }
    streams = bench.api.controller.services.core.streams
    check = streams.check_truncation

    async def changed(*args: Any) -> None:
        await check(*args)
        monkeypatch.setattr(streams, "check_truncation", check)
        await changes[what]()

    monkeypatch.setattr(streams, "check_truncation", changed)
    assert await bench.apply() is None
    assert bench.applied.trouble, "the policy is still to be applied"
    if what != "stream":
        assert await bench.head() == {0: 3 if what == "head" else 0}
        return
    (segment,) = await bench.head()
    assert segment != 0
    assert bench.world.segments.segments[name_of(segment)].start_offset == 0


async def test_a_group_that_is_made_again_during_a_decision_stops_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same id, as the operator makes it: its first cut may be an earlier one."""
    await bench.begin(by_size(0))
    await bench.subscribe()
    await bench.append(100)
    await bench.publish({0: 0})
    await bench.apply()
    await bench.publish({0: 90})
    streams = bench.api.controller.services.core.streams
    check = streams.check_truncation

    async def changed(*args: Any) -> None:
        await check(*args)
        monkeypatch.setattr(streams, "check_truncation", check)
        info = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=GROUP_ID, generation=0)
        await bench.api.call("deleteReaderGroup", info)
        await bench.subscribe()
        assert await bench.publish({0: 10}) == pb.UpdateSubscriberStatus.SUCCESS

    monkeypatch.setattr(streams, "check_truncation", changed)
    await bench.append(10)
    assert await bench.apply() is None
    assert bench.applied.trouble, "the policy is still to be applied"
    assert await bench.head() == {0: 0}
    await bench.apply()
    assert await bench.head() == {0: 10}


async def test_a_cut_in_a_segment_that_is_created_during_a_decision_has_the_policy_applied_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.begin(by_size(0, 1000))
    await bench.subscribe()
    await bench.append(20)
    cuts = bench.api.controller.services.core.cuts
    head = cuts.head

    async def changed(*args: Any) -> Any:
        found = await head(*args)
        monkeypatch.setattr(cuts, "head", head)
        (created,) = await bench.api.scaled([0], [(0.0, 1.0)])
        await bench.append(10, created)
        assert await bench.publish({created: 5}) == pb.UpdateSubscriberStatus.SUCCESS
        return found

    monkeypatch.setattr(cuts, "head", changed)
    assert await bench.apply() is None
    assert bench.applied.trouble
    made = await bench.apply()
    assert (made.reason, made.freed_bytes) == (TruncationReason.CONSUMPTION, 25)


async def subscribe_at_head(bench: Bench) -> None:
    await bench.subscribe()
    assert await bench.publish({0: 0}) == pb.UpdateSubscriberStatus.SUCCESS


async def recreate(bench: Bench) -> None:
    await bench.api.call("sealStream", bench.api.info)
    await bench.api.call("deleteStream", bench.api.info)
    await bench.api.call("createStream", bench.api.config(retentionPolicy=by_size(10)))
    await bench.append(40)


async def test_a_subscriber_beyond_the_tail_has_read_up_to_the_tail(bench: Bench) -> None:
    await bench.begin(by_size(20, 1000), segments=2)
    left, right = segment_id(0, 0), segment_id(1, 0)
    await bench.subscribe()
    await bench.append(100, left)
    await bench.append(10, right)
    assert await bench.publish({left: 5, right: 11}) == pb.UpdateSubscriberStatus.SUCCESS
    made = await bench.apply()
    assert made.reason == TruncationReason.CONSUMPTION
    assert await bench.head() == {left: 5, right: 10}
    await bench.append(10, right)
    await bench.apply()
    assert await bench.head() == {left: 5, right: 11}


async def test_a_subscriber_far_beyond_one_tail_holds_no_more_than_the_maximum_back(bench: Bench) -> None:
    await bench.begin(by_size(200, 1000), segments=2)
    left, right = segment_id(0, 0), segment_id(1, 0)
    await bench.subscribe()
    await bench.append(10, right)
    assert await bench.publish({left: 10**9, right: 5}) == pb.UpdateSubscriberStatus.SUCCESS
    reasons = []
    for count in range(1, 16):
        await bench.append(100, left)
        await bench.append(100 if count > 1 else 90, right)
        made = await bench.apply()
        head = await bench.head()
        kept_bytes = 200 * count - sum(head.values())
        assert kept_bytes <= 1000
        assert kept_bytes >= 200 or made is None
        assert head[right] <= 5 or count > 10, "only the maximum deletes what is unread"
        reasons.append(None if made is None else made.reason)
    assert reasons[:10] == [None, None, *([TruncationReason.CONSUMPTION] * 8)]
    assert reasons[10] == TruncationReason.MAX_LIMIT


async def test_a_subscriber_beyond_the_end_of_a_sealed_segment_has_read_all_of_it(bench: Bench) -> None:
    await bench.begin(by_size(0, 1000), segments=2)
    left, right = segment_id(0, 0), segment_id(1, 0)
    await bench.subscribe()
    await bench.append(50, left)
    await bench.append(50, right)
    assert await bench.publish({left: 10**9, right: 5}) == pb.UpdateSubscriberStatus.SUCCESS
    (following,) = set(await bench.api.scaled([left], [(0.0, 0.5)])) - {right}
    await bench.append(20, following)
    made = await bench.apply()
    assert (made.reason, made.freed_bytes) == (TruncationReason.CONSUMPTION, 55)
    assert await bench.head() == {following: 0, right: 5}


async def test_streams_that_are_sealed_or_have_no_policy_are_left_alone(bench: Bench) -> None:
    await bench.begin(by_size(0))
    await bench.append(20)
    await bench.update(pb.RetentionPolicy())
    assert await bench.apply() is None
    await bench.update(by_size(0))
    await bench.api.call("sealStream", bench.api.info)
    assert await bench.apply() is None
    assert await bench.head() == {0: 0}
    assert bench.record() == RetentionRecord()


async def test_the_retention_set_is_bounded_and_old_cuts_become_rarer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETENTION_CUTS_MAX", 16)
    await bench.begin(by_size(10_000))
    for _ in range(200):
        await bench.append(1)
        await bench.apply()
        assert len(bench.record().recorded) <= 16
    sizes = [each.size_bytes for each in bench.record().recorded]
    gaps = [after - before for before, after in itertools.pairwise(sizes)]
    assert sizes[-1] == 200
    assert sorted(gaps, reverse=True) == gaps
    assert len(gaps) >= 7
    assert gaps[-1] == 1
    assert gaps[0] >= 8


async def test_a_cut_that_is_missing_is_left_out(bench: Bench) -> None:
    await bench.begin(by_size(1000))
    for _ in range(4):
        await bench.append(10)
        await bench.apply()
    await bench.world.metadata.remove(TABLE, [(KEY.retention_cut(0, 2), -(2**63))])
    await bench.restart(seed=2)  # the other one knows the cut
    await bench.update(by_size(10))
    await bench.apply()
    assert await bench.head() == {0: 20}, "the cut at 30 is missing, so the one before it is taken"
    bench.record()


async def test_deletion_leaves_no_record(bench: Bench) -> None:
    await bench.begin(by_size(10))
    for _ in range(4):
        await bench.append(10)
        await bench.apply()
    assert bench.record().recorded
    await bench.api.call("sealStream", bench.api.info)
    await bench.api.call("deleteStream", bench.api.info)
    assert [key for key in bench.world.metadata.dump_table(TABLE) if key.startswith(b"scope/stream/")] == []


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_crash_at_any_call_leaves_nothing_behind(
    make_world: Any, make_api: Any, make_crash: Any, wait_until: Any, *, after_effect: bool
) -> None:
    crashes = 0
    for at_call in range(1, 200):
        bench = Bench(make_world(), make_api)
        await bench.begin(by_size(15, 40))
        await bench.subscribe()
        for _ in range(3):
            await bench.append(10)
            await bench.apply()
        await bench.publish({0: 18})
        await bench.append(10)
        crash = make_crash(after_effect=after_effect)
        await bench.restart(crash, seed=2)
        crash.calls, crash.at_call = 0, at_call
        applying = asyncio.create_task(bench.apply())

        async def has_ended(applying: asyncio.Task[Any] = applying, crash: Any = crash) -> bool:
            return applying.done() or crash.crashed

        await wait_until(has_ended)
        crashed = crash.crashed
        applying.cancel()
        await asyncio.gather(applying, return_exceptions=crashed)
        await bench.restart(seed=3)

        async def is_at_rest(bench: Bench = bench) -> bool:
            return (await bench.api.controller.services.core.streams.load(KEY)).intent is None

        await wait_until(is_at_rest)
        await bench.append(10)
        await bench.apply()
        await bench.append(10)
        await bench.apply()
        assert await bench.head() == {0: 20}, "the subscriber lags behind 40 bytes"
        assert bench.record().last.reason == TruncationReason.MAX_LIMIT  # type: ignore[union-attr]
        await bench.world.close()
        if not crashed:
            break
        crashes += 1
    assert crashes > 15


async def test_promises_hold_on_random_streams(make_world: Any, make_api: Any, test_seed: int) -> None:
    wanted = {"MinLimit", "Consumption", "MaxLimit"}
    reasons: set[str] = set()
    for number in range(WALKS_MAX):
        if number >= WALKS_MIN and reasons == wanted:
            break
        bench = Bench(make_world(), make_api)
        walk = RandomWalk(bench, random.Random(f"{test_seed}/{number}"))
        await walk.run(60)
        reasons |= walk.reasons
        await bench.world.close()
    assert reasons == wanted


class RandomWalk:
    """A stream of one key that is written, read, scaled and truncated by chance; its bytes are numbered."""

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self.bench = bench
        self.chance = chance
        self.minimum, self.maximum = 30, 60
        self.starts: dict[int, int] = {}
        self.written = 0
        self.published = 0
        self.reasons: set[str] = set()

    async def run(self, steps: int) -> None:
        """Begin, then take so many steps."""
        bench, chance = self.bench, self.chance
        await bench.begin(by_size(self.minimum, self.maximum))
        await bench.subscribe()
        self.starts = {0: 0}
        for _ in range(steps):
            action = chance.random()
            if action < 0.4:
                count = chance.randint(1, 15)
                await bench.append(count)
                self.written += count
            elif action < 0.5:
                (old,) = await bench.api.current()
                (new,) = await bench.api.scaled([old], [(0.0, 1.0)])
                self.starts[new] = self.written
            elif action < 0.65:
                await self.publish()
            else:
                await self.check(await bench.apply())

    async def publish(self) -> None:
        """What the subscriber has read: any byte beyond the last one and beyond the head."""
        begin = max(self.published, await self.head_byte())
        self.published = self.chance.randint(begin, begin + max(0, self.written - begin) // 2)
        segment = max(
            (each for each, start in self.starts.items() if start <= self.published), key=lambda each: each >> 32
        )
        assert await self.bench.publish({segment: self.published - self.starts[segment]}) == 0

    async def head_byte(self) -> int:
        """The number of the first byte that is kept."""
        ((segment, offset),) = (await self.bench.head()).items()
        return self.starts[segment] + offset

    async def check(self, made: Any) -> None:
        """The least stays; what was not read goes only beyond the most."""
        if made is None:
            return
        self.reasons.add(str(made.reason))
        head = await self.head_byte()
        assert made.before_bytes == head
        assert self.written - head >= self.minimum
        if self.published and head > self.published:
            assert made.reason == TruncationReason.MAX_LIMIT
            assert self.written - self.published >= self.maximum


async def test_a_stream_that_receives_nothing_shows_when_its_policy_was_applied(bench: Bench) -> None:
    await bench.begin(by_size(20))
    assert bench.api is not None
    for _ in range(3):
        await bench.apply()
        assert bench.record().applied_ms == bench.world.clock.ms
    assert not bench.record().recorded


@pytest.mark.parametrize("count", [0, 10], ids=["without new data", "with new data, of which it records a cut"])
async def test_a_round_that_fails_does_not_count_as_applied(
    bench: Bench, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.begin(by_size(20, 1000), segments=2)
    left, right = segment_id(0, 0), segment_id(1, 0)
    await bench.subscribe()
    await bench.append(10, right)
    await bench.apply()
    applied_ms = bench.record().applied_ms
    assert applied_ms == bench.world.clock.ms
    await bench.append(100, left)
    await bench.publish({left: 5, right: 10})

    async def refused(*_: Any) -> None:
        raise BadRequestError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(bench.api.controller.services.core.streams, "check_truncation", refused)
        for _ in range(2):
            with pytest.raises(BadRequestError, match="planted"):
                await bench.apply()
            assert bench.record().applied_ms == applied_ms
            await bench.append(count, left)
    await bench.apply()
    assert bench.record().applied_ms == bench.world.clock.ms


async def test_a_first_position_that_is_published_at_the_last_moment_is_kept(bench: Bench) -> None:
    """Between the last look at the subscribers and the truncation: the truncation looks again."""
    await bench.begin(by_size(5))
    await bench.subscribe()
    for _ in range(2):
        await bench.append(10)
        await bench.apply()
    await bench.append(10)
    deciding = bench.api
    await bench.restart(seed=2)
    other, bench.api = bench.api, deciding
    real, truncations = bench.world.metadata.put, 0

    async def put(table: str, entries: Any) -> Any:
        nonlocal truncations
        if table == TABLE and any(entry.key == KEY.root and b"MinLimit" in entry.value for entry in entries):
            truncations += 1
            bench.world.metadata.put = real
            bench.api = other
            assert await bench.publish({0: 0}) == pb.UpdateSubscriberStatus.SUCCESS
            bench.api = deciding
        return await real(table, entries)

    bench.world.metadata.put = put
    assert await bench.apply() is None
    assert truncations == 1
    assert await bench.head() == {0: 10}


async def test_a_burst_after_a_gap_waits_for_its_reader_until_the_maximum_age(bench: Bench) -> None:
    async def rounds(count: int) -> None:
        for _ in range(count):
            await bench.apply()

    await bench.begin(by_time(10 * PERIOD_MS, 70 * PERIOD_MS))
    await bench.subscribe()
    await bench.append(10)
    await bench.apply()
    await bench.publish({0: 5})
    await rounds(60)
    await bench.append(1000)
    await bench.apply()
    await rounds(20)
    await bench.apply()
    assert await bench.head() == {0: 10}, "what is beyond the maximum goes, and the burst stays"
    await rounds(50)
    await bench.apply()
    assert await bench.head() == {0: 1010}
