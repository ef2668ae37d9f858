"""Flushes to an index that is too large to be rewritten whole: few leaves each, and all that waits for them."""

from __future__ import annotations

import asyncio
import itertools
import random
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.segmentstore.api import NULL_ATTRIBUTE, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.attributes import IndexState, PageReader, reach, update
from tailrace.segmentstore.attributes.attribute_store import AttributeFlush
from tailrace.segmentstore.attributes.index import load_page
from tailrace.segmentstore.attributes.page import Page, PageKind
from tailrace.segmentstore.container.container import Container

from ..conftest import World

NAME = "scope/stream/0.#epoch.0"
PAGE_BYTES = 600
LEAVES_MAX = 4
COUNT = 1_500
LEAF_ENTRIES = 1364  # of pages of the usual length
LAST = b"\xff" * 16


def key_of(number: int) -> bytes:
    """Scattered over the key space, never a core attribute."""
    return (number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(16, "big")


async def leaf_bounds(state: IndexState, reader: PageReader) -> list[bytes]:
    """The lowest key that belongs to each leaf."""
    bounds: list[bytes] = []

    async def visit(page: Page, lowest: bytes) -> None:
        if page.kind is PageKind.LEAF:
            bounds.append(lowest)
            return
        for child in range(page.count):
            below = await load_page(state, page.child(child), page.offset, reader)
            await visit(below, page.key(child) if child else lowest)

    await visit(await load_page(state, state.root, state.length, reader), bytes(state.key_length))
    return bounds


@given(
    seed=st.integers(0, 1_000_000),
    sizes=st.tuples(st.integers(1, 400), st.integers(0, 400), st.integers(0, 60)),
    leaves_max=st.integers(1, 20),
    page_entries=st.integers(3, 8),
)
@settings(max_examples=80, deadline=None)
def test_reach_counts_leaves_as_a_plain_walk_does(
    segment_type: Any, seed: int, sizes: tuple[int, int, int], leaves_max: int, page_entries: int
) -> None:
    async def scenario() -> None:
        segment = segment_type()
        rng = random.Random(seed)
        present, removed, wanted = (rng.sample(range(2_000), size) for size in sizes)
        await segment.apply((number.to_bytes(16, "big"), number) for number in present)
        await segment.apply((number.to_bytes(16, "big"), None) for number in removed)
        keys = [number.to_bytes(16, "big") for number in sorted(wanted)]
        if segment.state.is_empty:
            assert await reach(segment.state, keys, segment, leaves_max) == (len(keys), 0)
            return
        bounds = await leaf_bounds(segment.state, segment)
        leaves = [bisect_right(bounds, key) for key in keys]
        reached = sorted(set(leaves))[:leaves_max]
        expected = sum(leaf in reached for leaf in leaves), len(reached)
        segment.reads.clear()
        assert await reach(segment.state, keys, segment, leaves_max) == expected
        # The path to the first leaf, then the root and index pages, of which each leads to a leaf that is reached.
        assert len(segment.reads) <= 10 + 3 * leaves_max

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ATTRIBUTE_PAGE_MAX_BYTES", 24 + page_entries * 34)
        asyncio.run(scenario())


# -- a container


async def put(container: Container, changes: Sequence[tuple[int, int]]) -> None:
    """Set attributes; the value NULL_ATTRIBUTE removes."""
    for start in range(0, len(changes), 500):
        await container.update_attributes(
            NAME,
            [
                AttributeUpdate(key_of(number), AttributeUpdateType.REPLACE, value)
                for number, value in changes[start : start + 500]
            ],
        )


async def flush_once(container: Container) -> AttributeFlush | None:
    """Do what the attribute writer does for a segment."""
    segment = container.state.by_name[NAME]
    flushed = await container.storage.attributes.build_update(segment)
    if flushed is not None:
        await container.core.commit_control(flushed.operation)
        segment.dirty.settle_items(flushed.items)
        container.storage.attributes.evict(segment)
    return flushed


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each index is a large one, of small pages; no flush that a test does not ask for; few values in memory."""
    monkeypatch.setattr(limits, "FLUSH_INDEX_MAX_BYTES", 0)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTE_LEAVES_MAX", LEAVES_MAX)
    monkeypatch.setattr(limits, "ATTRIBUTE_PAGE_MAX_BYTES", PAGE_BYTES)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 1_000_000)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_AGED_THRESHOLD", 1_000_000)
    monkeypatch.setattr(limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX", 50)


@pytest.fixture
async def filled(world: World, large: None) -> Container:
    """A container whose index holds some attributes, each its number."""
    container = await world.open()
    await container.create_segment(NAME)
    await put(container, [(number, number) for number in range(COUNT)])
    while await flush_once(container):
        pass
    return container


def reader_of(container: Container) -> tuple[IndexState, PageReader]:
    store, segment = container.storage.attributes, container.state.by_name[NAME]
    return store._state(segment), store._reader(segment)


async def test_a_flush_takes_all_that_waits_for_a_few_leaves_and_a_round_reaches_each_leaf_once(
    filled: Container,
) -> None:
    segment = filled.state.by_name[NAME]
    bounds = await leaf_bounds(*reader_of(filled))
    changed = random.Random(1).sample(range(COUNT), COUNT // 2)
    await put(filled, [(number, -number) for number in changed])
    flushes, taken, flushed_through = 0, 0, segment.index.flushed_through
    while flushed := await flush_once(filled):
        keys = [key for key, _ in flushed.items]
        assert sum(after <= before for before, after in itertools.pairwise(keys)) <= 1, "in byte order, once round"
        touched = {bisect_right(bounds, key) for key in keys}
        assert len(touched) <= LEAVES_MAX
        assert not any(bisect_right(bounds, key) in touched for key in segment.dirty.between(bytes(16), LAST, COUNT))
        assert flushed.operation.root.flushed_through >= flushed_through
        flushed_through = flushed.operation.root.flushed_through
        flushes, taken = flushes + 1, taken + len(keys)
    assert taken == len(changed)
    # Half of the attributes change, so all leaves do. Those changed last time are behind, where the round began.
    assert flushes <= -(-len(bounds) // LEAVES_MAX) + 1


async def test_the_next_flush_begins_where_the_last_one_ended(filled: Container) -> None:
    await put(filled, [(number, 7) for number in range(COUNT)])
    first = await flush_once(filled)
    assert first is not None
    await put(filled, [(number, 8) for number in range(COUNT)])
    second = await flush_once(filled)
    assert second is not None
    assert second.items[0][0] > first.items[-1][0]


async def test_a_flush_that_fails_is_repeated(filled: Container, world: World) -> None:
    await put(filled, [(number, 7) for number in range(0, COUNT, 3)])
    segment = filled.state.by_name[NAME]
    first = list(itertools.chain(*segment.dirty.neighbours(1, 1)))
    world.objects.outage = True
    with pytest.raises(UnavailableError):
        await filled.storage.attributes.build_update(segment)
    world.objects.outage = False
    flushed = await flush_once(filled)
    assert flushed is not None
    assert [key for key, _ in flushed.items][:1] == first


@pytest.mark.parametrize("moves_max", [1, 2, 3, None])
async def test_a_batch_moves_no_more_old_pages_than_it_may(segment_type: Any, moves_max: int | None) -> None:
    """Some leaves change again and again, so the index gets long, and other leaves are to be moved."""
    segment, moved = segment_type(), []
    await segment.apply((number.to_bytes(16, "big"), number) for number in range(20 * LEAF_ENTRIES))
    numbers = [leaf * LEAF_ENTRIES + number for leaf in range(4) for number in range(4)]
    changes = [(number.to_bytes(16, "big"), -1) for number in numbers]
    for _ in range(60):
        result = await update(segment.state, changes, segment, moves_max=moves_max)
        segment.data += result.data
        segment.state = result.state
        moved.append(len(result.pages) - 5)  # besides the changed leaves and the root
    assert max(moved) == (moves_max or len(changes) // limits.ATTRIBUTE_CHANGES_PER_MOVE)


async def test_an_index_of_which_few_leaves_change_stays_short(filled: Container) -> None:
    segment = filled.state.by_name[NAME]
    few = sorted(range(COUNT), key=key_of)[:60]
    longest = 0.0
    for value in range(100):
        await put(filled, [(number, value) for number in few])
        while await flush_once(filled):
            longest = max(longest, (segment.index.length - segment.index.start_offset) / segment.index.live_bytes)
    assert longest <= 4.0


@pytest.mark.parametrize("seed", range(6))
async def test_changes_flushes_and_new_owners_against_a_plain_map(
    filled: Container, reopen: Callable[[], Awaitable[Container]], seed: int
) -> None:
    """Owners find what the index holds, and the log for the rest, though flushes do not follow the order of changes."""
    rng = random.Random(seed)
    container, model = filled, {key_of(number): number for number in range(COUNT)}
    near = sorted(range(COUNT), key=key_of)
    for step in range(50):
        kind = rng.choice(["scattered", "near", "flush", "flush", "flush", "checkpoint", "owner"])
        if kind in ("scattered", "near"):
            start = rng.randrange(COUNT)
            numbers = near[start : start + 40] if kind == "near" else rng.sample(range(COUNT + 500), 60)
            changes = [(number, rng.choice([NULL_ATTRIBUTE, step, step])) for number in numbers]
            await put(container, changes)
            for number, value in changes:
                model[key_of(number)] = value
        elif kind == "flush":
            await flush_once(container)
        elif kind == "checkpoint":
            await container.background.checkpointer.run_if_due(force=True)
        else:
            container = await reopen()
        expected = {key: value for key, value in model.items() if value != NULL_ATTRIBUTE}
        some = rng.sample(sorted(model), 30)
        found = await container.get_attributes(NAME, some)
        assert found == {key: expected[key] for key in some if key in expected}
        if step % 10 == 9:
            everything = await container.iterate_attributes(NAME, bytes(16), LAST, len(model))
            assert everything == sorted(expected.items())
    for _ in range(2):
        while await flush_once(container):
            pass
        segment = container.state.by_name[NAME]
        assert not segment.dirty
        segment.evict_values(len(segment.latest), len(segment.latest))
        expected = {key: value for key, value in model.items() if value != NULL_ATTRIBUTE}
        assert dict(await container.iterate_attributes(NAME, bytes(16), LAST, len(model))) == expected
        container = await reopen()
