"""Bytes in flight: shares of one connection and of all together (docs/design.md#admit)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.limits import MIB
from tailrace.segmentstore.server.budgets import InFlightBudget


def test_one_connection_waits_above_its_share_and_goes_on_a_quarter_below() -> None:
    woken: list[int] = []
    budget = InFlightBudget().connection(lambda: woken.append(1))
    budget.charge(limits.CONNECTION_IN_FLIGHT_MAX_BYTES)
    assert not budget.must_wait()
    budget.charge(MIB)
    assert budget.must_wait()
    budget.release(2 * MIB)
    assert woken == []
    budget.release(3 * MIB)
    assert woken == [1]
    budget.release(MIB)
    assert woken == [1]


def test_all_together_wait_but_not_the_small_ones() -> None:
    shared = InFlightBudget(40 * MIB)
    woken: list[int] = []
    budgets = [shared.connection(lambda number=number: woken.append(number)) for number in range(5)]  # type: ignore[misc]
    for budget in budgets[:4]:
        budget.charge(11 * MIB)
    assert [budget.must_wait() for budget in budgets[:4]] == [True] * 4
    budgets[4].charge(limits.CONNECTION_IN_FLIGHT_FREE_BYTES)
    assert not budgets[4].must_wait()
    budgets[0].release(4 * MIB)
    assert woken == []
    budgets[1].release(2 * MIB)
    assert woken == [0, 1, 2, 3]


def test_a_connection_with_little_in_flight_goes_on_whatever_the_others_do() -> None:
    shared = InFlightBudget(10 * MIB)
    woken: list[str] = []
    small, large = shared.connection(lambda: woken.append("small")), shared.connection(lambda: woken.append("large"))
    large.charge(15 * MIB)
    small.charge(2 * MIB)
    assert small.must_wait()
    small.release(2 * MIB - 1)
    assert woken == ["small"]


def test_thousands_of_small_shares_wait_too() -> None:
    shared = InFlightBudget(10 * MIB)
    woken: list[int] = []
    room: list[int] = []
    shared.on_room = lambda: room.append(shared.outstanding_bytes)
    budgets = [shared.connection(lambda number=number: woken.append(number)) for number in range(40)]  # type: ignore[misc]
    stopped = []
    for budget in budgets:
        budget.charge(MIB // 2)
        budget.charge(MIB // 4)
        stopped.append(budget.must_wait())
    assert stopped == [False] * 26 + [True] * 14
    assert not shared.has_room
    for budget in budgets[:16]:
        budget.release(MIB // 2)
        budget.release(MIB // 4)
    assert shared.outstanding_bytes <= 2 * shared.max_bytes
    assert sorted(woken) == list(range(26, 40))
    assert room == []
    for budget in budgets[16:]:
        budget.release(MIB // 2)
        budget.release(MIB // 4)
    assert room[-1] == 0


def test_a_closed_connection_is_not_woken() -> None:
    woken: list[int] = []
    budget = InFlightBudget().connection(lambda: woken.append(1))
    budget.charge(20 * MIB)
    assert budget.must_wait()
    budget.close()
    budget.release(20 * MIB)
    assert woken == []


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6 * MIB)), max_size=60))
@example([(0, 5 * MIB), (0, 6 * MIB), (0, 6 * MIB), (1, 6 * MIB), (2, MIB - 1)])  # together, 1 byte below that
@example([(0, 5 * MIB + 2), (0, 6 * MIB), (0, 6 * MIB), (1, 6 * MIB), (2, MIB - 1)])  # 1 byte above
def test_no_connection_waits_for_ever(steps: list[tuple[int, int]]) -> None:
    shared = InFlightBudget(12 * MIB)
    waiting: dict[int, bool] = dict.fromkeys(range(5), False)
    held: list[tuple[int, int]] = []

    def room(number: int) -> None:
        assert waiting[number]
        waiting[number] = False

    budgets = [shared.connection(lambda number=number: room(number)) for number in range(5)]  # type: ignore[misc]
    for number, length in steps:
        if waiting[number]:
            continue
        budgets[number].charge(length)
        held.append((number, length))
        waiting[number] = budgets[number].must_wait()
        # A connection with less than the free share is read, until all together have twice the total.
        small = budgets[number].outstanding_bytes < limits.CONNECTION_IN_FLIGHT_FREE_BYTES
        assert not (waiting[number] and small and shared.outstanding_bytes <= 24 * MIB)
    for number, length in held:
        budgets[number].release(length)
    assert not any(waiting.values())
    assert shared.outstanding_bytes == 0
