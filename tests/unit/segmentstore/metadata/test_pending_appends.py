"""The queue of appends that Tier 2 lacks, against a list."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from itertools import accumulate, pairwise
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.segmentstore.metadata import pending_appends
from tailrace.segmentstore.metadata.pending_appends import PendingAppend, PendingAppends

Change = tuple[str, int, int]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "run", "run", "gap", "remove", "tiered"]), st.integers(1, 50), st.integers(0, 9)
    ),
    max_size=60,
)


def runs_of(
    model: list[PendingAppend], max_bytes: int, max_runs: int, boundary: int | None
) -> list[list[PendingAppend]]:
    """What `PendingAppends.runs` is to return, one append at a time."""
    runs: list[list[PendingAppend]] = []
    size = 0
    for item in model:
        new = not runs or item.offset in {boundary} or item.offset != runs[-1][-1].end
        if new or size + item.length > max_bytes:
            if len(runs) == max_runs:
                break
            runs.append([])
            size = 0
        runs[-1].append(item)
        size += item.length
    return runs


def run_of(offset: int, count: int, frame: int) -> list[PendingAppend]:
    """So many appends of one frame that follow each other."""
    lengths = [1 + number % 3 for number in range(count)]
    spans = enumerate(pairwise(accumulate(lengths, initial=offset)))
    return [PendingAppend(begin, end - begin, number, frame) for number, (begin, end) in spans]


def columns_of(run: list[PendingAppend]) -> tuple[bytes, bytes, bytes]:
    """Offsets, lengths and checksums as the kernel returns them."""
    offsets, lengths, crcs, _ = zip(*run, strict=True)
    return array("q", offsets).tobytes(), array("I", lengths).tobytes(), array("I", crcs).tobytes()


def covered_to(model: list[PendingAppend], offset: int) -> int:
    """What `PendingAppends.covered_to` is to return."""
    for item in model:
        if item.offset <= offset < item.end:
            offset = item.end
    return offset


def _covered(begin: int, end: int) -> bool:
    """Whether Tier 2 holds an append that lies on an edge of what it was just given."""
    return (begin + end) % 3 > 0


def _is_tiered(item: PendingAppend, start: int, end: int) -> bool:
    if item.end <= start or item.offset >= end:
        return False
    return (start <= item.offset and item.end <= end) or _covered(item.offset, item.end)


@given(
    changes=CHANGES,
    max_bytes=st.integers(1, 200),
    max_runs=st.integers(1, 4),
    boundary=st.one_of(st.none(), st.integers(0, 300)),
)
def test_like_a_list(changes: list[Change], max_bytes: int, max_runs: int, boundary: int | None) -> None:
    pending, model, end = PendingAppends(), list[PendingAppend](), 0
    for number, (change, length, other) in enumerate(changes):
        if change in {"add", "gap"}:
            end += other if change == "gap" else 0
            item = PendingAppend(end, length, 4_000_000_000 + number, number - (other if other > 7 else 0))
            model.append(item)
            pending.add(*item)
            end = item.end
        elif change == "run":
            run = run_of(end + (other if other > 7 else 0), length, number)
            model += run
            pending.extend(*columns_of(run), number)
            end = run[-1].end
        elif change == "remove":
            count = min(length, len(model))
            del model[:count]
            pending.remove_first(count)
        else:
            first = end * other // 10
            model = [item for item in model if not _is_tiered(item, first, first + length)]
            pending.remove_tiered(first, first + length, _covered)
        assert list(pending) == model
        assert len(pending) == len(model)
        assert pending.length_bytes == sum(item.length for item in model)
        if model:
            assert (pending.start, pending.end) == (model[0].offset, model[-1].end)
            assert pending.oldest_frame == min(item.frame_sequence for item in model)
        runs = pending.runs(max_bytes, max_runs, boundary)
        assert [list(run) for run in runs] == runs_of(model, max_bytes, max_runs, boundary)
        assert all(run.length_bytes == sum(item.length for item in run) for run in runs)
        assert all(run.oldest_frame == min(item.frame_sequence for item in run) for run in runs)
        at = boundary or 0
        for begin in {at, *(item.offset for item in model[:3]), end - max_bytes}:
            assert pending.covered_to(begin) == covered_to(model, begin)
        assert pending.count_before(at) == sum(item.offset < at for item in model)
        assert pending.splits(at) == any(item.offset < at < item.end for item in model)
        found = list(pending.overlapping(at, at + max_bytes))
        assert found == [item for item in model if item.end > at and item.offset < at + max_bytes]


def test_a_small_append_takes_few_bytes() -> None:
    """Two hundred and fifty bytes for each once raised the memory of a server by 300 MiB while Tier 2 was away."""
    pending, count = PendingAppends(), 100_000
    for number in range(count):
        pending.add(number * 100, 100, number, number // 500)
    columns = (pending._offsets, pending._lengths, pending._crcs, pending._frames)
    assert sum(map(sys.getsizeof, columns)) < 30 * count
    for _ in range(count // 1000):
        pending.remove_first(999)
    assert sum(map(len, columns)) <= 2 * 4 * len(pending) + 4 * 4096, "removed ones are given back"


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of the module a call runs."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line" and frame.f_code.co_filename == pending_appends.__file__
        return count

    tracer = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(tracer)
    return lines


def test_no_look_at_each_append_is_needed() -> None:
    """The event loop waits while a recovery looks for missing bytes, and while a flush divides what is pending."""
    pending, end = PendingAppends(), 0
    for frame in range(100):
        pending.add(end, 7, 0, frame)  # spans two frames
        run = run_of(end + 7, 1000, frame)
        pending.extend(*columns_of(run), frame)
        end = run[-1].end
    assert pending.covered_to(0) == pending.end == end
    assert lines_run(lambda: pending.covered_to(0)) < 100
    assert [len(run) for run in pending.runs(end, 8)] == [len(pending)]
    assert lines_run(lambda: pending.runs(end // 8, 8)) < 2000
