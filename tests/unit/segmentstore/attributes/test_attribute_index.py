"""The attribute index against a dict: lookups, ranges, removals, old roots."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, CorruptionError
from tailrace.segmentstore.attributes import IndexState, get_many, iterate, update

Batch = dict[int, int | None]
VALUES = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
BATCHES = st.lists(st.dictionaries(st.integers(0, 300), VALUES, max_size=60), max_size=12)


@contextmanager
def small_pages(length_bytes: int) -> Iterator[None]:
    """Pages of a few entries, so that trees get deep with little data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ATTRIBUTE_PAGE_MAX_BYTES", length_bytes)
        yield


def key_of(number: int, key_length: int = 16) -> bytes:
    return number.to_bytes(key_length, "big")


def changes_of(batch: Batch, key_length: int = 16) -> list[tuple[bytes, int | None]]:
    return [(key_of(number, key_length), value) for number, value in batch.items()]


def apply_to(model: dict[bytes, int], changes: list[tuple[bytes, int | None]]) -> None:
    for key, value in changes:
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


async def assert_same(state: IndexState, model: dict[bytes, int], reader, key_length: int = 16) -> None:
    everything = await iterate(state, bytes(key_length), b"\xff" * key_length, 10_000, reader)
    assert everything == sorted(model.items())
    keys = [key_of(number, key_length) for number in range(0, 301, 7)] + sorted(model)[:20]
    assert await get_many(state, keys, reader) == {key: model[key] for key in keys if key in model}


@given(batches=BATCHES, key_length=st.sampled_from([2, 16, 256]), page_entries=st.integers(3, 8))
@settings(max_examples=150)
def test_batches_behave_like_a_dict(segment_type, batches: list[Batch], key_length: int, page_entries: int) -> None:
    async def scenario() -> None:
        segment = segment_type(key_length)
        model: dict[bytes, int] = {}
        for batch in batches:
            changes = changes_of(batch, key_length)
            await segment.apply(changes)
            apply_to(model, changes)
            segment.state = IndexState(**dataclasses.asdict(segment.state))  # all that a restart keeps
            assert segment.state.live_bytes <= segment.index_bytes
            assert segment.state.is_empty == (not model)
        await assert_same(segment.state, model, segment, key_length)

    with small_pages(24 + page_entries * (key_length + 18)):
        asyncio.run(scenario())


@given(batches=BATCHES)
@settings(max_examples=60)
def test_old_roots_stay_readable_until_truncated(segment_type, batches: list[Batch]) -> None:
    async def scenario() -> None:
        segment = segment_type()
        model: dict[bytes, int] = {}
        history: list[tuple[IndexState, dict[bytes, int]]] = []
        for batch in batches:
            await segment.apply(changes_of(batch), truncate=False)
            apply_to(model, changes_of(batch))
            history.append((segment.state, dict(model)))
        for state, expected in history:
            segment.truncate(state.start_offset)  # what this root allows to forget, later roots do not need
            await assert_same(state, expected, segment)

    with small_pages(24 + 5 * 34):
        asyncio.run(scenario())


@given(
    numbers=st.sets(st.integers(0, 200), max_size=80),
    bounds=st.tuples(st.integers(0, 200), st.integers(0, 200)),
    limit=st.integers(0, 40),
)
@settings(max_examples=100)
def test_ranges_are_inclusive_sorted_and_limited(
    segment_type, numbers: set[int], bounds: tuple[int, int], limit: int
) -> None:
    async def scenario() -> None:
        segment = segment_type()
        await segment.apply((key_of(number), number) for number in numbers)
        result = await iterate(segment.state, key_of(bounds[0]), key_of(bounds[1]), limit, segment)
        expected = [(key_of(n), n) for n in sorted(numbers) if bounds[0] <= n <= bounds[1]]
        assert result == expected[:limit]

    with small_pages(24 + 4 * 34):
        asyncio.run(scenario())


async def test_range_reads_only_the_pages_it_needs(segment) -> None:
    await segment.apply((key_of(number), number) for number in range(20_000))
    segment.reads.clear()
    assert len(await iterate(segment.state, key_of(5_000), key_of(20_000), 100, segment)) == 100
    assert len(segment.reads) == 2


async def test_lookup_reads_one_page_per_level(segment) -> None:
    await segment.apply((key_of(number), number) for number in range(20_000))
    segment.reads.clear()
    keys = [key_of(number) for number in range(1000)]
    assert len(await get_many(segment.state, keys, segment)) == 1000
    assert len(segment.reads) == 2


async def test_empty_index_needs_no_page(segment) -> None:
    assert await get_many(segment.state, [key_of(1)], segment) == {}
    assert await iterate(segment.state, key_of(0), key_of(9), 10, segment) == []
    result = await segment.apply([(key_of(1), None)])
    assert (result.data, result.state.is_empty) == (b"", True)
    assert segment.reads == []


async def test_batch_without_changes_writes_nothing(segment) -> None:
    await segment.apply([(key_of(1), 1)])
    before = segment.state
    result = await segment.apply([])
    assert (result.data, result.state) == (b"", before)


async def test_removing_all_empties_the_tree(segment) -> None:
    await segment.apply((key_of(number), number) for number in range(5000))
    await segment.apply((key_of(number), None) for number in range(4999))
    assert await iterate(segment.state, key_of(0), key_of(9999), 10, segment) == [(key_of(4999), 4999)]
    assert segment.state.live_bytes == 24 + 24, "the root shrank to the only leaf"
    result = await segment.apply([(key_of(4999), None)])
    assert result.data == b""
    assert segment.state.is_empty
    assert segment.index_bytes == segment.state.live_bytes == 0
    await segment.apply([(key_of(7), 70)])
    assert await get_many(segment.state, [key_of(7)], segment) == {key_of(7): 70}


def test_root_shrinks_through_index_pages_of_one_entry(segment_type) -> None:
    async def scenario() -> None:
        segment = segment_type()
        await segment.apply((key_of(number), number) for number in range(60))
        await segment.apply((key_of(number), None) for number in range(58))
        segment.reads.clear()
        assert await get_many(segment.state, [key_of(58), key_of(59)], segment) == {key_of(58): 58, key_of(59): 59}
        assert len(segment.reads) == 1

    with small_pages(24 + 3 * 34):
        asyncio.run(scenario())


def test_small_neighbours_become_one_page(segment_type) -> None:
    async def scenario() -> None:
        segment = segment_type()
        await segment.apply((key_of(number), number) for number in range(100))
        await segment.apply((key_of(number), None) for number in range(100) if number % 10)
        segment.reads.clear()
        assert len(await iterate(segment.state, key_of(0), key_of(100), 100, segment)) == 10
        assert len(segment.reads) <= 6

    with small_pages(24 + 10 * 24):
        asyncio.run(scenario())


@pytest.mark.parametrize("first", [0, 10, 20])
def test_small_pages_with_another_between_them_stay_apart(segment_type, first: int) -> None:
    async def scenario() -> None:
        segment = segment_type()
        await segment.apply((key_of(number), number) for number in range(100))
        touched = [*range(first, first + 10), *range(first + 20, first + 30)]
        removed = {number for number in touched if number % 10}
        await segment.apply((key_of(number), None) for number in removed)
        model = {key_of(number): number for number in range(100) if number not in removed}
        await assert_same(segment.state, model, segment)

    with small_pages(24 + 10 * 24):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    "changes",
    [[(key_of(2), 1), (key_of(1), 1)], [(key_of(1), 1), (key_of(1), 2)], [(b"short", 1)], [(key_of(1, 17), 1)]],
)
async def test_unsorted_repeated_or_odd_keys_are_refused(segment, changes: list[tuple[bytes, int | None]]) -> None:
    with pytest.raises(BadRequestError, match="attribute"):
        await update(segment.state, changes, segment)


async def test_lookup_with_wrong_key_length_is_refused(segment) -> None:
    with pytest.raises(BadRequestError, match="attribute key"):
        await get_many(segment.state, [b"x"], segment)
    with pytest.raises(BadRequestError, match="attribute key"):
        await iterate(segment.state, b"", key_of(1), 1, segment)


@pytest.mark.parametrize("position", [0, 40, -1])
async def test_damage_is_reported_by_every_path(segment, position: int) -> None:
    await segment.apply([(key_of(1), 1), (key_of(2), 2)])
    segment.data[position] ^= 0x10
    for call in (
        get_many(segment.state, [key_of(1)], segment),
        iterate(segment.state, key_of(0), key_of(9), 9, segment),
        update(segment.state, [(key_of(1), 5)], segment),
    ):
        with pytest.raises(CorruptionError, match="attributes of test/segment, attribute page at 0"):
            await call
