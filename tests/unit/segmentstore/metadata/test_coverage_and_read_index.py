"""Coverage and read index against a model that keeps one flag a byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.segmentstore.metadata.coverage import Coverage
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.read_index import Entry, ReadIndex

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


def tiles(lengths: list[int], start: int, key: str) -> list[ChunkRef]:
    """References of these lengths, one after the other."""
    refs = []
    for number, length in enumerate(lengths):
        refs.append(ChunkRef(f"{key}{number}", 0, start, length))
        start += length
    return refs


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_references_are_replaced_only_if_all_of_them_are_there(lengths: list[int], data: st.DataObject) -> None:
    refs = tiles(lengths, 10, "old")
    first = data.draw(st.integers(0, len(refs) - 1))
    last = data.draw(st.integers(first, len(refs) - 1))
    old = refs[first : last + 1]
    new = tiles([old[-1].end - old[0].segment_offset], old[0].segment_offset, "new")
    gone = data.draw(st.none() | st.integers(0, len(refs) - 1))
    changed = data.draw(st.none() | st.integers(0, len(refs) - 1))
    present = [
        ChunkRef("other", 0, ref.segment_offset, ref.length) if number == changed else ref
        for number, ref in enumerate(refs)
        if number != gone
    ]
    coverage = Coverage(present)
    intact = all(ref in present for ref in old)
    assert coverage.holds(old) == intact
    assert coverage.replace(old, new) == intact
    kept = [ref for ref in present if ref not in old]
    assert list(coverage) == (sorted([*kept, *new], key=lambda ref: ref.segment_offset) if intact else present)
    for at in range(10, refs[-1].end):
        assert (coverage.find(at) is not None) == any(ref.segment_offset <= at < ref.end for ref in present)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([], []),
        ([(0, 4), (4, 4)], [(0, 7)]),
        ([(0, 4), (4, 4)], [(1, 7)]),
        ([(0, 4), (5, 4)], [(0, 9)]),
        ([(0, 4), (4, 4)], [(0, 8), (8, 0)]),
    ],
)
def test_a_replacement_over_another_range_is_refused(old: list[tuple[int, int]], new: list[tuple[int, int]]) -> None:
    coverage = Coverage([ChunkRef("x", 0, start, length) for start, length in old])
    with pytest.raises(ValueError, match="reference"):
        coverage.replace(list(coverage), [ChunkRef("y", 0, start, length) for start, length in new])


@given(RANGES, st.integers(0, SPAN), st.integers(1, 6))
def test_references_that_follow_an_offset(ranges: list[tuple[int, int]], offset: int, count: int) -> None:
    coverage, _, _ = build(ranges)
    assert coverage.following(offset, count) == [ref for ref in coverage if ref.end > offset][:count]
    below = [ref.segment_offset for ref in coverage if ref.segment_offset < offset]
    assert coverage.before(offset, count) == (below[-count] if len(below) >= count else 0)


@given(RANGES, RANGES)
def test_where_references_were_added(first: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    coverage, _, _ = build(first)
    assert coverage.take_changed() == min((ref.segment_offset for ref in coverage), default=None)
    assert coverage.take_changed() is None
    added = []
    for start, length in more:
        if not coverage.overlaps(start, start + length):
            coverage.add(ChunkRef("more", 0, start, length))
            added.append(start)
    assert coverage.take_changed() == min(added, default=None)
    assert Coverage(list(coverage)).take_changed() == min((ref.segment_offset for ref in coverage), default=None)


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
