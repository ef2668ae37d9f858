"""The placement policy: even, minimal, deterministic (docs/design.md#ownership)."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.placement import Step, Workers, moves_at_a_time, next_step, place
from tailrace.common import limits

NAMES = ["a", "b", "c", "d", "e"]


@st.composite
def situations(draw: st.DrawFn, containers_max: int = 24) -> tuple[int, dict[int, str], Workers]:
    """Containers, who has them (perhaps a worker that is gone), and the living workers by kind."""
    count = draw(st.integers(1, containers_max))
    kinds = draw(st.lists(st.sampled_from(["accepting", "keeping", "leaving", "gone"]), min_size=5, max_size=5))
    owners = draw(st.lists(st.sampled_from(["", *NAMES]), min_size=count, max_size=count))
    current = {number: owner for number, owner in enumerate(owners) if owner}
    by_kind = {kind: [name for name, its in zip(NAMES, kinds, strict=True) if its == kind] for kind in set(kinds)}
    return count, current, Workers(*(by_kind.get(kind, []) for kind in ("accepting", "keeping", "leaving")))


def moves(count: int, before: dict[int, str], after: dict[int, str]) -> int:
    return sum(before.get(number) != after.get(number) for number in range(count))


@given(situations())
def test_accepting_workers_differ_by_one_at_most(situation: tuple[int, dict[int, str], Workers]) -> None:
    count, current, workers = situation
    placed = place(count, current, workers)
    if workers.accepting:
        assert sorted(placed) == list(range(count))
        shares = Counter(placed.values())
        sizes = [shares[worker] for worker in workers.accepting]
        assert max(sizes) - min(sizes) <= 1


@given(situations())
def test_who_is_kept_keeps_and_who_leaves_or_is_gone_gets_nothing(
    situation: tuple[int, dict[int, str], Workers],
) -> None:
    count, current, workers = situation
    placed = place(count, current, workers)
    for number in range(count):
        before, after = current.get(number), placed.get(number)
        if before in workers.keeping:
            assert after == before
        elif workers.accepting:
            assert after in workers.accepting
        elif before in workers.leaving:
            assert after == before
        else:
            assert after is None


@given(situations(containers_max=6))
def test_no_even_placement_moves_fewer(situation: tuple[int, dict[int, str], Workers]) -> None:
    count, current, workers = situation
    accepting = sorted(workers.accepting)[:3]
    workers = Workers(accepting, workers.keeping, workers.leaving)
    if not accepting:
        return
    free = [number for number in range(count) if current.get(number) not in workers.keeping]
    fewest = count
    for owners in itertools.product(accepting, repeat=len(free)):
        shares = Counter(owners)
        sizes = [shares[worker] for worker in accepting]
        if max(sizes) - min(sizes) <= 1:
            fewest = min(fewest, sum(current.get(n) != owner for n, owner in zip(free, owners, strict=True)))
    assert moves(count, current, place(count, current, workers)) == fewest


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_is_nothing(situation: tuple[int, dict[int, str], Workers], random: object) -> None:
    count, current, workers = situation
    shuffled = list(current.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    turned = Workers(tuple(reversed(list(workers.accepting))), set(workers.keeping), tuple(workers.leaving))
    assert place(count, current, workers) == place(count, dict(shuffled), turned)


@given(situations())
def test_what_is_placed_stays(situation: tuple[int, dict[int, str], Workers]) -> None:
    count, current, workers = situation
    placed = place(count, current, workers)
    assert place(count, placed, workers) == placed
    assert next_step(count, placed, workers, 0, 4, balancing_max=4) == Step()


@given(situations(), st.integers(1, 3), st.integers(1, 4))
def test_steps_end_at_the_same_place_with_no_move_more(
    situation: tuple[int, dict[int, str], Workers], at_a_time: int, balancing_max: int
) -> None:
    count, current, workers = situation
    fewest = moves(count, current, {**current, **place(count, current, workers)})
    now, moved = dict(current), 0
    for _ in range(2 * count + 1):
        step = next_step(count, now, workers, 0, at_a_time, balancing_max=balancing_max)
        assert len(step.moved) <= at_a_time
        for_balance = [number for number in step.moved if now[number] not in workers.leaving]
        assert len(step.moved) <= balancing_max or not for_balance
        assert step.uneven >= len(for_balance)
        moved += moves(count, now, {**now, **step.placed, **step.moved})
        now |= {**step.placed, **step.moved}
        if not (step.placed or step.moved):
            break
    assert now == current | place(count, now, workers)
    assert moved == fewest
    assert {number: now[number] for number in place(count, current, workers)} == place(count, now, workers)


def test_the_homeless_are_placed_at_once_and_those_of_leavers_move_first() -> None:
    current = {0: "a", 1: "a", 2: "a", 3: "a", 4: "gone", 5: "leaver", 6: "leaver", 7: "leaver"}
    workers = Workers(["a", "b", "c"], [], ["leaver"])
    step = next_step(8, current, workers, handing_over=0, handing_over_max=3, balancing_max=3)
    assert sorted(step.placed) == [4]
    assert sorted(step.moved) == [5, 6, 7]
    assert step.postponed == 1
    busy = next_step(8, current, workers, handing_over=3, handing_over_max=3, balancing_max=3)
    assert (busy.placed, busy.moved, busy.postponed) == (step.placed, {}, 4)
    assert next_step(8, current, workers, handing_over=9, handing_over_max=3, balancing_max=3) == busy


def test_a_drain_moves_few_at_a_time_and_many_containers_in_time() -> None:
    workers = Workers(["a", "b"], ["silent"], ["leaver", "other"])
    of_others = dict(enumerate(["a"] * 200 + ["silent"] * 200))
    assert moves_at_a_time(of_others, workers, 2, 8) == 2
    for count, at_a_time in ((1, 2), (16, 2), (17, 3), (64, 8)):
        leaving = {1000 + number: ("leaver", "other")[number % 2] for number in range(count)}
        assert moves_at_a_time({**of_others, **leaving}, workers, 2, 8) == at_a_time
    current, steps = dict.fromkeys(range(256), "leaver"), 0
    while "leaver" in current.values():
        at_a_time = moves_at_a_time(current, workers, limits.MOVES_AT_A_TIME, limits.MOVES_AT_A_TIME_SHARE)
        current |= next_step(256, current, workers, 0, at_a_time, balancing_max=0).moved
        steps += 1
    assert steps * limits.PLACER_PERIOD_S < limits.DRAIN_DEADLINE_S / 2


def test_what_moves_for_balance_alone_does_so_by_fewer_at_a_time() -> None:
    current = dict(enumerate("aaaaaaaa"))
    workers = Workers(["a", "b"])
    step = next_step(8, current, workers, 0, 4, balancing_max=1)
    assert (len(step.moved), step.postponed, step.uneven) == (1, 3, 4)
    under_way = next_step(8, current | dict(step.moved), workers, 1, 4, balancing_max=1)
    assert (under_way.moved, under_way.postponed, under_way.uneven) == ({}, 3, 3)
    not_now = next_step(8, current, workers, 0, 4, balancing_max=0)
    assert (not_now.moved, not_now.postponed, not_now.uneven) == ({}, 4, 4)
    workers = Workers(["a", "b"], [], ["leaver"])
    leaving = next_step(8, current | {0: "leaver", 1: "leaver"}, workers, 0, 4, balancing_max=1)
    assert sorted(leaving.moved) == [0, 1]
    assert leaving.uneven == leaving.postponed == 2


def test_a_new_worker_takes_only_its_share() -> None:
    current = dict(enumerate("aaaabbbb"))
    placed = place(8, current, Workers(["a", "b", "c"]))
    assert sorted(Counter(placed.values()).values()) == [2, 3, 3]
    assert moves(8, current, placed) == 2


def test_without_workers_nothing_moves() -> None:
    assert place(2, {0: "gone"}, Workers()) == {}
    assert next_step(2, {0: "gone", 1: "leaver"}, Workers(leaving=["leaver"]), 0, 4, balancing_max=4) == Step()
