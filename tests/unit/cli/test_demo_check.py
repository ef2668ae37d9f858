"""The demo's check: exactly once, and in order per key."""

import json
import random
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.demo.check import DeliveryCheck, Verdict
from tailrace.cli.demo.flights import Flight


def event(key: str, number: int) -> Flight:
    return Flight(key, json.dumps({"tailnum": key, "number": number}).encode())


A1, A2, A3, B1 = event("a", 1), event("a", 2), event("a", 3), event("b", 1)


def judge(written: list[Flight], arrived: list[Flight]) -> Verdict:
    check = DeliveryCheck(written)
    for one in arrived:
        check.arrive(one.data)
    return check.verdict()


def test_keys_may_interleave_in_any_way() -> None:
    assert judge([A1, B1, A2], [B1, A1, A2]) == Verdict(3, 0, 0, 0, 0)
    assert judge([A1, B1, A2], [B1, A1, A2]).right


def test_missing_event_is_counted() -> None:
    assert judge([A1, A2, B1], [A1, B1]) == Verdict(2, 1, 0, 0, 0)


def test_duplicate_is_counted() -> None:
    assert judge([A1, A2], [A1, A1, A2]) == Verdict(3, 0, 1, 0, 0)


def test_swapped_events_are_out_of_order_but_not_missing() -> None:
    assert judge([A1, A2, A3], [A2, A1, A3]) == Verdict(3, 0, 0, 2, 0)


def test_foreign_and_malformed_events_are_invented() -> None:
    check = DeliveryCheck([A1])
    for data in (A1.data, event("a", 9).data, event("z", 1).data, b"not json", b'{"other": 1}'):
        check.arrive(data)
    assert check.verdict() == Verdict(5, 0, 0, 0, 4)


def test_equal_events_of_one_key_count_as_often_as_written() -> None:
    assert judge([A1, A1], [A1, A1]).right
    assert judge([A1, A1], [A1]) == Verdict(1, 1, 0, 0, 0)
    assert judge([A1, A1], [A1, A1, A1]) == Verdict(3, 0, 1, 0, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30), st.randoms(use_true_random=False))
def test_any_interleaving_that_keeps_each_key_is_right(pairs: list[tuple[str, int]], rng: random.Random) -> None:
    written = [event(key, number) for key, number in pairs]
    queues: dict[str, list[Flight]] = defaultdict(list)
    for one in written:
        queues[one.key].append(one)
    arrived = []
    while waiting := sorted(key for key, queue in queues.items() if queue):
        arrived.append(queues[rng.choice(waiting)].pop(0))
    assert judge(written, arrived).right


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=30), st.data())
def test_dropping_or_repeating_one_event_is_never_right(pairs: list[tuple[str, int]], data: st.DataObject) -> None:
    written = [event(key, number) for key, number in pairs]
    place = data.draw(st.integers(0, len(written) - 1))
    assert not judge(written, written[:place] + written[place + 1 :]).right
    assert not judge(written, [*written[: place + 1], *written[place:]]).right
