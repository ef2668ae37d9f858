"""Which chunks are written again: few references stay, and what that costs is bounded (docs/design.md#tier-2)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.limits import KIB, MIB
from tailrace.segmentstore.background.compaction_policy import choose
from tailrace.segmentstore.metadata.coverage import Coverage
from tailrace.segmentstore.metadata.fields import ChunkRef

LENGTH = st.one_of(st.integers(1, 200), st.integers(1, 64 * KIB), st.integers(MIB - 100, MIB + 100), st.just(8 * MIB))


class Flushes:
    """A segment's references as flushes and compactions leave them, and what was written."""

    def __init__(self, chunk_max_bytes: int = limits.FLUSH_OBJECT_MAX_BYTES) -> None:
        self.chunk_max_bytes = chunk_max_bytes
        self.small_max_bytes = chunk_max_bytes // 8
        self.chunks = Coverage()
        self.end = 0
        self.flushes = 0
        self.flushed_bytes = 0
        self.rewritten_bytes = 0
        self.rewritten_times: dict[int, int] = {}

    def flush(self, length: int) -> None:
        """A chunk at the end; then whatever is worth it is compacted."""
        self.chunks.add(ChunkRef("flush", 0, self.end, length))
        self.rewritten_times[self.end] = 0
        self.end += length
        self.flushes += 1
        self.flushed_bytes += length
        while refs := choose(list(self.chunks), self.chunk_max_bytes):
            self.compact(list(refs))

    def compact(self, refs: list[ChunkRef]) -> None:
        start, end = refs[0].segment_offset, refs[-1].end
        assert 2 <= len(refs) <= limits.COMPACT_RUN_MAX
        assert end - start <= self.chunk_max_bytes
        assert all(ref.length < self.small_max_bytes for ref in refs)
        assert self.chunks.replace(refs, [ChunkRef("compacted", 0, start, end - start)])
        self.rewritten_bytes += end - start
        for begin in self.rewritten_times:
            if start <= begin < end:
                self.rewritten_times[begin] += 1

    def most_small_in_a_row(self) -> int:
        most = count = 0
        for ref in self.chunks:
            count = count + 1 if ref.length < self.small_max_bytes else 0
            most = max(most, count)
        return most


def test_a_slow_stream_keeps_few_references() -> None:
    """10 KiB every 30 s for a week: each byte is written again at most four times, and few references stay."""
    state = Flushes()
    for _ in range(7 * 2880):
        state.flush(10 * KIB)
        assert len(state.chunks) <= 2 * limits.COMPACT_RUN_MIN + state.flushed_bytes // MIB
    assert len(state.chunks) < 150
    assert max(state.rewritten_times.values()) <= 4
    assert state.rewritten_bytes <= 4 * state.flushed_bytes


@settings(max_examples=40, deadline=None)
@given(st.lists(LENGTH, min_size=1, max_size=25), st.integers(1, 30), st.sampled_from([MIB, 3 * MIB, 8 * MIB]))
def test_references_and_cost_are_bounded_whatever_is_flushed(
    lengths: list[int], repeats: int, chunk_max_bytes: int
) -> None:
    state = Flushes(chunk_max_bytes)
    for _ in range(repeats):
        for length in lengths:
            state.flush(length)
    assert state.most_small_in_a_row() < limits.COMPACT_RUN_FORCED
    assert state.rewritten_bytes <= 11 * state.flushed_bytes + 140 * KIB * state.flushes


def ruler(levels: int) -> list[int]:
    """Lengths of which no run is four times its longest: 1, 3, 1, 9, 1, 3, 1, 27, …"""
    if levels == 0:
        return []
    inner = ruler(levels - 1)
    return [*inner, 3 ** (levels - 1), *inner]


@pytest.mark.parametrize("chunk_max_bytes", [MIB, 8 * MIB])
def test_no_order_of_lengths_escapes(chunk_max_bytes: int) -> None:
    state = Flushes(chunk_max_bytes)
    for length in ruler(10):
        state.flush(length)
    assert state.flushes == 1023
    assert state.most_small_in_a_row() < limits.COMPACT_RUN_FORCED


def test_gaps_and_large_chunks_end_a_run() -> None:
    small = [ChunkRef("x", 0, 100 * number, 100) for number in range(limits.COMPACT_RUN_MIN)]
    assert list(choose(small, limits.FLUSH_OBJECT_MAX_BYTES)) == small
    assert not choose(small[1:], limits.FLUSH_OBJECT_MAX_BYTES)
    holes = [ref.shifted(1) if number > 3 else ref for number, ref in enumerate(small)]
    assert not choose(holes, limits.FLUSH_OBJECT_MAX_BYTES)
    large = ChunkRef("large", 0, small[-1].end, limits.COMPACT_SMALL_MAX_BYTES)
    behind = [ref.shifted(large.end) for ref in small]
    assert list(choose([*small[1:], large, *behind], limits.FLUSH_OBJECT_MAX_BYTES)) == behind


def test_an_object_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLUSH_OBJECT_MAX_BYTES", 100 * limits.COMPACT_RUN_MIN)
    small = [ChunkRef("x", 0, 100 * number, 100) for number in range(3 * limits.COMPACT_RUN_MIN)]
    assert list(choose(small, limits.FLUSH_OBJECT_MAX_BYTES)) == small[: limits.COMPACT_RUN_MIN]
