"""Coverage and read index against a model that keeps one flag a byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.segmentstore.coverage import Coverage
from tailrace.segmentstore.fields import ChunkRef
from tailrace.segmentstore.readindex import Entry, ReadIndex

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15)), max_size=12)
SPAN = 90


def build(ranges: list[tuple[int, int]]) -> tuple[Coverage, ReadIndex, list[int]]:
    """Ranges that overlap earlier ones are refused by both."""
    coverage, index, model = Coverage(), ReadIndex(), [-1] * SPAN
    for number, (start, length) in enumerate(ranges):
        ref = ChunkRef(str(number), 0, start, length)
        entry = Entry(index, start, length, number)
        if any(model[start + at] >= 0 for at in range(length)):
            assert coverage.overlaps(start, start + length)
            with pytest.raises(ValueError, match="overlaps"):
                coverage.add(ref)
            with pytest.raises(ValueError, match="overlaps"):
                index.add(entry)
            continue
        coverage.add(ref)
        index.add(entry)
        model[start : start + length] = [number] * length
    return coverage, index, model


@given(RANGES, st.integers(0, SPAN), st.integers(0, SPAN))
def test_coverage_equals_the_model(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    coverage, _, model = build(ranges)
    covered = {at for at in range(start, end) if model[at] >= 0}
    assert coverage.covers(start, end) == (len(covered) == max(end - start, 0))
    gaps = list(coverage.gaps(start, end))
    assert {at for low, high in gaps for at in range(low, high)} == set(range(start, end)) - covered
    assert all(model[low - 1] >= 0 for low, _ in gaps if low > start)
    for at in range(SPAN):
        found = coverage.find(at)
        assert (found.object_key if found else "-1") == str(model[at])


@given(RANGES, st.integers(0, SPAN))
def test_truncation_drops_what_lies_wholly_below(ranges: list[tuple[int, int]], start: int) -> None:
    coverage, _, _ = build(ranges)
    before = list(coverage)
    dropped = coverage.truncate(start)
    assert dropped == [ref for ref in before if ref.end <= start]
    assert list(coverage) == [ref for ref in before if ref.end > start]


@given(RANGES, st.integers(0, SPAN), st.integers(1, SPAN))
def test_the_read_index_equals_the_model(ranges: list[tuple[int, int]], offset: int, length: int) -> None:
    _, index, model = build(ranges)
    for at in range(SPAN):
        found = index.find(at)
        assert (found.address if found else -1) == model[at]
    end = offset
    while end < min(offset + length, SPAN) and model[end] >= 0:
        end += 1
    run = index.run(offset, length)
    assert [entry.address for entry in run] == list(dict.fromkeys(model[offset:end]))
    gap = index.first_gap(offset, min(offset + length, SPAN))
    holes = [at for at in range(offset, min(offset + length, SPAN)) if model[at] < 0]
    assert (gap[0] if gap else None) == (holes[0] if holes else None)
    touching = {number for number in model[offset : offset + length] if number >= 0}
    assert {entry.address for entry in index.between(offset, offset + length)} == touching


@given(RANGES, st.data())
def test_removed_entries_are_gone(ranges: list[tuple[int, int]], data: st.DataObject) -> None:
    _, index, model = build(ranges)
    entries = list(index)
    if not entries:
        return
    victim = data.draw(st.sampled_from(entries))
    index.remove(victim)
    assert list(index) == [entry for entry in entries if entry is not victim]
    assert index.find(victim.offset) is None
    assert model[victim.offset] == victim.address
    with pytest.raises(KeyError):
        index.remove(victim)
