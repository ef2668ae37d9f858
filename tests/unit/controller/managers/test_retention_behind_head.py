"""Retention where subscribers or recorded cuts lie behind the head in some segments: what is deleted is not kept."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tailrace.common.names import segment_id
from tailrace.controller.metadata.model import TruncationReason
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import Subscriber, decode, encode
from tailrace.rpc import controller_pb2 as pb

from .test_retention_manager import KEY, Bench, by_size


@pytest.fixture
def bench(world: Any, make_api: Any) -> Bench:
    return Bench(world, make_api)


async def truncate(bench: Bench, cut: dict[int, int]) -> None:
    """Delete what lies before a cut, as a user does."""
    answer = await bench.api.call("truncateStream", pb.StreamCut(streamInfo=bench.api.info, cut=cut))
    assert answer.status == pb.UpdateStreamStatus.SUCCESS


def kept_bytes(bench: Bench) -> int:
    """What the segments of the stream hold."""
    segments = bench.world.segments.segments
    return sum(each.length - each.start_offset for name, each in segments.items() if name.startswith("scope/stream/"))


@pytest.mark.parametrize("start", [{}, {0: 20}], ids=["the head", "a cut"])
async def test_a_group_that_was_reset_holds_what_it_reads_again(bench: Bench, start: dict[int, int]) -> None:
    await bench.begin(by_size(10))
    await bench.subscribe()
    await bench.append(100)
    assert await bench.publish({0: 90}) == pb.UpdateSubscriberStatus.SUCCESS
    generation = await bench.reset(start)
    await bench.append(10)
    await bench.apply()
    await bench.append(10)
    await bench.apply()
    assert kept_bytes(bench) == 120 - start.get(0, 0)
    assert await bench.publish({0: 25}, generation=generation) == pb.UpdateSubscriberStatus.SUCCESS
    await bench.apply()
    assert kept_bytes(bench) == 95


async def test_a_group_that_was_reset_to_a_later_cut_holds_what_it_published_until_it_publishes(bench: Bench) -> None:
    await bench.begin(by_size(10))
    await bench.subscribe()
    await bench.append(100)
    await bench.publish({0: 30})
    generation = await bench.reset({0: 60})
    await bench.apply()
    assert kept_bytes(bench) == 70
    assert await bench.publish({0: 60}, generation=generation) == pb.UpdateSubscriberStatus.SUCCESS
    await bench.apply()
    assert kept_bytes(bench) == 40


async def test_a_reset_of_a_group_whose_cut_the_stream_does_not_have_holds_the_head(bench: Bench) -> None:
    """As after a restore: the stream lost the epoch that the cut names."""
    await bench.begin(by_size(10))
    await bench.subscribe()
    await bench.append(100)
    await bench.publish({0: 30})
    item = KEY.subscriber(0, "scope/group")
    (stored,) = await bench.world.metadata.get(KEY.table, [item])
    lost = msgspec.structs.replace(decode(Subscriber, stored.value, ""), cut={segment_id(3, 2): 5})
    await bench.world.metadata.put(KEY.table, [Put(item, encode(lost), UNCONDITIONAL)])
    await bench.reset({0: 50})
    await bench.apply()
    assert kept_bytes(bench) == 100


async def test_what_is_deleted_beyond_a_subscriber_does_not_count_as_kept(bench: Bench) -> None:
    await bench.begin(by_size(100), segments=2)
    await bench.subscribe()
    left, right = await bench.api.current()
    await bench.append(500, left)
    await bench.append(500, right)
    await bench.apply()
    await bench.publish({left: 0, right: 490})
    await truncate(bench, {left: 490, right: 0})
    assert await bench.apply() is None
    assert kept_bytes(bench) == 510, "at the subscriber's cut 20 bytes would be left"
    await bench.append(100, right)
    made = await bench.apply()
    assert made is not None
    assert made.reason is TruncationReason.CONSUMPTION
    assert kept_bytes(bench) == 120


@pytest.mark.parametrize("maximum", [None, 100])
async def test_what_is_deleted_beyond_a_recorded_cut_does_not_count_as_kept(bench: Bench, maximum: int | None) -> None:
    await bench.begin(by_size(80) if maximum is None else by_size(80, maximum), segments=2)
    left, right = await bench.api.current()
    await bench.append(450, left)
    await bench.append(450, right)
    await bench.apply()
    await bench.append(50, left)
    await truncate(bench, {left: 500, right: 0})
    if maximum is not None:
        await bench.subscribe()
        await bench.publish({left: 500, right: 0})
    await bench.append(50, right)
    assert await bench.apply() is None
    assert kept_bytes(bench) == 500, "at the recorded cut 50 bytes would be left"
    await bench.append(30, right)
    made = await bench.apply()
    assert made.reason is (TruncationReason.MIN_LIMIT if maximum is None else TruncationReason.MAX_LIMIT)
    assert kept_bytes(bench) == 80


async def test_promises_hold_where_positions_lie_behind_the_head(
    make_world: Any, make_api: Any, test_seed: int
) -> None:
    reasons: set[TruncationReason] = set()
    for number in range(12):
        bench = Bench(make_world(), make_api)
        walk = Walk(bench, random.Random(f"{test_seed}/{number}"))
        await walk.run(80)
        reasons |= walk.reasons
        await bench.world.close()
    assert reasons == {TruncationReason.MIN_LIMIT, TruncationReason.CONSUMPTION, TruncationReason.MAX_LIMIT}


class Walk:
    """A stream of three segments, which two groups read at a pace of their own, and which a user truncates."""

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self.bench = bench
        self.chance = chance
        self.minimum, self.maximum = 60, 120
        self.lengths: dict[int, int] = {}
        self.read: dict[str, dict[int, int]] = {}
        self.reasons: set[TruncationReason] = set()

    async def run(self, steps: int) -> None:
        """Begin, then take so many steps."""
        bench, chance = self.bench, self.chance
        await bench.begin(by_size(self.minimum, self.maximum), segments=3)
        self.lengths = dict.fromkeys(await bench.api.current(), 0)
        for group in ("one", "other"):
            await bench.subscribe(group)
        for step in range(steps):
            action = chance.random()
            if action < 0.3:
                await self.append()
            elif action < 0.7 and step >= 20:  # before, the limits alone count
                await self.publish(chance.choice(["one", "other"]))
            elif action < 0.73 and step >= 20:
                await truncate(bench, self.further(await bench.head(), chance.choice(list(self.lengths))))
            else:
                await self.apply()

    async def append(self) -> None:
        """Bytes at the end of a segment."""
        segment, count = self.chance.choice(list(self.lengths)), self.chance.randint(1, 25)
        await self.bench.append(count, segment)
        self.lengths[segment] += count

    async def publish(self, group: str) -> None:
        """A group has read some bytes of one segment, perhaps some that others still have before them."""
        known = self.read.get(group, dict.fromkeys(self.lengths, 0))
        self.read[group] = self.further(known, self.chance.choice(list(self.lengths)))
        assert await self.bench.publish(self.read[group], group) == pb.UpdateSubscriberStatus.SUCCESS

    def further(self, cut: dict[int, int], segment: int) -> dict[int, int]:
        """A cut that lies further in one segment."""
        return {**cut, segment: self.chance.randint(cut[segment], self.lengths[segment])}

    async def apply(self) -> None:
        """The least stays; what a group did not read goes only where more than the most is kept for it."""
        before = await self.bench.head()
        made = await self.bench.apply()
        if made is None:
            return
        self.reasons.add(made.reason)
        head, written = await self.bench.head(), sum(self.lengths.values())
        assert made.before_bytes == sum(head.values())
        assert kept_bytes(self.bench) == written - made.before_bytes >= self.minimum
        if not self.read:
            return
        held = {each: max(before[each], min(cut[each] for cut in self.read.values())) for each in self.lengths}
        if any(head[each] > held[each] for each in self.lengths):
            assert made.reason is TruncationReason.MAX_LIMIT
            unread = written - sum(held.values())
            if unread >= self.minimum:
                assert unread >= self.maximum
            else:  # the groups' positions overlap the minimum: what the stream keeps counts (ADR 0049)
                assert written - sum(before.values()) > self.maximum
