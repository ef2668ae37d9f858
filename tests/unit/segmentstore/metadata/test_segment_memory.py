"""Segments stay in memory while they exist, so one that has nothing to flush takes little (docs/performance.md)."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.untiered_room import UntieredRoom

COUNT = 1000
BYTES_MAX = 1600


def taken_bytes(make: Callable[[int], Segment]) -> float:
    """What each of many segments takes."""
    make(0)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        made = [make(number) for number in range(COUNT)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        assert len(made) == COUNT
        return (after - before) / COUNT
    finally:
        tracemalloc.stop()


def test_new_and_flushed_segments_take_little_memory() -> None:
    room = UntieredRoom()

    def new(number: int) -> Segment:
        return Segment(number, f"scope/stream{number}/0.#epoch.0", SegmentKind.STREAM, 0, 0, room)

    def flushed(number: int) -> Segment:
        segment = new(number)
        segment.pending.add(0, 108, 1, 1)
        segment.dirty.put(bytes(16), 1)
        assert segment.dirty.between(bytes(16), b"\xff" * 16, 1) == [bytes(16)]
        segment.pending.remove_first(1)
        segment.dirty.settle(1)
        assert not segment.pending
        assert not segment.dirty
        return segment

    assert taken_bytes(new) <= BYTES_MAX
    assert taken_bytes(flushed) <= BYTES_MAX
    assert (room.append_bytes, room.attribute_bytes) == (0, 0)


def test_segments_without_appends_share_nothing_that_one_of_them_fills() -> None:
    one, other = (Segment(number, f"s/t/{number}.#epoch.0", SegmentKind.STREAM, 0, 0) for number in range(2))
    one.pending.add(0, 10, 1, 1)
    assert (len(one.pending), len(other.pending)) == (1, 0)
    one.pending.remove_first(1)
    other.pending.extend(*other_columns(), 2)
    assert (len(one.pending), len(other.pending)) == (0, 1)
    assert [item.offset for item in other.pending] == [7]


def other_columns() -> tuple[bytes, bytes, bytes]:
    """The columns of one append, as a scan of the log returns them."""
    return (7).to_bytes(8, "little"), (5).to_bytes(4, "little"), (1).to_bytes(4, "little")
