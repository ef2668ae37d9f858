"""Index pages in memory and requests for those that are not: which pages stay, how many reads a lookup takes."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.segmentstore import attributes as index
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.attributes import IndexState, PageReader
from tailrace.segmentstore.attributes.page import (
    Child,
    PageBytes,
    PageKind,
    lowest_offset,
    max_entries,
    pack_attribute,
    pack_child,
    page_parts,
)
from tailrace.segmentstore.attributes.pages import PageCache, PageKey, PageReads, PageRoom, SegmentPages
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.tier2.chunk_objects import Section

from ..conftest import Objects, World, flush

NAME = "scope/stream/0.#epoch.0"
REPLACE = AttributeUpdateType.REPLACE
BILLION = 10**9


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


class CountedObjects(Objects):
    """Objects that remember which ranges of index objects were read."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[int, int]] = []
        self.damaged = range(0)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = await super().get_range(key, offset, length)
        if not key.startswith("a"):
            return data
        self.gets.append((offset, length))
        changed = bytearray(data)
        for at in self.damaged:
            if offset <= at < offset + length:
                changed[at - offset] ^= 1
        return bytes(changed)


@pytest.fixture
def objects(world: World, monkeypatch: pytest.MonkeyPatch) -> CountedObjects:
    """No flush that a test does not ask for."""
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 10**9)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_BATCH_MAX", 10**9)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_AGED_THRESHOLD", 10**9)
    world.objects = CountedObjects()
    return world.objects


# -- a billion keys


class Branch(PageReader):
    """The path of one key through an index of a billion: leaves half full, and all pages above, too.

    Each level has the pages that it must have; those beside the path are not made, only named by their parent.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytes] = {}
        self.reads = 0
        self._length = 0
        pages = -(-BILLION // (max_entries(PageKind.LEAF, 16) // 2))
        leaf = b"".join(
            key_of(number) + pack_attribute(number) for number in range(max_entries(PageKind.LEAF, 16) // 2)
        )
        child = self._write(PageKind.LEAF, leaf)
        while pages > 1:
            count = min(pages, max_entries(PageKind.INDEX, 16) // 2)
            named = [child, *(Child(number, 1, number) for number in range(count - 1))]
            entries = b"".join(key_of(number << 32) + pack_child(each) for number, each in enumerate(named))
            child = self._write(PageKind.INDEX, entries)
            pages = -(-pages // (max_entries(PageKind.INDEX, 16) // 2))
        self.state = IndexState(child.offset, child.length, 0, self._length, self._length)

    def _write(self, kind: PageKind, entries: bytes) -> Child:
        offset = self._length
        self._pages[offset] = b"".join(page_parts(kind, 16, entries, offset))
        self._length += len(self._pages[offset])
        return Child(offset, len(self._pages[offset]), lowest_offset(kind, entries, 16, offset))

    @property
    def place(self) -> str:
        return "a billion"

    async def read(self, offset: int, length: int) -> bytes:
        self.reads += 1
        assert len(self._pages[offset]) == length
        return self._pages[offset]


async def test_a_cold_lookup_among_a_billion_keys_reads_four_pages() -> None:
    branch = Branch()
    assert await index.get_many(branch.state, [key_of(7)], branch) == {key_of(7): 7}
    assert branch.reads == 4


# -- what stays in memory


def page_of(number: int, kind: PageKind, length: int = 1000) -> tuple[PageKey, PageBytes]:
    return PageKey("object", number * length, length), PageBytes(bytes([0] * 5 + [kind] + [0] * (length - 6)))


def test_leaves_leave_before_the_pages_above_them_and_these_have_half_of_the_room() -> None:
    cache = PageCache(100_000)
    above = [page_of(number, PageKind.INDEX) for number in range(50)]
    for key, page in above:
        cache.put(key, page)
    leaves = [page_of(1000 + number, PageKind.LEAF) for number in range(500)]
    for key, page in leaves:
        cache.put(key, page)
    assert all(cache.get(key) is page for key, page in above)
    assert [cache.get(key) is page for key, page in leaves] == [False] * 450 + [True] * 50
    for number in range(100, 160):  # with more of them the oldest leave, not the leaves
        cache.put(*page_of(number, PageKind.INDEX))
    assert cache.used_bytes == 100_000
    assert sum(cache.get(key) is not None for key, _ in leaves) == 50
    assert sum(cache.get(page_of(number, PageKind.INDEX)[0]) is not None for number in range(160)) == 50


def test_forgotten_pages_are_counted_out_of_both_rooms() -> None:
    room = PageRoom(10_000)
    cache = PageCache(10_000, room)
    pages = [page_of(number, kind) for number, kind in enumerate([PageKind.INDEX, PageKind.LEAF] * 3)]
    for key, page in pages:
        cache.put(key, page)
    cache.forget([pages[0][0], pages[1][0], PageKey("another", 0, 1000)])
    assert cache.used_bytes == room.used_bytes == 4000
    for key, page in pages[2:]:
        assert cache.get(key) is page
    cache.close()
    assert (cache.used_bytes, room.used_bytes) == (0, 0)


async def load(container: Container, keys: int) -> None:
    """Give the segment an index of so many attributes, in one object."""
    await container.create_segment(NAME)
    segment, tier2 = container.state.by_name[NAME], container.storage.tier2
    pages = SegmentPages(segment, PageReads(PageCache(limits.MIB), tier2))
    loaded = await index.update(IndexState(), [(key_of(number), number) for number in range(keys)], pages)
    section = Section(segment.segment_id, NAME + "$attributes.index", 0, loaded.data)
    refs = [ref for _, ref in await tier2.write([section], kind="a")]
    state = loaded.state
    root = ops.IndexRoot(state.root_offset, state.root_length, state.start_offset, state.length, state.live_bytes, 0)
    await container.core.commit_control(ops.CommitIndex(segment.segment_id, root, refs))


async def update_some(container: Container, numbers: list[int], value: int) -> None:
    """Set attributes, and flush until none waits."""
    await container.update_attributes(NAME, [AttributeUpdate(key_of(each), REPLACE, value) for each in numbers])
    segment, store = container.state.by_name[NAME], container.storage.attributes
    while (flushed := await store.build_update(segment)) is not None:
        await container.core.commit_control(flushed.operation)
        store.flushed(segment, flushed)
    segment.evict_values(10**9, 10**9)


async def test_a_lookup_reads_one_page_at_most_however_many_leaves_flushes_went_through(
    world: World, objects: CountedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 leaves of which memory holds a tenth, under 10 pages and a root; no lookup in the meantime."""
    keys, rng = 15_000, random.Random(5)
    monkeypatch.setattr(limits, "ATTRIBUTE_PAGE_MAX_BYTES", 1200)
    monkeypatch.setattr(limits, "FLUSH_INDEX_MAX_BYTES", 0)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTE_LEAVES_MAX", 10)
    container = await world.open()
    cache = container.storage.attributes._reads.cache
    monkeypatch.setattr(cache, "_max_bytes", 60 * 1200)
    await load(container, keys)
    assert container.state.by_name[NAME].index.live_bytes > 300 * 1100
    for value in range(1, 6):
        numbers = rng.sample(range(keys), 1000)
        await update_some(container, numbers, value)
        assert cache.used_bytes <= 60 * 1200
        for number in rng.sample(numbers, 20):
            objects.gets.clear()
            assert await container.get_attributes(NAME, [key_of(number)]) == {key_of(number): value}
            container.state.by_name[NAME].evict_values(10**9, 10**9)
            assert len(objects.gets) <= 1


async def test_replaced_pages_leave_memory_with_the_commit(world: World, objects: CountedObjects) -> None:
    container = await world.open()
    await load(container, 5000)
    for value in range(20):
        await update_some(container, list(range(0, 5000, 7)), value)
    segment = container.state.by_name[NAME]
    assert container.storage.attributes.cached_page_bytes <= segment.index.live_bytes


# -- requests


@pytest.fixture
async def cold(
    world: World, objects: CountedObjects, reopen: Callable[[], Awaitable[Container]], monkeypatch: pytest.MonkeyPatch
) -> Container:
    """An owner without a page in memory, of 10,000 attributes in 200 leaves of 1 KB that follow one another."""
    monkeypatch.setattr(limits, "ATTRIBUTE_PAGE_MAX_BYTES", 1230)
    await load(await world.open(), 10_000)
    await flush(world.running[-1])
    container = await reopen()
    objects.gets.clear()
    return container


ABOVE = 7
"""Pages above the 200 leaves: a root, and six with 35 leaves each at most."""


async def test_leaves_that_follow_one_another_are_read_together(cold: Container, objects: CountedObjects) -> None:
    numbers = range(0, 10_000, 25)
    found = await cold.get_attributes(NAME, [key_of(number) for number in numbers])
    assert found == {key_of(number): number for number in numbers}
    assert len(objects.gets) <= ABOVE + 6 * -(-35 // limits.ATTRIBUTE_PAGE_READS_MAX)


async def test_an_update_reads_the_leaves_that_it_changes_together(cold: Container, objects: CountedObjects) -> None:
    await update_some(cold, list(range(0, 10_000, 100)), -1)
    # Besides, one leaf is read to find out how deep the index is.
    assert len(objects.gets) <= ABOVE + 1 + 6 * -(-35 // 2 // limits.ATTRIBUTE_PAGE_READS_MAX)


async def test_pages_far_from_one_another_are_read_alone(
    cold: Container, objects: CountedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ATTRIBUTE_READ_GAP_MAX_BYTES", 0)
    numbers = range(0, 10_000, 1000)
    found = await cold.get_attributes(NAME, [key_of(number) for number in numbers])
    assert found == {key_of(number): number for number in numbers}
    assert len(objects.gets) >= len(numbers)


async def test_damage_between_pages_that_are_read_together_refuses_none_of_them(
    cold: Container, objects: CountedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second block of 64 KiB is damaged: the first and the 163rd leaf lie in others, the 100th one in it."""
    monkeypatch.setattr(limits, "ATTRIBUTE_READ_GAP_MAX_BYTES", limits.MIB)
    objects.damaged = range(100_000, 100_001)
    assert await cold.get_attributes(NAME, [key_of(10), key_of(8100)]) == {key_of(10): 10, key_of(8100): 8100}
    assert cold.state.by_name[NAME].damage is None
    with pytest.raises(CorruptionError):
        await cold.get_attributes(NAME, [key_of(4000), key_of(8150)])
    assert cold.state.by_name[NAME].damage is not None


async def test_values_in_memory_stay_bounded_while_a_large_index_is_updated(
    world: World, objects: CountedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evictions are put off while few values are clean, and then end below the bound."""
    monkeypatch.setattr(limits, "FLUSH_INDEX_MAX_BYTES", 0)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTE_LEAVES_MAX", 10)
    monkeypatch.setattr(limits, "ATTRIBUTE_PAGE_MAX_BYTES", 1200)
    monkeypatch.setattr(limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX", 100)
    container, rng = await world.open(), random.Random(3)
    await load(container, 3000)
    segment, store = container.state.by_name[NAME], container.storage.attributes
    evictions = 0
    for value in range(100):
        numbers = rng.sample(range(3000), 20)
        await container.update_attributes(NAME, [AttributeUpdate(key_of(each), REPLACE, value) for each in numbers])
        flushed = await store.build_update(segment)
        assert flushed is not None
        await container.core.commit_control(flushed.operation)
        store.flushed(segment, flushed)
        before = segment.clean_values
        store.evict(segment)
        evictions += segment.clean_values < before
        assert segment.clean_values <= 50 or len(segment.latest) <= 100
    assert 5 < evictions < 60
