"""The checker of the crash tests finds each kind of violation, and nothing in a history that is right."""

from __future__ import annotations

import random

import pytest

from harness.history import Event, History, Kind, Outcome, decode, encode


def plain(key: str, *numbers: int) -> list[bytes]:
    return [encode(Event(key, number, ""), 40) for number in numbers]


def inside(transaction: str, key: str, *numbers: int) -> list[bytes]:
    return [encode(Event(key, number, transaction), 40) for number in numbers]


@pytest.fixture
def history() -> History:
    """Key a: 5 written, 0 to 2 acknowledged; key b: 3 written, all acknowledged; one transaction of each outcome."""
    history = History()
    history.write("a", 5)
    history.acknowledge("a", range(3))
    history.write("b", 3)
    history.acknowledge("b", range(3))
    for name, outcome in (("yes", Outcome.COMMITTED), ("no", Outcome.ABORTED), ("perhaps", Outcome.UNKNOWN)):
        record = history.begin(name)
        record.events.update({f"{name}-k": 2, f"{name}-l": 1})
        record.outcome = outcome
    return history


YES = [inside("yes", "yes-k", 0, 1), inside("yes", "yes-l", 0)]
PERHAPS = [inside("perhaps", "perhaps-k", 0, 1), inside("perhaps", "perhaps-l", 0)]


def kinds(history: History, *segments: list[bytes]) -> list[Kind]:
    return [violation.kind for violation in history.check(segments)]


@pytest.mark.parametrize("length", [1, 20, 1000, 200_000])
def test_an_event_says_what_it_is(length: int) -> None:
    event = Event("key", 17, "t")
    data = encode(event, length)
    assert decode(data) == event
    assert len(data) == max(length, len("00000000key:17:t:"))


def test_any_changed_byte_makes_it_another_event() -> None:
    rng = random.Random(1)
    data = encode(Event("key", 17, ""), 100)
    for _ in range(200):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        assert decode(bytes(changed)) is None


@pytest.mark.parametrize("length", [0, 3, 8, 30, 99])
def test_a_cut_off_event_is_none(length: int) -> None:
    assert decode(encode(Event("key", 17, ""), 100)[:length]) is None


@pytest.mark.parametrize("unknown", [0, 1, 2])
@pytest.mark.parametrize("committed", [[], PERHAPS])
def test_right(history: History, unknown: int, committed: list[list[bytes]]) -> None:
    first, second = committed or [[], []]
    assert not kinds(history, plain("a", *range(3 + unknown)) + YES[0] + first, plain("b", 0, 1, 2) + YES[1] + second)


def test_order_goes_on_in_the_segments_that_follow(history: History) -> None:
    assert not kinds(history, plain("a", 0, 1) + YES[0], plain("b", 0, 1), plain("a", 2, 3) + YES[1], plain("b", 2))
    assert Kind.REORDERED in kinds(history, plain("a", 1, 2) + YES[0], plain("a", 0) + YES[1], plain("b", 0, 1, 2))


@pytest.mark.parametrize(
    ("a", "expected"),
    [
        ((0, 1), [Kind.LOST]),
        ((), [Kind.LOST] * 3),
        ((1, 2), [Kind.LOST]),
        ((0, 1, 2, 4), [Kind.GAP]),
        ((0, 1, 1, 2), [Kind.TWICE]),
        ((0, 1, 2, 4, 3), [Kind.REORDERED]),
        ((0, 1, 2, 0), [Kind.TWICE, Kind.REORDERED]),
        ((0, 1, 2, 5), [Kind.INVENTED]),
    ],
)
def test_broken_key(history: History, a: tuple[int, ...], expected: list[Kind]) -> None:
    found = kinds(history, plain("a", *a) + plain("b", 0, 1, 2) + YES[0] + YES[1])
    assert sorted(kind.value for kind in found) == sorted(kind.value for kind in expected)


def test_an_event_of_unknown_outcome_twice(history: History) -> None:
    assert kinds(history, plain("a", 0, 1, 2, 3, 3) + plain("b", 0, 1, 2) + YES[0] + YES[1]) == [Kind.TWICE]


@pytest.mark.parametrize(
    "invented",
    [
        plain("c", 0),
        inside("never", "k", 0),
        inside("yes", "k", 0),
        inside("yes", "yes-k", 2),
        [b""],
        [b"something else"],
        [plain("a", 0)[0][:-1] + b"?"],
    ],
)
def test_invented(history: History, invented: list[bytes]) -> None:
    assert kinds(history, plain("a", 0, 1, 2) + plain("b", 0, 1, 2) + YES[0] + YES[1] + invented) == [Kind.INVENTED]


RIGHT = [*plain("a", 0, 1, 2), *plain("b", 0, 1, 2)]


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([RIGHT], Kind.LOST),
        ([RIGHT + YES[0]], Kind.TORN),
        ([RIGHT + inside("yes", "yes-k", 0), YES[1]], Kind.TORN),
        ([RIGHT + YES[0], YES[1], PERHAPS[1]], Kind.TORN),
        ([RIGHT + YES[0], YES[1], inside("no", "no-l", 0)], Kind.RISEN),
        ([RIGHT + YES[0] + YES[0], YES[1]], Kind.TWICE),
        ([RIGHT + YES[0][::-1], YES[1]], Kind.REORDERED),
        ([YES[0] + RIGHT + YES[1]], Kind.SPREAD),
        ([RIGHT + YES[0] + PERHAPS[0] + YES[1] + PERHAPS[1]], Kind.SPREAD),
    ],
)
def test_broken_transaction(history: History, segments: list[list[bytes]], expected: Kind) -> None:
    assert expected in kinds(history, *segments)


def test_every_single_event_counts() -> None:
    """Leaving out any acknowledged event, or repeating any, is found."""
    history = History()
    for key in ("x", "y"):
        history.write(key, 10)
        history.acknowledge(key, range(10))
    events = [event for pair in zip(plain("x", *range(10)), plain("y", *range(10)), strict=True) for event in pair]
    assert not history.check([events])
    for index in range(len(events)):
        assert [item.kind for item in history.check([events[:index] + events[index + 1 :]])] == [Kind.LOST]
        assert Kind.TWICE in {item.kind for item in history.check([[*events, events[index]]])}
