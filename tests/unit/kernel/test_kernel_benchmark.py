"""The benchmark of the cache runs, gives every row of the published table for every system, and plans fairly."""

import pytest

from tailrace.cli.bench import cache as benchmark
from tailrace.cli.bench import index


def test_every_system_has_every_row() -> None:
    notes: list[str] = []
    rows = benchmark.run(entries=150, repeats=1, pure=True, note=notes.append)
    assert all(set(row) == {"system", "case", "metric", "value", "unit"} and row["value"] > 0 for row in rows)
    measured = [row for row in rows if row["system"] != "all"]
    cases: dict[str, set[str]] = {}
    for row in measured:
        assert (row["metric"], row["unit"]) == ("time", "ms")
        cases.setdefault(row["system"], set()).add(row["case"])
    assert set(cases) == {"tailrace", "tailrace-pure", "dict-copy", "rocksdb"}
    expected = {"sequential-insert", "sequential-get", "sequential-delete", "random-10KB", "random-100KB"}
    assert all(found == expected for found in cases.values())
    assert len(measured) == len(cases) * len(expected)
    assert [row["value"] for row in rows if row["metric"] == "operations"] == [150] * 3
    assert not [note for note in notes if "RocksDB" in note]


class Broken(benchmark.DictionarySystem):
    """It forgets the end of long entries."""

    def insert(self, data: memoryview) -> int:
        return super().insert(memoryview(bytes(data[:4096]).ljust(len(data), b"\0")))


def test_wrong_contents_are_found() -> None:
    benchmark.check(benchmark.DictionarySystem(), 100)
    with pytest.raises(AssertionError, match="wrong bytes"):
        benchmark.check(Broken(), 100)


def test_entries_that_do_not_fit_into_memory_are_left_out() -> None:
    gib = 2**30
    assert benchmark.fitting_entries(1_000_000, 64 * gib) == 1_000_000
    assert 0.4 * gib < 10_240 * benchmark.fitting_entries(1_000_000, gib) < 0.6 * gib
    assert benchmark.fitting_entries(5, 0) == 1


async def test_the_index_has_every_row_and_its_values_are_checked() -> None:
    rows = await index.rows(count=500, batches=(10, 100))
    cases = {(row["system"], row["case"]): 0 for row in rows}
    expected = {
        (system, f"{order}-{batch}-{kind}")
        for order in ("sorted", "random")
        for batch in (10, 100)
        for system, kind in (
            ("tailrace", "compacted"),
            ("tailrace", "plain"),
            ("sqlite", "compacted"),
            ("rocksdb", "compacted"),
        )
    }
    assert set(cases) == expected
    assert [(row["metric"], row["unit"]) for row in rows] == [("size", "MB"), ("time", "ms")] * len(expected)
    assert all(row["value"] > 0 for row in rows)
    sizes = {(row["system"], row["case"]): row["value"] for row in rows if row["metric"] == "size"}
    assert sizes["tailrace", "random-10-plain"] > 5 * sizes["tailrace", "random-10-compacted"]


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
