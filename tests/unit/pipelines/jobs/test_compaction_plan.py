"""Which folders of batches are joined (docs/spark-jobs.md#compaction)."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.pipelines.jobs.compaction_plan import BatchFolder, next_join

MANY = limits.SPARK_COMPACTION_FOLDERS_MIN


def folders(*sizes: int) -> list[BatchFolder]:
    return [BatchFolder(number, size) for number, size in enumerate(sizes)]


def numbers(found: object) -> list[int]:
    assert isinstance(found, (list, tuple))
    return [each.number for each in found]


def test_neighbours_are_joined_as_soon_as_they_are_large_together() -> None:
    assert numbers(next_join(folders(40, 40), 100)) == []
    assert numbers(next_join(folders(40, 40, 40, 40), 100)) == [0, 1, 2]
    assert numbers(next_join(folders(100, 40, 70, 100), 100)) == [1, 2]
    assert numbers(next_join(folders(40, 100, 70), 100)) == []


def test_many_small_ones_are_joined_before() -> None:
    assert numbers(next_join(folders(*[1] * (MANY - 1)), 10_000)) == []
    assert numbers(next_join(folders(*[1] * MANY), 10_000)) == list(range(MANY))
    assert numbers(next_join(folders(*[0] * MANY), 10_000)) == list(range(MANY))
    assert numbers(next_join(folders(5_000, *[1] * MANY), 10_000)) == list(range(1, MANY + 1))


def test_a_folder_that_stays_divides_the_others() -> None:
    given = folders(*[1] * MANY)
    given[3] = BatchFolder(3, 1, is_final=True)
    assert numbers(next_join(given, 10_000)) == []
    assert numbers(next_join([*given, BatchFolder(MANY, 20_000)], 10_000)) == []


def test_at_most_so_many_are_joined_at_once() -> None:
    most = limits.SPARK_COMPACTION_FOLDERS_MAX
    assert numbers(next_join(folders(*[1] * (3 * most)), 1 << 40)) == list(range(most))
    assert numbers(next_join(folders(*[1] * (3 * most)), 2 * most)) == list(range(most))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=400), st.integers(1, 2_000))
def test_few_folders_are_left_and_no_row_is_written_often(sizes: list[int], target: int) -> None:
    """Batches come one by one, and what is due is joined behind each."""
    kept: list[BatchFolder] = []
    written = 0
    for number, size in enumerate(sizes):
        kept.append(BatchFolder(number, size))
        while group := next_join(kept, target):
            assert len(group) >= 2
            assert [each for each in kept if each in group] == list(group)
            total = sum(each.length_bytes for each in group)
            written += total
            gone = {each.number for each in group}
            kept = sorted(
                [*(each for each in kept if each.number not in gone), BatchFolder(group[-1].number, total)],
                key=lambda each: each.number,
            )
    assert sum(each.length_bytes for each in kept) == sum(sizes)
    assert written <= sum(sizes) * (math.log2(max(2, target)) + 2)
    run = longest = 0
    for each in kept:
        run = run + 1 if each.length_bytes < target else 0
        longest = max(longest, run)
    assert longest <= MANY + math.log2(max(2, target)) + 1
