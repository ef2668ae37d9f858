"""Records that never change are kept within a bound of bytes, which their memory does not exceed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.controller.metadata.model import Epoch, StreamSegment
from tailrace.controller.metadata.record_cache import Cacheable, RecordCache, memory_bytes
from tailrace.controller.metadata.records import RetentionCut, SealedRecord, decode, encode

FIRST_ID = 1 << 40


def epoch(segments: int) -> Epoch:
    ids = (FIRST_ID + number for number in range(segments))
    made = (StreamSegment(each, at / segments, (at + 1) / segments) for at, each in enumerate(ids))
    return Epoch(segments, 1_700_000_000_000, tuple(made))


def sealed(segments: int) -> SealedRecord:
    sizes = {FIRST_ID + number: 10**12 + number for number in range(segments)}
    return SealedRecord(segments, 1_700_000_000_000, sizes, 10**15)


def test_the_record_that_was_used_last_stays() -> None:
    cache = RecordCache(2 * memory_bytes(epoch(1)))
    cache.put(("t", b"a"), epoch(1))
    cache.put(("t", b"b"), epoch(1))
    assert cache.get(("t", b"a")) is not None
    cache.put(("t", b"c"), epoch(1))
    assert [cache.get(("t", key)) is not None for key in (b"a", b"b", b"c")] == [True, False, True]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=60))
def test_what_is_kept_stays_within_the_bound(puts: list[tuple[int, int]]) -> None:
    bound = 3 * memory_bytes(epoch(20))
    cache, latest = RecordCache(bound), dict[tuple[str, bytes], Cacheable]()
    for place, segments in puts:
        key = ("t", bytes((place,)))
        latest[key] = epoch(segments)
        cache.put(key, latest[key])
        kept = [record for each in latest if (record := cache.get(each)) is not None]
        assert all(cache.get(each) in (None, record) for each, record in latest.items())
        assert cache.used_bytes == sum(map(memory_bytes, kept)) <= bound


def test_a_record_beyond_the_bound_is_not_kept() -> None:
    cache = RecordCache(memory_bytes(epoch(10)))
    cache.put(("t", b"a"), epoch(10))
    cache.put(("t", b"b"), epoch(11))
    assert cache.get(("t", b"a")) is not None
    assert cache.get(("t", b"b")) is None


def cut(segments: int) -> RetentionCut:
    return RetentionCut({FIRST_ID + number: 10**12 + number for number in range(segments)})


@pytest.mark.parametrize("make", [epoch, sealed, cut])
@pytest.mark.parametrize("segments", [1, 10, 1000])
def test_the_estimate_is_above_what_a_record_takes(make: Callable[[int], Cacheable], segments: int) -> None:
    record, count = make(segments), 50
    stored = encode(record)
    cache = RecordCache(limits.IMMUTABLE_RECORDS_CACHED_MAX_BYTES)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            place = f"_system/_tables/s/{number}", b"key of a stream/%d" % number
            cache.put(place, decode(type(record), stored, "here"))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= cache.used_bytes <= 4 * taken
