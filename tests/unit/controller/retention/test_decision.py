"""Where retention truncates, against a search over sets of bytes, and by the cases of "Pravega Stream Retention"."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from harness.streamhistory import StreamHistory
from tailrace.common.ranges import KeyRange
from tailrace.common.stream_policies import UNLIMITED, RetentionPolicy, RetentionType
from tailrace.controller.metadata.model import Epoch, RecordedCut, StreamSegment, TruncationReason
from tailrace.controller.retention.decision import (
    Place,
    Reading,
    Truncation,
    count_before,
    count_until,
    decide,
)
from tailrace.controller.retention.forward import forward
from tailrace.controller.retention.lower_bound import earliest, latest

CASES = {"ci": 1_000, "full": 100_000}
"""Random streams; each has up to 20 epochs."""
Cut = Mapping[int, int]
Positions = frozenset[tuple[int, int, int]]

pytestmark = pytest.mark.timeout(1800)  # of the long form


@dataclass(frozen=True)
class Made:
    """A member of a retention set, with its cut."""

    recorded_ms: int
    size_bytes: int
    cut: Cut


T = TypeVar("T")


def unmoved(each: Made) -> Place:
    """The place of a cut that lies nowhere behind the head."""
    return Place(each.size_bytes, each.cut)


def answer(reading: Reading[T], made: Sequence[Made], place: Callable[[Made], Place] = unmoved) -> tuple[T, int]:
    """Give a decision the places that it asks for; returns its result, and how many these were."""
    asked = 0
    try:
        wanted = next(reading)
        while True:
            asked += 1
            wanted = reading.send(place(made[wanted.number]))
    except StopIteration as end:
        return end.value, asked


def recorded(made: Sequence[Made]) -> list[RecordedCut]:
    return [RecordedCut(number, each.recorded_ms, each.size_bytes) for number, each in enumerate(made)]


def decided(
    policy: RetentionPolicy,
    now_ms: int,
    made: Sequence[Made],
    subscribers: Place | None,
    ranges: Mapping[int, KeyRange],
    place: Callable[[Made], Place] = unmoved,
    head_bytes: int = 0,
) -> Truncation | None:
    return answer(decide(policy, now_ms, recorded(made), subscribers, ranges, head_bytes), made, place)[0]


@dataclass
class Case:
    """A random stream with its retention set, its subscribers' cuts, and its head."""

    history: StreamHistory
    recorded: list[Made] = field(default_factory=list)
    now_ms: int = 0
    head: Cut = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = self.history.chance
        for _ in range(chance.randint(3, 60)):
            self.now_ms += chance.randint(0, 5)
            action = chance.random()
            if action < 0.2 and len(self.history.epochs) < 20:
                self.history.scale()
            elif action < 0.5:
                size = len(self.history.bytes_before(self.history.tail()))
                self.recorded.append(Made(self.now_ms, size, self.history.tail()))
            else:
                self.history.append()
        self.recorded = [replace(each, cut=self.forward(each.cut)) for each in self.recorded]
        self.head = self.forward(self.history.some_cut(chance.choice([0, chance.randint(0, 40)])))

    def forward(self, cut: Cut) -> dict[int, int]:
        """The cut as the product compares it."""
        history = self.history
        return forward(cut, epochs_of(history)[min(each >> 32 for each in cut) :], history.lengths)

    def place(self, cut: Cut) -> Place:
        """Where a truncation at the cut leaves the head, which the cut may lie behind in some segments."""
        reached = self.forward(latest([self.forward(cut), self.head], self.history.ranges()))
        return Place(len(self.history.bytes_before(reached)), reached)

    def place_of(self, each: Made) -> Place:
        """The place of a recorded cut."""
        return self.place(each.cut)

    def before(self, cut: Cut) -> Positions:
        """What is before the head after a truncation at the cut."""
        return self.history.positions(self.place(cut).cut)

    def subscribers(self) -> list[dict[int, int]]:
        """Cuts of up to four subscribers."""
        chance = self.history.chance
        return [self.history.some_cut(chance.randint(0, 80)) for _ in range(chance.randint(0, 4))]

    def stuck_subscriber(self) -> dict[int, int]:
        """A cut that stays near the beginning of one segment, and goes on in all others."""
        history = self.history
        cut = history.some_cut(0)
        stuck = history.chance.choice(list(cut))
        for _ in range(80):
            others = [each for each in cut if each != stuck]
            if not others:
                break
            identifier = history.chance.choice(others)
            if cut[identifier] < history.lengths[identifier]:
                cut[identifier] = history.lengths[identifier]
            else:
                history.follow(cut, identifier)
        return cut

    def policy(self) -> RetentionPolicy:
        """By size or by time, with figures around what there is."""
        chance = self.history.chance
        kind = chance.choice(list(RetentionType))
        most = self.now_ms if kind is RetentionType.TIME else len(self.history.bytes_before(self.history.tail()))
        minimum = chance.randint(0, most + 1)
        maximum = minimum + chance.randint(0, chance.choice([most, 5]))  # often so near that positions lie around both
        return RetentionPolicy(kind, minimum, *([maximum] if chance.random() < 0.7 else []))


def cases(count: int, seed: int) -> Iterator[Case]:
    for number in range(count):
        yield Case(StreamHistory.begun(random.Random(f"{seed}/{number}")))


@dataclass
class Search:
    """The rules, by sets: no order of cuts, no sizes that were given."""

    case: Case
    policy: RetentionPolicy
    subscribers: Cut | None

    @property
    def maximum(self) -> int:
        """The policy's maximum; 0 is sent by clients that do not know the field, and means none."""
        return self.policy.maximum or UNLIMITED

    def kept(self, cut: Cut, recorded_ms: int | None = None) -> int:
        """What truncating there leaves: bytes, or the age of what is oldest then."""
        if self.policy.kind is RetentionType.TIME:
            assert recorded_ms is not None
            return self.case.now_ms - recorded_ms
        newest = self.case.history.bytes_before(self.case.recorded[-1].cut)
        return len(newest) - self.case.place(cut).size_bytes

    def expected(self) -> tuple[Positions, TruncationReason] | None:
        """What is before the cut at which the stream is to be truncated, and why."""
        before = self.case.before
        allowed = [each for each in self.case.recorded if self.kept(each.cut, each.recorded_ms) >= self.policy.minimum]
        sets = sorted({before(each.cut) for each in allowed}, key=len)
        if self.subscribers is None:
            return (sets[-1], TruncationReason.MIN_LIMIT) if sets else None
        consumed = before(self.subscribers)
        safe = max([each for each in sets if each < consumed], key=len, default=None)
        forced = self._forced(consumed, safe, allowed, sets)
        if forced is not None:
            return forced, TruncationReason.MAX_LIMIT
        if not self._leaves_too_little(consumed, sets):
            return consumed, TruncationReason.CONSUMPTION
        return None if safe is None else (safe, TruncationReason.MIN_LIMIT)

    def _leaves_too_little(self, consumed: Positions, sets: list[Positions]) -> bool:
        assert self.subscribers is not None
        if self.policy.kind is RetentionType.SIZE:
            return self.kept(self.subscribers) < self.policy.minimum
        return not sets or not consumed <= sets[-1]

    def _forced(
        self, consumed: Positions, safe: Positions | None, allowed: list[Made], sets: list[Positions]
    ) -> Positions | None:
        """What goes although a subscriber did not read it. `safe`: what goes at a recorded cut that loses nothing."""
        before, maximum = self.case.before, self.maximum
        if self.policy.kind is RetentionType.TIME:
            old = [before(each.cut) for each in allowed if self.kept(each.cut, each.recorded_ms) >= maximum]
            return None if not old or max(old, key=len) <= consumed else max(old, key=len)
        within = [before(each.cut) for each in allowed if self.kept(each.cut) <= maximum]
        most = min(within, key=len) if within else sets[-1] if sets else None
        unforced = consumed
        if self._leaves_too_little(consumed, sets):
            unforced = before(self.case.head) if safe is None else safe
        newest_bytes = len(self.case.history.bytes_before(self.case.recorded[-1].cut))
        kept_bytes = newest_bytes - self._byte_count(unforced)
        if kept_bytes < maximum or (kept_bytes == maximum and unforced is not consumed) or most is None:
            return None
        return most if self._byte_count(most) > self._byte_count(unforced) else None

    def _byte_count(self, positions: Positions) -> int:
        lengths = self.case.history.lengths
        return len({(segment, at) for _, segment, at in positions if at < lengths[segment]})


def epochs_of(history: StreamHistory) -> list[Epoch]:
    """The product's records of the epochs."""
    ranges = history.ranges()
    return [
        Epoch(number, 0, tuple(StreamSegment(each.identifier, *ranges[each.identifier]) for each in active))
        for number, active in enumerate(history.epochs)
    ]


def bound_of(case: Case, cuts: Sequence[Cut]) -> Place | None:
    return case.place(earliest(cuts, case.history.ranges())) if cuts else None


def test_merged_cuts_hold_what_all_of_them_or_any_of_them_hold(test_seed: int, test_profile: str) -> None:
    merged = 0
    for case in cases(CASES[test_profile], test_seed):
        cuts, before, ranges = case.subscribers(), case.history.positions, case.history.ranges()
        if not cuts:
            continue
        low, high = earliest(cuts, ranges), latest(cuts, ranges)
        for cut in (low, high):
            assert sum(ranges[each].width for each in cut) == 1.0
        assert before(low) == frozenset.intersection(*map(before, cuts))
        assert before(high) == frozenset.union(*map(before, cuts))
        merged += low not in cuts and high not in cuts
    assert merged > CASES[test_profile] / 500, "hardly any merge differed from all of its cuts"


def test_a_cut_moves_over_the_ends_of_segments_as_far_as_it_can(test_seed: int, test_profile: str) -> None:
    moved = 0
    for case in cases(CASES[test_profile] // 3, test_seed + 3):
        history = case.history
        cut = history.some_cut(history.chance.randint(0, 80))
        end = case.forward(cut)
        assert history.bytes_before(end) == history.bytes_before(cut)
        assert history.positions(cut) <= history.positions(end)
        further = dict(end)
        for identifier in end:
            history.follow(further, identifier)
        assert further == end
        moved += end != cut
    assert moved > CASES[test_profile] / 100, "hardly any cut moved"


def test_the_end_of_a_segment_that_is_being_sealed_is_not_left() -> None:
    history = StreamHistory.begun(random.Random(1))
    cut = history.tail()
    history.scale()
    assert forward(cut, epochs_of(history), history.lengths) != cut
    assert forward(cut, epochs_of(history), {}) == cut


def test_a_truncation_is_the_one_that_a_search_finds(test_seed: int, test_profile: str) -> None:
    found: Counter[str] = Counter()
    overlapping = 0
    for case in cases(CASES[test_profile], test_seed + 1):
        policy, bound = case.policy(), bound_of(case, case.subscribers())
        ranges = case.history.ranges()
        head_bytes = case.place(case.head).size_bytes
        made = decided(policy, case.now_ms, case.recorded, bound, ranges, case.place_of, head_bytes)
        expected = Search(case, policy, bound.cut if bound else None).expected() if case.recorded else None
        assert (made and (case.history.positions(made.cut), made.reason)) == expected
        if made:
            check_promises(case, policy, bound, made)
            head, reached = case.history.positions(case.head), case.history.positions(made.cut)
            assert head <= reached, "nothing that is deleted comes back"
            cuts = [*(each.cut for each in case.recorded), *([bound.cut] if bound else [])]
            overlapping += made.cut not in cuts and head < reached
        found[f"{policy.kind.name} {made.reason if made else 'nothing'} {'with' if bound else 'without'}"] += 1
    assert len(found) == 2 * (4 + 2), found  # consumption and the maximum act with subscribers only
    assert min(found.values()) > CASES[test_profile] / 500, found
    assert overlapping > CASES[test_profile] / 500, "hardly any truncation was at a cut that overlaps with the head"


def test_a_truncation_keeps_the_minimum_and_enforces_the_maximum(test_seed: int, test_profile: str) -> None:
    forced: Counter[RetentionType] = Counter()
    for case in cases(CASES[test_profile], test_seed + 4):
        if not case.recorded:
            continue
        policy, bound = some_limits(case)
        head = case.place(case.head)
        made = decided(policy, case.now_ms, case.recorded, bound, case.history.ranges(), case.place_of, head.size_bytes)
        check_maximum(case, policy, made.cut if made else case.head)
        if made:
            check_promises(case, policy, bound, made)
            lost = bound is not None and not case.before(made.cut) <= case.before(bound.cut)
            assert lost <= (made.reason is TruncationReason.MAX_LIMIT)
            forced[policy.kind] += lost
    assert min(forced[kind] for kind in RetentionType) > CASES[test_profile] / 200, forced


def some_limits(case: Case) -> tuple[RetentionPolicy, Place | None]:
    """A policy, and the place of subscribers; often of one that is stuck, at whose cut about the minimum is kept."""
    chance = case.history.chance
    policy = case.policy()
    if chance.random() < 0.5:
        return policy, bound_of(case, case.subscribers())
    bound = case.place(case.stuck_subscriber())
    if policy.kind is RetentionType.TIME:
        return policy, bound
    kept_bytes = len(case.history.bytes_before(case.recorded[-1].cut)) - bound.size_bytes
    minimum = max(0, kept_bytes + chance.randint(-2, 5))
    return RetentionPolicy.by_size_bytes(minimum, minimum + chance.randint(1, 8)), bound


def check_maximum(case: Case, policy: RetentionPolicy, reached: Cut) -> None:
    """Nothing is kept beyond the maximum that could go, by the recorded cuts, without giving up the minimum."""
    history, most = case.history, policy.maximum or UNLIMITED
    deleted, newest = history.bytes_before(reached), history.bytes_before(case.recorded[-1].cut)
    for each in case.recorded:
        if policy.kind is RetentionType.TIME:
            if case.now_ms - each.recorded_ms >= max(most, policy.minimum):
                assert history.bytes_before(each.cut) <= deleted, "what is as old as the maximum is kept"
        elif len(newest) - len(deleted) > most:
            kept_bytes = len(newest) - case.place_of(each).size_bytes
            assert not policy.minimum <= kept_bytes <= most, "more than the maximum is kept"


def check_promises(case: Case, policy: RetentionPolicy, bound: Place | None, made: Truncation) -> None:
    """The least stays, and what a subscriber did not read goes only beyond the most."""
    removed = case.history.bytes_before(made.cut) - case.history.bytes_before(case.head)
    newest = case.history.bytes_before(case.recorded[-1].cut)
    old_enough = [each for each in case.recorded if case.now_ms - each.recorded_ms >= policy.minimum]
    if policy.kind is RetentionType.SIZE:
        assert len(newest) - len(case.history.bytes_before(made.cut)) >= policy.minimum
    else:
        assert removed <= case.history.bytes_before(old_enough[-1].cut)
    if bound is None or removed <= case.history.bytes_before(bound.cut):
        return
    assert made.reason is TruncationReason.MAX_LIMIT
    most = policy.maximum or UNLIMITED
    if policy.kind is RetentionType.TIME:
        too_old = [each for each in case.recorded if case.now_ms - each.recorded_ms >= most]
        assert removed <= case.history.bytes_before(too_old[-1].cut), "what is younger than the maximum stays"
        return
    places = [bound, case.place(case.head), *map(case.place_of, case.recorded)]
    for each in places:  # where nothing would be lost and the minimum would stay, more than the maximum is kept
        if case.before(each.cut) <= case.before(bound.cut) and len(newest) - each.size_bytes >= policy.minimum:
            assert len(newest) - each.size_bytes >= most, "the maximum does not demand that unread data goes"


def test_recorded_cuts_before_the_head_are_counted(test_seed: int, test_profile: str) -> None:
    some = 0
    for case in cases(CASES[test_profile] // 3, test_seed + 2):
        before = case.history.positions
        gone, asked = answer(count_before(recorded(case.recorded), case.head, case.history.ranges()), case.recorded)
        assert gone == sum(before(each.cut) < before(case.head) for each in case.recorded)
        assert 2 ** (asked - 1) <= len(case.recorded) or not asked
        some += 0 < gone < len(case.recorded)
        until = case.place(case.head)
        passed, asked = answer(count_until(recorded(case.recorded), until, case.history.ranges()), case.recorded)
        assert passed == sum(before(each.cut) <= before(case.head) for each in case.recorded)
        assert 2 ** (asked - 2) <= len(case.recorded) or not asked
    assert some, "in no case some of the cuts are before the head"


# ---- the cases of "Pravega Stream Retention", on a stream of one segment, and on one of two where cuts can overlap


ONE, LEFT, RIGHT = 0, 1, 2
RANGES = {ONE: KeyRange(0.0, 1.0), LEFT: KeyRange(0.0, 0.5), RIGHT: KeyRange(0.5, 1.0)}
HOURS = [Made(hour, 10 * hour, {ONE: 10 * hour}) for hour in range(11)]
"""A cut each hour, 10 bytes an hour; now it is hour 10, and the stream has 100 bytes."""
PAIRS = [Made(hour, 20 * hour, {LEFT: 10 * hour, RIGHT: 10 * hour}) for hour in range(11)]
SIZE = RetentionPolicy.by_size_bytes(20, 60)
TIME = RetentionPolicy.by_time_ms(2, 6)
BOTH = pytest.mark.parametrize("policy", [SIZE, TIME], ids=["size", "time"])


def at(offset: int) -> Place:
    return Place(offset, {ONE: offset})


def pair(left: int, right: int) -> Place:
    return Place(left + right, {LEFT: left, RIGHT: right})


@BOTH
def test_without_subscribers_the_minimum_stays(policy: RetentionPolicy) -> None:
    assert decided(policy, 10, HOURS, None, RANGES) == Truncation({ONE: 80}, TruncationReason.MIN_LIMIT)


def test_a_stream_below_the_minimum_is_left_alone() -> None:
    assert decided(RetentionPolicy.by_size_bytes(101), 10, HOURS, None, RANGES) is None
    assert decided(RetentionPolicy.by_time_ms(11), 10, HOURS, None, RANGES) is None
    assert decided(SIZE, 10, [], None, RANGES) is None


@BOTH
def test_case_1_between_the_limits_consumption_decides(policy: RetentionPolicy) -> None:
    assert decided(policy, 10, HOURS, at(55), RANGES) == Truncation({ONE: 55}, TruncationReason.CONSUMPTION)


@BOTH
def test_case_2_consumption_beyond_the_minimum_is_cut_off_there(policy: RetentionPolicy) -> None:
    assert decided(policy, 10, HOURS, at(95), RANGES) == Truncation({ONE: 80}, TruncationReason.MIN_LIMIT)


@BOTH
def test_case_3_a_lagging_subscriber_holds_no_more_than_the_maximum(policy: RetentionPolicy) -> None:
    assert decided(policy, 10, HOURS, at(15), RANGES) == Truncation({ONE: 40}, TruncationReason.MAX_LIMIT)


def test_case_4_consumption_overlaps_the_minimum() -> None:
    size = RetentionPolicy.by_size_bytes(40, 120)  # the minimum is the cut of hour 8, at 80 and 80
    assert decided(size, 10, PAIRS, pair(100, 75), RANGES) == Truncation(
        {LEFT: 70, RIGHT: 70}, TruncationReason.MIN_LIMIT
    )
    assert decided(TIME, 10, PAIRS, pair(100, 75), RANGES) == Truncation(
        {LEFT: 70, RIGHT: 70}, TruncationReason.MIN_LIMIT
    )


def test_case_5_consumption_overlaps_the_maximum() -> None:
    size = RetentionPolicy.by_size_bytes(40, 120)  # the maximum is the cut of hour 4, at 40 and 40
    assert decided(size, 10, PAIRS, pair(50, 20), RANGES) == Truncation(
        {LEFT: 40, RIGHT: 40}, TruncationReason.MAX_LIMIT
    )
    assert decided(TIME, 10, PAIRS, pair(50, 20), RANGES) == Truncation(
        {LEFT: 40, RIGHT: 40}, TruncationReason.MAX_LIMIT
    )


@BOTH
@pytest.mark.parametrize("unset", [UNLIMITED, 0], ids=["unlimited", "0, as clients without the field send it"])
def test_without_a_maximum_a_subscriber_holds_all(policy: RetentionPolicy, unset: int) -> None:
    unlimited = RetentionPolicy(policy.kind, policy.minimum, unset)
    assert decided(unlimited, 10, HOURS, at(0), RANGES) == Truncation({ONE: 0}, TruncationReason.CONSUMPTION)


def test_without_a_cut_within_the_limits_the_minimum_decides() -> None:
    sparse = [HOURS[0], HOURS[3], HOURS[9], HOURS[10]]
    policy = RetentionPolicy.by_size_bytes(20, 60)
    assert decided(policy, 10, sparse, at(15), RANGES) == Truncation({ONE: 30}, TruncationReason.MAX_LIMIT)


def test_by_time_what_is_younger_than_the_maximum_waits_for_a_lagging_subscriber() -> None:
    burst = [HOURS[0], Made(8, 1000, {ONE: 1000}), Made(9, 1010, {ONE: 1010})]
    assert decided(TIME, 10, burst, at(5), RANGES) == Truncation({ONE: 5}, TruncationReason.CONSUMPTION)
    sparse = [HOURS[1], HOURS[2], *burst[1:]]
    assert decided(TIME, 10, sparse, at(5), RANGES) == Truncation({ONE: 20}, TruncationReason.MAX_LIMIT)


LONG = [Made(hour, 20 * hour, {LEFT: 10 * hour, RIGHT: 10 * hour}) for hour in range(101)]
"""A cut each hour of two segments, 10 bytes an hour in each; now it is hour 100."""


@pytest.mark.parametrize("left", [505, 899, 900, 950, 1000])
def test_by_time_the_maximum_wins_over_a_segment_that_was_read_beyond_the_minimum(left: int) -> None:
    policy = RetentionPolicy.by_time_ms(10, 50)
    assert decided(policy, 100, LONG, pair(left, 5), RANGES) == Truncation(
        {LEFT: 500, RIGHT: 500}, TruncationReason.MAX_LIMIT
    )
    # All that is as old as the maximum was read, so only the minimum counts.
    read, expected = pair(left, 505), {LEFT: left, RIGHT: 505}
    reason = TruncationReason.CONSUMPTION
    if left > 900:
        expected, reason = {LEFT: 500, RIGHT: 500}, TruncationReason.MIN_LIMIT
    assert decided(policy, 100, LONG, read, RANGES) == Truncation(expected, reason)


def test_by_size_the_maximum_wins_over_a_segment_that_was_read_beyond_the_minimum() -> None:
    policy = RetentionPolicy.by_size_bytes(1000, 1500)  # recorded cuts that keep these: of hours 50 and 25
    stuck = pair(1000, 5)  # 995 bytes would be left there, and at the cut before it all
    assert decided(policy, 100, LONG, stuck, RANGES) == Truncation({LEFT: 250, RIGHT: 250}, TruncationReason.MAX_LIMIT)
    assert decided(policy, 100, LONG[1:], stuck, RANGES) == Truncation(
        {LEFT: 250, RIGHT: 250}, TruncationReason.MAX_LIMIT
    )
    far = RetentionPolicy.by_size_bytes(200, 1000)  # less than nothing would be left: the position is behind the tail
    assert decided(far, 100, LONG, pair(10**9, 5), RANGES) == Truncation(
        {LEFT: 500, RIGHT: 500}, TruncationReason.MAX_LIMIT
    )
    slow = pair(1000, 250)  # the cut before it leaves the maximum
    assert decided(policy, 100, LONG, slow, RANGES) == Truncation({LEFT: 250, RIGHT: 250}, TruncationReason.MIN_LIMIT)


def test_by_size_what_is_kept_from_the_head_on_counts() -> None:
    policy = RetentionPolicy.by_size_bytes(1000, 1500)
    behind = LONG[40:]  # no cut lies before the subscribers, who have read one segment, and the other up to the head
    bound = Place(1395, {LEFT: 1000, RIGHT: 395})
    assert decided(policy, 100, behind, bound, RANGES, head_bytes=500) is None
    assert decided(policy, 100, behind, bound, RANGES, head_bytes=499) == Truncation(
        {LEFT: 400, RIGHT: 400}, TruncationReason.MAX_LIMIT
    )
