"""The judge of long loads finds what is lost, twice or out of order, and measures pauses per key."""

from __future__ import annotations

import random

import pytest

from harness.sequences import PAUSES_MAX, Pauses, Sequences, differences, end_of_pause_s, longest_pause_s


def test_interleaved_keys_in_order_are_right() -> None:
    read = Sequences()
    rng = random.Random(1)
    left = {f"key-{number}": 50 for number in range(5)}
    while any(left.values()):
        key = rng.choice([key for key, count in left.items() if count])
        read.see(key, 50 - left[key])
        left[key] -= 1
    assert read.report() == {
        "events": 250,
        "keys": dict.fromkeys(sorted(left), 50),
        "violations": {},
        "examples": [],
    }
    assert not differences(dict.fromkeys(left, 50), read.following)


def test_each_kind_of_violation_is_reported() -> None:
    read = Sequences()
    for number in (0, 1, 4, 4, 2, 5):
        read.see("a", number)
    assert read.violations == {"passed over": 2, "twice or reordered": 2}
    assert read.examples == [
        "passed over: a:2 to 3",
        "twice or reordered: a:4 when 5 was to come",
        "twice or reordered: a:2 when 5 was to come",
    ]


def test_what_is_missing_at_the_end_is_a_difference() -> None:
    assert differences({"a": 3, "b": 1}, {"a": 2, "c": 1}) == [
        "a: 3 written, 2 read",
        "b: 1 written, 0 read",
        "c: 0 written, 1 read",
    ]


def test_pauses_are_of_a_key() -> None:
    pauses = Pauses()
    for at_s in range(10):
        pauses.acknowledged("busy", 100 + at_s / 10)
    pauses.acknowledged("stuck", 100.0)
    pauses.acknowledged("stuck", 104.5)
    assert pauses.report() == [[100.0, 104.5]]
    assert longest_pause_s(pauses.report(), 103, 103.5) == 4.5
    assert longest_pause_s(pauses.report(), 105, 110) == 0.0


def test_of_many_pauses_the_longest_stay() -> None:
    pauses = Pauses()
    now_s = 0.0
    pauses.acknowledged("key", now_s)
    for number in range(3 * PAUSES_MAX):
        now_s += 60.0 if number == 7 else 0.5
        pauses.acknowledged("key", now_s)
    assert len(pauses.report()) == PAUSES_MAX
    assert longest_pause_s(pauses.report(), 0, now_s) == 60.0


def test_what_waits_for_a_return_must_have_waited() -> None:
    pauses = [[1.0, 2.0], [4.0, 9.0], [5.0, 8.0], [12.0, 13.0]]
    assert end_of_pause_s(pauses, 6.0) == 3.0
    with pytest.raises(AssertionError, match="no key paused"):
        end_of_pause_s(pauses, 10.0)
