"""The benchmark of the cache runs, gives every row of the published table for every system, and plans fairly."""

import pytest

from tailrace.cli.bench import cache as benchmark


def test_every_system_has_every_row() -> None:
    rows = benchmark.run(entries=150, repeats=1)
    assert all(set(row) == {"system", "case", "metric", "value", "unit"} and row["value"] > 0 for row in rows)
    cases: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        cases.setdefault(row["system"], set()).add((row["case"], row["metric"]))
    assert set(cases) == {"tailrace native", "tailrace pure Python", "dict"}
    assert len(set(map(frozenset, cases.values()))) == 1
    assert len(rows) == 3 * 6


def test_the_plan_is_repeatable_and_its_peak_is_enough() -> None:
    plan = benchmark.plan_operations(2000, 10_240)
    assert plan == benchmark.plan_operations(2000, 10_240)
    inserts = sum(length >= 0 for length, _, _ in plan)
    assert 1100 < inserts < 1300
    assert 0 < benchmark.peak_blocks(plan) <= 3 * inserts


def test_bad_counts_are_refused() -> None:
    for entries, repeats in [(0, 1), (1, 0)]:
        with pytest.raises(ValueError, match="at least 1"):
            benchmark.run(entries, repeats)
