"""Bounds of waits: the best of a few tries counts, a bound never moves, and every figure must have been taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.pace import REPORT, TRIES_MAX, StolenTime, Tries


@pytest.fixture(autouse=True)
def _own_report() -> Iterator[None]:
    """What these tests report is no figure of the run."""
    before = len(REPORT)
    yield
    del REPORT[before:]


def run(figures: list[dict[str, float]], bounds: dict[str, float]) -> Tries:
    """Note one figure set for each try."""
    tries = Tries("a fault", bounds)
    given = iter(figures)
    for attempt in tries:
        values = next(given)
        for of, seconds in values.items():
            attempt.note(of, seconds)
    return tries


def test_a_bound_that_is_held_needs_one_try() -> None:
    tries = run([{"ours": 1.0}, {"ours": 9.0}], {"ours": 2.0})
    assert len(tries.done) == 1
    assert tries.best_s("ours") == 1.0


def test_the_best_of_each_client_counts() -> None:
    tries = run([{"ours": 1.0, "java": 9.0}, {"ours": 7.0, "java": 3.0}], {"ours": 2.0, "java": 4.0})
    assert len(tries.done) == 2
    assert (tries.best_s("ours"), tries.best_s("java")) == (1.0, 3.0)
    assert tries.holds


def test_a_bound_that_no_try_holds_fails_with_every_figure() -> None:
    with pytest.raises(
        AssertionError, match=r"ours 3\.00 s .*\n.*ours 2\.50 s .*\n.*ours 2\.00 s \(bound 2 s\); .* stolen"
    ):
        run([{"ours": 3.0}, {"ours": 2.5}, {"ours": 2.0}, {"ours": 0.1}], {"ours": 2.0})


def test_a_figure_that_was_not_taken_fails() -> None:
    with pytest.raises(AssertionError, match="not measured: \\['java'\\]"):
        run([{"ours": 1.0}], {"ours": 2.0, "java": 2.0})


def test_a_fault_without_bounds_is_refused() -> None:
    with pytest.raises(AssertionError, match="has no bound"):
        run([{}], {})


def test_an_error_of_the_scenario_is_not_repeated() -> None:
    tries, seen = Tries("a fault", {"ours": 2.0}), 0

    def scenario() -> None:
        nonlocal seen
        for _ in tries:
            seen += 1
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        scenario()
    assert seen == 1


def test_every_try_is_reported() -> None:
    before = len(REPORT)
    run([{"ours": 5.0}, {"ours": 1.0}], {"ours": 2.0})
    assert [line.partition(";")[0] for line in REPORT[before:]] == [
        f"a fault, try 1 of {TRIES_MAX}: ours 5.00 s (bound 2 s)",
        f"a fault, try 2 of {TRIES_MAX}: ours 1.00 s (bound 2 s)",
    ]


def test_stolen_time_only_grows() -> None:
    assert StolenTime().seconds() >= 0
