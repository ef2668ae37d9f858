"""Which connection closes when all together have too many requests without a reply."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.segmentstore.server.unanswered import Unanswered

MOST, FREE = 60, 3


@dataclass(eq=False)
class Connection:
    """Requests of a client."""

    peer: str
    unanswered: Unanswered
    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.unanswered.join(self)

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)

    def ask(self, requests: int = 1) -> bool:
        for _ in range(requests):
            if not self.unanswered.begin(self):
                return False
            self.count += 1
        return True

    def answered(self, requests: int = 1) -> None:
        for _ in range(requests):
            self.unanswered.end(self)
            self.count -= 1


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUESTS_MAX", MOST)
    monkeypatch.setattr(limits, "REQUESTS_PER_CONNECTION_FREE", FREE)


def test_the_client_that_has_most_gives_way_with_its_largest_connection() -> None:
    unanswered = Unanswered()
    greedy = [Connection("greedy", unanswered) for _ in range(12)]
    fair = Connection("fair", unanswered)
    assert fair.ask(12)
    for each in greedy:
        assert each.ask(4)
    assert unanswered.requests == MOST
    assert fair.ask(4), "its connection has more than each of the other client's"
    assert not fair.reasons
    assert sum(bool(each.reasons) for each in greedy) == 1
    assert unanswered.requests == MOST


def test_a_connection_that_is_itself_the_largest_closes() -> None:
    unanswered = Unanswered()
    large, small = Connection("a", unanswered), Connection("b", unanswered)
    assert small.ask(10)
    assert large.ask(MOST - 10)
    assert not large.ask()
    assert small.ask()
    assert large.reasons, "another one makes the largest one close"


def test_a_connection_with_few_requests_is_served_in_any_case() -> None:
    unanswered = Unanswered()
    large = Connection("a", unanswered)
    assert large.ask(MOST)
    for number in range(100):
        assert Connection(f"b{number}", unanswered).ask(FREE)
    assert not large.reasons


def test_requests_of_a_closed_connection_count_no_more() -> None:
    unanswered = Unanswered()
    large, other = Connection("a", unanswered), Connection("b", unanswered)
    assert large.ask(MOST)
    assert other.ask(FREE + 1)
    assert large.reasons
    assert unanswered.requests == FREE + 1
    large.answered(MOST)
    unanswered.leave(large)
    assert unanswered.requests == FREE + 1
    other.answered(FREE + 1)
    assert unanswered.requests == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-20, 20)), max_size=60))
def test_counts_add_up(steps: list[tuple[int, int]]) -> None:
    unanswered = Unanswered()
    connections = [Connection("ab"[number % 2], unanswered) for number in range(6)]
    for number, change in steps:
        connection = connections[number]
        if change > 0:
            connection.ask(change)
        else:
            connection.answered(min(-change, connection.count))
        live = [each for each in connections if not each.reasons]
        assert unanswered.requests == sum(each.count for each in live)
        assert unanswered.requests < MOST + FREE * len(connections)
