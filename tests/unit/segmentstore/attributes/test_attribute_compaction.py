"""Progressive compaction: what a batch writes, and how large the index grows ("Segment Attributes")."""

from __future__ import annotations

import asyncio
import random

import pytest

from tailrace.common import limits
from tailrace.segmentstore.attributes import get_many, iterate

LEAF_ENTRIES = 1364


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def fill(segment, count: int, batch: int) -> None:
    for first in range(0, count, batch):
        await segment.apply((key_of(number), number) for number in range(first, min(count, first + batch)))


async def test_sorted_inserts_leave_full_pages(segment) -> None:
    await fill(segment, 20 * LEAF_ENTRIES, 100)
    assert segment.state.live_bytes <= 20 * LEAF_ENTRIES * 24 + 20 * 34 + 22 * 24


async def test_random_inserts_leave_pages_half_full_at_least(segment) -> None:
    numbers = random.Random(3).sample(range(10**9), 40_000)
    for first in range(0, len(numbers), 1000):
        await segment.apply((key_of(number), number) for number in numbers[first : first + 1000])
    assert segment.state.live_bytes <= 2 * len(numbers) * 24


async def test_batch_moves_the_page_with_the_lowest_offset_with_its_ancestors(segment) -> None:
    await segment.apply((key_of(number), number) for number in range(3 * LEAF_ENTRIES))
    lowest = segment.state.start_offset
    page_bytes = LEAF_ENTRIES * 24 + 24
    result = await segment.apply([(key_of(3 * LEAF_ENTRIES - 1), -1)])
    assert len(result.pages) == 3, "the changed leaf, the moved leaf, the root"
    assert segment.state.start_offset == lowest + page_bytes
    result = await segment.apply([(key_of(LEAF_ENTRIES), -1)])
    assert len(result.pages) == 2, "the changed leaf is itself the lowest page"
    assert segment.state.start_offset > lowest + 2 * page_bytes
    assert len(await iterate(segment.state, key_of(0), key_of(10**6), 10**6, segment)) == 3 * LEAF_ENTRIES


async def test_finding_the_lowest_page_reads_only_what_is_rewritten(segment) -> None:
    await segment.apply((key_of(number), number) for number in range(30 * LEAF_ENTRIES))
    for number in random.Random(1).sample(range(30 * LEAF_ENTRIES), 50):
        segment.reads.clear()
        result = await segment.apply([(key_of(number), 0)])
        assert len(segment.reads) == len(result.pages) <= 3


async def test_a_batch_of_many_changes_moves_several_old_pages_while_the_index_is_long(segment) -> None:
    """A batch moves one page, and another for each four changes beyond four, of those that lie far behind."""
    leaves, changed = 12, 4
    await segment.apply((key_of(number), number) for number in range(leaves * LEAF_ENTRIES))
    changes = [(key_of(leaf * LEAF_ENTRIES + number), -1) for leaf in range(changed) for number in range(4)]
    await segment.apply(changes)  # the lowest leaf is among the changed ones
    moved, largest = [], 0.0
    for _ in range(60):
        result = await segment.apply(changes)
        moved.append(len(result.pages) - changed - 1)  # besides the changed leaves and the root
        largest = max(largest, segment.index_bytes / segment.state.live_bytes)
    assert min(moved) == 1, "always the lowest leaf"
    assert 1 < max(moved) <= len(changes) // limits.ATTRIBUTE_CHANGES_PER_MOVE
    assert largest <= limits.ATTRIBUTE_INDEX_LENGTH_FACTOR + 0.75, "that, and what one batch writes"
    entries = await iterate(segment.state, key_of(0), key_of(10**6), 10**6, segment)
    assert len(entries) == leaves * LEAF_ENTRIES


async def test_obsolete_bytes_account_for_all_garbage(segment) -> None:
    garbage = 0
    for first in range(0, 9000, 30):
        result = await segment.apply(((key_of(number), number) for number in range(first, first + 30)), truncate=False)
        garbage += result.obsolete_bytes
        assert segment.state.live_bytes == segment.state.length - garbage


@pytest.mark.parametrize("batch", [10, 100, 1000])
async def test_sorted_inserts_keep_the_index_small(segment, batch: int) -> None:
    """Table 1 of "Segment Attributes" at a smaller scale; there: 4.8, 4 and 2.3 × the 24 MB of entries."""
    count = 40_000
    largest = 0.0
    for first in range(0, count, batch):
        await segment.apply((key_of(number), number) for number in range(first, first + batch))
        if first > count // 2:
            largest = max(largest, segment.index_bytes / segment.state.live_bytes)
    assert largest <= 4.0
    assert await get_many(segment.state, [key_of(0), key_of(count - 1)], segment) == {
        key_of(0): 0,
        key_of(count - 1): count - 1,
    }


@pytest.mark.parametrize("batch", [10, 100, 1000])
async def test_random_updates_keep_the_index_small(segment, batch: int) -> None:
    """Table 2 of "Segment Attributes", smaller; there: 3 to 4.3 × the entries, without compaction 700 to 1,400 ×."""
    count = 40_000
    await fill(segment, count, 1000)
    numbers = random.Random(7).sample(range(count), 10_000)
    largest = 0.0
    for first in range(0, len(numbers), batch):
        await segment.apply((key_of(number), -1) for number in numbers[first : first + batch])
        largest = max(largest, segment.index_bytes / segment.state.live_bytes)
    assert largest <= 4.0
    assert await get_many(segment.state, [key_of(numbers[0])], segment) == {key_of(numbers[0]): -1}


def test_deep_tree_stays_small_under_single_updates(segment_type) -> None:
    async def scenario() -> None:
        segment = segment_type()
        await segment.apply((key_of(number), number) for number in range(1000))
        rng = random.Random(5)
        largest = 0.0
        for _ in range(1500):
            await segment.apply([(key_of(rng.randrange(1000)), 1)])
            largest = max(largest, segment.index_bytes / segment.state.live_bytes)
        assert largest <= 8.0, "four levels: a batch writes up to seven pages and frees at least one"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ATTRIBUTE_PAGE_MAX_BYTES", 24 + 10 * 34)
        asyncio.run(scenario())
