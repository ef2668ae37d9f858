"""Segments stay in memory while they exist, so one that has nothing to flush takes little (docs/performance.md)."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from tailrace.segmentstore.api import (
    CREATION_TIME,
    EVENT_COUNT,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    SegmentKind,
)
from tailrace.segmentstore.metadata.coverage import Coverage
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.read_index import Entry, ReadIndex
from tailrace.segmentstore.metadata.segment import Segment, shared_key
from tailrace.segmentstore.metadata.untiered_room import UntieredRoom

COUNT = 1000
USUAL = (CREATION_TIME, EVENT_COUNT, SCALE_POLICY_TYPE, SCALE_POLICY_RATE, ROLLOVER_SIZE)
BYTES_MAX = 1100
WITH_ATTRIBUTES_BYTES_MAX = 1700


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


def test_the_usual_attributes_of_a_segment_take_little_memory() -> None:
    """Their ids are one object for all segments, and one map holds them until there are others."""
    room = UntieredRoom()

    def with_attributes(number: int) -> Segment:
        segment = Segment(number, f"scope/stream{number}/0.#epoch.0", SegmentKind.STREAM, 0, 0, room)
        received = [(bytes(bytearray(each)), 1) for each in USUAL]
        values = [(shared_key(key), value) for key, value in received]
        segment.stage_attributes(values)
        segment.set_attributes(number, values)
        segment.release(key for key, _ in values)
        return segment

    assert taken_bytes(with_attributes) <= WITH_ATTRIBUTES_BYTES_MAX
    assert room.attribute_bytes == 0


@pytest.mark.parametrize("how", ["set", "set_last", "keep"])
def test_core_attributes_are_apart_from_others(how: str) -> None:
    segment = Segment(1, "scope/stream/0.#epoch.0", SegmentKind.STREAM, 0, 0)
    segment.set_attributes(1, [(key, 1) for key in USUAL])
    other = bytes(16)
    if how == "set":
        segment.set_attributes(2, [(EVENT_COUNT, 2), (other, 3)])
    elif how == "set_last":
        segment.set_last_attributes({EVENT_COUNT: 2, other: 3}, {EVENT_COUNT: 2, other: 2})
    else:
        segment.set_attributes(2, [(EVENT_COUNT, 2)])
        segment.keep(other, 3)
    core = {key: 2 if key == EVENT_COUNT else 1 for key in USUAL}
    assert segment.core == core
    assert segment.committed == {**core, other: 3}
    assert (other in segment.dirty, EVENT_COUNT in segment.dirty) == (how != "keep", False)
    assert segment.clean_values == (how == "keep")
    segment.set_attributes(3, [(EVENT_COUNT, 4), (other, 5)])
    assert (segment.core[EVENT_COUNT], segment.committed[EVENT_COUNT], segment.committed[other]) == (4, 4, 5)
    assert segment.properties().core_attributes == {**core, EVENT_COUNT: 4}


def test_segments_without_appends_share_nothing_that_one_of_them_fills() -> None:
    one, other = (Segment(number, f"s/t/{number}.#epoch.0", SegmentKind.STREAM, 0, 0) for number in range(2))
    one.pending.add(0, 10, 1, 1)
    assert (len(one.pending), len(other.pending)) == (1, 0)
    one.pending.remove_first(1)
    other.pending.extend(*other_columns(), 2)
    assert (len(one.pending), len(other.pending)) == (0, 1)
    assert [item.offset for item in other.pending] == [7]


def test_empty_coverages_and_read_indexes_share_nothing_that_one_of_them_fills() -> None:
    coverages = [Coverage() for _ in range(3)]
    coverages[0].add(ChunkRef("object", 0, 0, 10))
    assert [len(each) for each in coverages] == [1, 0, 0]
    assert len(coverages[0].truncate(10)) == 1
    coverages[1].add(ChunkRef("object", 0, 5, 10))
    assert [len(each) for each in coverages] == [0, 1, 0]
    assert len(coverages[1].clear()) == 1
    coverages[0].add(ChunkRef("object", 0, 10, 10))
    assert [len(each) for each in (*coverages, Coverage())] == [1, 0, 0, 0]

    indexes = [ReadIndex() for _ in range(3)]
    entry = Entry(indexes[0], 0, 10, 1)
    indexes[0].add(entry)
    assert [len(each) for each in indexes] == [1, 0, 0]
    indexes[0].remove(entry)
    indexes[1].add(entry)
    assert indexes[1].clear() == [entry]
    indexes[0].add(entry)
    assert [len(each) for each in (*indexes, ReadIndex())] == [1, 0, 0, 0]


def other_columns() -> tuple[bytes, bytes, bytes]:
    """The columns of one append, as a scan of the log returns them."""
    return (7).to_bytes(8, "little"), (5).to_bytes(4, "little"), (1).to_bytes(4, "little")
