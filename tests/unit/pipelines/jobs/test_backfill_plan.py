"""How a backfill divides its input into batches (docs/spark-jobs.md#backfill)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.errors import BadRequestError
from tailrace.pipelines.jobs.backfill_plan import (
    INCARNATION,
    Batch,
    InputFile,
    Plan,
    batches_of_files,
    batches_of_ranges,
)

SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=20)


def _files(sizes: list[int], lowest: list[str | None] | None = None) -> list[InputFile]:
    return [
        InputFile(f"f{index:03d}", size, "s", None if lowest is None else lowest[index])
        for index, size in enumerate(sizes)
    ]


@given(SIZES, st.integers(1, 100))
def test_each_file_is_in_one_batch_in_order_and_batches_are_bounded(sizes: list[int], most: int) -> None:
    files = _files(sizes)
    batches = batches_of_files(files[::-1], most)
    assert [path for batch in batches for path in batch.files] == [each.path for each in files]
    size_of = {each.path: each.size for each in files}
    assert all(len(each.files) == 1 or sum(size_of[path] for path in each.files) <= most for each in batches)
    assert all(each.files for each in batches)


@given(SIZES, st.integers(1, 100), st.data())
def test_ranges_follow_each_other_without_a_gap(sizes: list[int], most: int, data: st.DataObject) -> None:
    values = sorted(data.draw(st.lists(st.integers(100, 110), min_size=len(sizes), max_size=len(sizes))))
    nulls = data.draw(st.integers(0, len(sizes)))
    lowest = [None if index < nulls else str(value) for index, value in enumerate(values)]
    batches = batches_of_ranges(_files(sizes, lowest), most)
    assert batches[0].start is None
    assert batches[-1].end is None
    bounds = [each.start for each in batches[1:]]
    assert bounds == [each.end for each in batches[:-1]]
    assert all(bound in lowest and bound is not None for bound in bounds)
    assert bounds == sorted(set(bounds), key=str)
    assert not any(each.files for each in batches)


def test_files_that_follow_each_other_make_ranges_of_the_size() -> None:
    files = _files([40, 40, 40, 40, 90, 10], ["a", "b", "c", "d", "e", "f"])
    assert [each.start for each in batches_of_ranges(files, 80)] == [None, "c", "e", "f"]


def test_files_that_begin_at_one_value_stay_together() -> None:
    files = _files([40, 40, 40, 40], ["a", "a", "a", "b"])
    assert batches_of_ranges(files, 40) == (Batch((), None, "b"), Batch((), "b", None))


def test_another_input_or_another_order_is_not_that_of_the_checkpoint() -> None:
    files = _files([1, 2])
    plan = Plan("q", {"order by": "n"}, {each.path: each.state for each in files})
    plan.check({"order by": "n"}, files)
    with pytest.raises(BadRequestError, match="is of a backfill with order by 'n', not 'm'"):
        plan.check({"order by": "m"}, files)
    with pytest.raises(BadRequestError, match="f002 is new"):
        plan.check({}, _files([1, 2, 3]))
    with pytest.raises(BadRequestError, match="f001 is gone"):
        plan.check({}, files[:1])
    with pytest.raises(BadRequestError, match="f001 has changed"):
        plan.check({}, [files[0], files[1]._replace(state="t")])


def test_a_stream_that_was_created_again_is_not_that_of_the_checkpoint() -> None:
    """A plan of an older version does not say which one it was."""
    files = _files([1])
    states = {each.path: each.state for each in files}
    Plan("q", {"stream": "s/t"}, states).check({"stream": "s/t", INCARNATION: "4"}, files)
    plan = Plan("q", {"stream": "s/t", INCARNATION: "3"}, states)
    plan.check({"stream": "s/t", INCARNATION: "3"}, files)
    with pytest.raises(BadRequestError, match="stream s/t was deleted and created again since the backfill began"):
        plan.check({"stream": "s/t", INCARNATION: "4"}, files)
    with pytest.raises(BadRequestError, match="is of a backfill with stream 's/t', not 's/u'"):
        plan.check({"stream": "s/u", INCARNATION: "4"}, files)
