"""Which segments are split and merged, rule by rule, and over virtual days (docs/controller.md#automatic-scaling)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from tailrace.common import limits
from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange, covers_exactly, equal_ranges
from tailrace.common.stream_policies import ScalingPolicy
from tailrace.controller.metadata.epochs import scale_keeps_ranges
from tailrace.controller.metadata.model import StreamSegment
from tailrace.controller.scaling.decision import Measured, Plan, decide
from tailrace.controller.scaling.times import ScalingTimes
from tailrace.segmentstore.metadata.segment_rate import SegmentRate

TIMES = ScalingTimes()
TARGET = 100
OLD_S = 10_000.0
POLICY = ScalingPolicy.by_events(TARGET, 4, 1)


def segments(count: int) -> list[StreamSegment]:
    return [StreamSegment(number, *each) for number, each in enumerate(equal_ranges(count))]


def of(two: float, five: float, ten: float, twenty: float, age_s: float = OLD_S) -> Measured:
    return Measured(age_s, (two, five, ten, twenty))


BUSY, IDLE = of(110, 110, 110, 110), of(0, 0, 0, 0)


def plan_of(measured: Sequence[Measured | None], policy: ScalingPolicy = POLICY) -> Plan | None:
    known = {number: each for number, each in enumerate(measured) if each is not None}
    return decide(policy, segments(len(measured)), known, TIMES)


@pytest.mark.parametrize(
    ("measured", "parts"),
    [
        (of(500, 200, 125, 0), 0),
        (of(501, 0, 0, 0), 4),  # 5 times, at most by the factor
        (of(0, 201, 0, 0), 2),
        (of(0, 0, 126, 0), 2),
        (of(0, 350, 0, 0), 3),
        (of(1e9, 1e9, 1e9, 1e9), 4),
        (of(900, 900, 900, 900, 600), 0),  # not measured for ten minutes yet
        (of(900, 900, 900, 900, 600.1), 4),
    ],
)
def test_a_hot_segment_is_split(measured: Measured, parts: int) -> None:
    plan = plan_of([measured])
    if not parts:
        assert plan is None
        return
    assert plan is not None
    assert plan.sealed == (0,)
    assert list(plan.ranges) == equal_ranges(parts)
    assert (plan.splits, plan.merges) == (1, 0)


def test_a_factor_of_one_splits_into_two() -> None:
    plan = plan_of([of(900, 0, 0, 0)], ScalingPolicy.by_events(TARGET, 1, 1))
    assert plan is not None
    assert list(plan.ranges) == equal_ranges(2)


@pytest.mark.parametrize(
    ("cold", "other"),
    [
        (of(99, 99, 99, 99), of(0, 0, 0, 0)),
        (of(49, 49, 49, 49), of(50, 50, 50, 49)),
        (of(5, 5, 5, 60), of(39, 0, 0, 0)),
    ],
)
def test_cold_neighbours_are_merged(cold: Measured, other: Measured) -> None:
    plan = plan_of([cold, other])
    assert plan is not None
    assert plan.sealed == (0, 1)
    assert plan.ranges == (KeyRange(0.0, 1.0),)
    assert (plan.splits, plan.merges) == (0, 1)


@pytest.mark.parametrize(
    "other",
    [
        of(100, 0, 0, 0),
        of(0, 100, 0, 0),
        of(0, 0, 100, 0),
        of(0, 0, 0, 100),
        of(0, 0, 0, 0, 1200),  # not measured for twenty minutes yet
        None,
    ],
)
def test_a_neighbour_that_is_not_cold_is_left_alone(other: Measured | None) -> None:
    assert plan_of([IDLE, other]) is None
    assert plan_of([IDLE, other, IDLE]) is None


def test_neighbours_that_would_be_above_the_target_together_are_left_alone() -> None:
    warm = of(49, 49, 49, 49)
    assert plan_of([of(51, 51, 51, 49), warm]) is None
    plan = plan_of([warm, warm, warm])
    assert plan is not None
    assert plan.sealed == (0, 1)


def test_three_at_most_become_one_and_the_minimum_stays() -> None:
    def left(count: int, minimum: int) -> list[int]:
        policy = ScalingPolicy.by_events(TARGET, 2, minimum)
        plan = plan_of([IDLE] * count, policy)
        return [] if plan is None else list(plan.sealed)

    assert left(7, 1) == [0, 1, 2, 3, 4, 5]  # to two segments; the seventh has no cold neighbour left
    assert left(3, 2) == [0, 1]
    assert left(4, 2) == [0, 1, 2]
    assert left(5, 2) == [0, 1, 2, 3, 4]
    assert left(3, 3) == []
    assert left(2, 5) == []


def test_splits_and_merges_are_one_scale() -> None:
    plan = plan_of([of(900, 0, 0, 0), IDLE, IDLE, BUSY])
    assert plan is not None
    assert sorted(plan.sealed) == [0, 1, 2]
    assert (plan.splits, plan.merges) == (1, 1)
    assert len(plan.ranges) == 4 + 1


def test_a_stream_has_no_more_segments_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCALING_SEGMENTS_MAX", 5)
    hot = of(900, 0, 0, 0)
    plan = plan_of([hot, hot, hot])
    assert plan is not None
    assert len(plan.ranges) == 3
    assert plan.splits == 1
    assert plan_of([hot] * 5) is None


def test_a_range_that_is_too_narrow_is_not_split() -> None:
    narrow = StreamSegment(0, 0.0, 2.0**-41)
    assert decide(POLICY, [narrow, StreamSegment(1, 2.0**-41, 1.0)], {0: of(900, 0, 0, 0)}, TIMES) is None


def test_any_plan_can_be_carried_out(test_seed: int) -> None:
    chance = random.Random(test_seed)
    seen: Counter[str] = Counter()
    for _ in range(3000):
        count, minimum = chance.randint(1, 12), chance.randint(1, 6)
        policy = ScalingPolicy.by_events(TARGET, chance.randint(1, 5), minimum)
        active = segments(count)
        measured = {
            number: Measured(chance.choice([700, OLD_S]), [chance.choice([0, 10, 40, 60, 110, 190, 700])] * 4)
            for number in range(count)
            if chance.random() < 0.9
        }
        plan = decide(policy, active, measured, TIMES)
        if plan is None:
            seen["nothing"] += 1
            continue
        sealed = [each for each in active if each.identifier in plan.sealed]
        assert len(sealed) == len(plan.sealed) == len(set(plan.sealed))
        assert scale_keeps_ranges(sealed, plan.ranges)
        kept = [each.key_range for each in active if each.identifier not in plan.sealed]
        assert covers_exactly([*kept, *plan.ranges])
        if plan.merges:
            assert len(kept) + len(plan.ranges) >= min(minimum, count)
        seen[f"{min(plan.splits, 1)} {min(plan.merges, 1)}"] += 1
    assert min(seen[key] for key in ("nothing", "1 0", "0 1", "1 1")) > 30, seen


# ---- virtual time: a stream with a load, its rates measured as segment stores measure them


@dataclass
class Stream:
    """A stream that scales by itself while `load(seconds)` events a second are spread evenly over the keys."""

    policy: ScalingPolicy
    load: Callable[[float], float]
    times: ScalingTimes = TIMES
    now_s: float = 0.0
    epoch: int = 0
    active: list[StreamSegment] = field(default_factory=list)
    rates: dict[int, SegmentRate] = field(default_factory=dict)
    counts: dict[int, float] = field(default_factory=dict)
    scales: list[tuple[float, Plan]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._add(equal_ranges(self.policy.min_segments))

    def _add(self, ranges: Sequence[KeyRange]) -> None:
        windows_s = [each / 1000 for each in self.times.windows_ms]
        for number, each in enumerate(ranges):
            made = StreamSegment(segment_id(100 * self.epoch + number, self.epoch), *each)
            self.active.append(made)
            self.counts[made.identifier] = 0.0
            self.rates[made.identifier] = SegmentRate("key", windows_s, 0, self.now_s)

    def run(self, until_s: float) -> None:
        period_s = self.times.period_s
        while self.now_s < until_s:
            events = self.load(self.now_s) * period_s
            self.now_s += period_s
            for each in self.active:
                self.counts[each.identifier] += events * each.key_range.width
                self.rates[each.identifier].sample(round(self.counts[each.identifier]), self.now_s)
            measured = {
                each.identifier: Measured(
                    self.now_s - self.rates[each.identifier].begun_s, self.rates[each.identifier].rates()
                )
                for each in self.active
            }
            plan = decide(self.policy, self.active, measured, self.times)
            if plan is not None:
                self.scales.append((self.now_s, plan))
                self.epoch += 1
                self.active = [each for each in self.active if each.identifier not in plan.sealed]
                self._add(plan.ranges)


DAY_S = 86_400.0


def loads(test_seed: int) -> Iterator[tuple[str, Callable[[float], float]]]:
    chance = random.Random(test_seed)
    noise = [chance.uniform(0.8, 1.2) for _ in range(int(DAY_S) + 1)]
    yield "noise", lambda at_s: noise[int(at_s)]
    for hours in (0.1, 1, 6, 24):
        yield f"wave of {hours} h", lambda at_s, hours=hours: 1 + 0.2 * math.sin(2 * math.pi * at_s / (3600 * hours))  # type: ignore[misc]
    yield "steps of 40 min", lambda at_s: 1.2 if int(at_s / 2400) % 2 else 0.8


def test_a_load_within_20_percent_of_the_target_scales_nothing_in_a_day(test_seed: int) -> None:
    for name, load in loads(test_seed):
        stream = Stream(ScalingPolicy.by_events(TARGET, 2, 3), lambda at_s, load=load: 3 * TARGET * load(at_s))  # type: ignore[misc]
        stream.run(DAY_S)
        assert stream.scales == [], name


def test_a_load_of_8_times_the_target_splits_at_the_first_moment_that_the_rules_allow() -> None:
    stream = Stream(POLICY, lambda at_s: 8 * TARGET)
    stream.run(7200)
    first_s, first = stream.scales[0]
    assert 600 < first_s <= 600 + TIMES.period_s
    assert len(first.ranges) == 4
    assert stream.scales[1][0] - first_s > 600
    assert len(stream.active) == 8
    assert len(stream.scales) == 2, "and that is enough"


@pytest.mark.parametrize("factor", [1.0, 0.01])
def test_a_load_that_falls_to_a_tenth_merges_back_to_the_minimum(factor: float) -> None:
    times = ScalingTimes(factor)
    falls_s = 7200 * factor
    stream = Stream(POLICY, lambda at_s: 8 * TARGET if at_s < falls_s else 0.8 * TARGET, times)
    stream.run(falls_s)
    assert len(stream.active) == 8
    stream.run(falls_s + 3 * 3600 * factor)
    assert len(stream.active) == 1
    splits = [at_s for at_s, plan in stream.scales if plan.splits]
    merges = [at_s for at_s, plan in stream.scales if plan.merges]
    assert max(splits) < falls_s < min(merges)
    assert len(merges) <= 3


def test_no_segment_lives_shorter_than_the_cool_down(test_seed: int) -> None:
    chance = random.Random(test_seed)
    level = [chance.choice([0.0, 0.5, 2.0, 8.0, 30.0]) for _ in range(200)]
    stream = Stream(POLICY, lambda at_s: TARGET * level[int(at_s / 900) % 200])
    stream.run(2 * DAY_S)
    lives = 0
    for at_s, plan in stream.scales:
        for each in plan.sealed:
            lives += 1
            assert at_s - stream.rates[each].begun_s > 600
    assert lives > 20
