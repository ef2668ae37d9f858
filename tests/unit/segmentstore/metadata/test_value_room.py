"""Attribute values that indexes hold, too: one bound for all segments of a worker."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.metadata.segment import Damage, Segment
from tailrace.segmentstore.metadata.value_room import VALUE_BYTES, ValueRoom

STEPS = ("load", "flush", "change", "gone", "hold", "release")


def key_of(number: int) -> bytes:
    return b"\x01" + number.to_bytes(15, "big")


def segment_with(name: str, clean: int, dirty: int = 0, core: int = 1) -> Segment:
    """A segment whose index holds the first values, and lacks the later ones."""
    segment = Segment(1, name, SegmentKind.STREAM, 16, 0)
    segment.set_attributes(1, [(key_of(number), number) for number in range(clean)])
    segment.dirty.settle(1)
    segment.set_attributes(2, [(key_of(number), number) for number in range(clean, clean + dirty)])
    core_ids = [b"\x80" + bytes(7) + number.to_bytes(8, "big") for number in range(core)]
    segment.set_attributes(2, [(key, 0) for key in core_ids])
    segment.reset_staged()
    return segment


def room_for(values: int) -> ValueRoom:
    return ValueRoom(values * VALUE_BYTES)


def test_core_attributes_and_those_the_index_lacks_do_not_count() -> None:
    segment = segment_with("a", clean=5, dirty=3, core=2)
    assert len(segment.core) == 2
    room = room_for(100)
    room.count(segment)
    assert room.used_bytes == 5 * VALUE_BYTES
    room.count(segment)
    assert room.used_bytes == 5 * VALUE_BYTES, "once"
    room.forget(segment)
    room.forget(segment)
    assert room.used_bytes == 0


def test_the_segments_counted_least_recently_lose_their_values_first() -> None:
    room = room_for(20)
    first, second, third = (segment_with(name, clean=8, dirty=2) for name in "abc")
    room.count(first)
    room.count(second)
    room.count(first)
    room.count(third)
    assert [segment.clean_values for segment in (first, second, third)] == [8, 4, 8]
    assert room.used_bytes == room.max_bytes
    assert [key in second.latest for key in map(key_of, range(8))] == [False] * 4 + [True] * 4
    room.count(segment_with("d", clean=20))
    assert [segment.clean_values for segment in (first, second, third)] == [0, 0, 0]
    assert all(len(segment.dirty) == 2 and key_of(9) in segment.latest for segment in (first, second, third))
    assert room.used_bytes == room.max_bytes


def test_a_segment_larger_than_the_room_loses_its_own_values() -> None:
    room = room_for(10)
    segment = segment_with("a", clean=50)
    room.count(segment)
    assert segment.clean_values == 10


def test_the_search_looks_once_at_each_segment_where_all_values_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    room, searched = room_for(10), Counter[str]()
    evict = Segment.evict_values

    def count(segment: Segment, wanted: int, scan_max: int) -> tuple[int, int]:
        searched[segment.name] += 1
        return evict(segment, wanted, scan_max)

    segments = [segment_with(name, clean=10) for name in "abc"]
    for segment in segments:
        segment.hold(map(key_of, range(10)))
        room.count(segment)
    monkeypatch.setattr(Segment, "evict_values", count)
    room.count(segments[0])
    assert searched == {"a": 1, "b": 1, "c": 1}
    assert room.used_bytes == 30 * VALUE_BYTES
    searched.clear()
    segments[2].release(map(key_of, range(4)))
    room.count(segments[0])
    assert segments[2].clean_values == 6, "found behind segments without any"
    assert max(searched.values()) <= 3, "twice around, and c once more for the rest of it"


def test_segments_that_have_no_values_any_more_do_not_end_the_search() -> None:
    room = room_for(10)
    changed = [segment_with(name, clean=4) for name in "ab"]
    for segment in changed:
        room.count(segment)
        segment.set_attributes(9, [(key_of(number), 1) for number in range(4)])
        assert segment.clean_values == 0, "a flush will count it again"
    last = segment_with("c", clean=25)
    room.count(last)
    assert last.clean_values == 10
    assert room.used_bytes == room.max_bytes


def test_values_in_use_stay_and_others_leave_instead() -> None:
    room = room_for(10)
    busy, other = segment_with("busy", clean=10), segment_with("other", clean=10)
    busy.hold(map(key_of, range(10)))
    room.count(busy)
    room.count(other)
    assert (busy.clean_values, other.clean_values) == (10, 0)
    busy.release(map(key_of, range(10)))
    room.count(segment_with("third", clean=4))
    assert busy.clean_values == 6


def test_a_full_room_of_values_in_use_ends_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ATTRIBUTES_EVICTION_SCAN_MAX", 100)
    room = room_for(10)
    segments = [segment_with(f"s{number}", clean=30) for number in range(10)]
    for segment in segments:
        segment.hold(map(key_of, range(30)))
        room.count(segment)
    assert room.used_bytes == 300 * VALUE_BYTES
    for segment in segments:
        segment.release(map(key_of, range(30)))
        room.count(segment)
    assert room.used_bytes == room.max_bytes


def test_segments_that_are_gone_or_damaged_are_not_counted() -> None:
    room = room_for(10)
    gone, damaged = segment_with("gone", clean=5), segment_with("damaged", clean=5)
    room.count(gone)
    room.count(damaged)
    gone.staged_gone = True
    damaged.damage = Damage("page 5", "checksum", 0.0)
    room.count(gone)
    room.count(damaged)
    assert room.used_bytes == 0
    room.count(segment_with("other", clean=20))
    assert (gone.clean_values, damaged.clean_values) == (5, 5)


@given(
    st.integers(0, 60),
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(STEPS),
            st.integers(0, 40),
        ),
        max_size=60,
    ),
)
@example(2, [(0, "load", 0), (0, "change", 0), (1, "load", 0)])
def test_the_count_is_never_below_what_is_there_and_the_bound_holds(
    values: int, steps: list[tuple[int, str, int]]
) -> None:
    room = room_for(values)
    segments = [segment_with(str(number), 0) for number in range(5)]
    held: list[list[list[bytes]]] = [[] for _ in segments]
    for sequence, (which, step, number) in enumerate(steps, 10):
        segment, keys = segments[which], [key_of(each) for each in range(number, number + 3)]
        if segment.staged_gone:
            continue
        if step == "load":
            for key in keys:
                if key not in segment.latest:
                    segment.keep(key, 7)
            room.count(segment)
        elif step == "flush":
            segment.dirty.settle(sequence)
            room.count(segment)
        elif step == "change":
            segment.stage_attributes([(key, sequence) for key in keys])
            segment.set_attributes(sequence, [(key, sequence) for key in keys])
            segment.release(keys)
        elif step == "gone":
            segment.staged_gone = True
            room.forget(segment)
        elif step == "hold":
            segment.hold(keys)
            held[which].append(keys)
        elif held[which]:
            segment.release(held[which].pop())
        live = [each for each in segments if not each.staged_gone]
        there = sum(each.clean_values for each in live) * VALUE_BYTES
        in_use = sum(len(each.held) for each in live) * VALUE_BYTES
        assert there <= room.used_bytes
        if step in ("load", "flush"):
            assert room.used_bytes <= room.max_bytes + in_use
        for each in live:
            assert each.latest == each.committed
            assert all(key in each.latest for key in map(key_of, range(43)) if key in each.dirty)
