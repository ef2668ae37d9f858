"""Attributes of a container's segments: values in memory, over cached index pages, over Tier 2.

See docs/design.md#attributes.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.segmentstore import attributes as index
from tailrace.segmentstore.api import NULL_ATTRIBUTE, is_core_attribute
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects, Section

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment

Buffer: TypeAlias = bytes | bytearray | memoryview
_T = TypeVar("_T")

_PAGES_MAX_BYTES = limits.ATTRIBUTE_PAGES_CACHED_MAX_BYTES


class PageRoom:
    """The memory bound for the index pages of all containers of a worker."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._caches: dict[PageCache, None] = {}

    def joined(self, cache: PageCache) -> None:
        """Count the pages of a container."""
        self._caches[cache] = None

    def left(self, cache: PageCache) -> None:
        """Stop counting the pages of a container that closed."""
        self._caches.pop(cache, None)

    def make_room(self) -> None:
        """Drop pages until all fit, from the largest cache first: a busy container must not starve the others."""
        while self.used_bytes > self.max_bytes:
            max(self._caches, key=lambda cache: cache.used_bytes).forget_oldest()


class PageCache:
    """Recently used index pages of one container, bounded in bytes for itself and together with its siblings."""

    def __init__(self, max_bytes: int, room: PageRoom | None = None) -> None:
        self._pages: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._max_bytes = max_bytes
        self._room = room or PageRoom(max_bytes)
        self.used_bytes = 0

    def get(self, key: tuple[int, int]) -> bytes | None:
        """Return a page by (segment id, offset); None when it is not cached."""
        page = self._pages.get(key)
        if page is not None:
            self._pages.move_to_end(key)
        return page

    def put(self, key: tuple[int, int], page: bytes) -> None:
        """Cache a page; drop the least recently used ones beyond the bound."""
        if key in self._pages:
            return
        self._pages[key] = page
        self._room.joined(self)
        self._count(len(page))
        while self.used_bytes > self._max_bytes:
            self.forget_oldest()
        self._room.make_room()

    def forget_oldest(self) -> None:
        """Drop the least recently used page."""
        _, old = self._pages.popitem(last=False)
        self._count(-len(old))

    def clear(self) -> None:
        """Drop all pages."""
        self._pages.clear()
        self._count(-self.used_bytes)
        self._room.left(self)

    def _count(self, length_bytes: int) -> None:
        self.used_bytes += length_bytes
        self._room.used_bytes += length_bytes


class _Pages:
    """Reads the pages of one segment's index."""

    def __init__(self, segment: Segment, cache: PageCache, tier2: ChunkObjects) -> None:
        self._segment = segment
        self._cache = cache
        self._tier2 = tier2

    @property
    def place(self) -> str:
        """Place that errors name."""
        return f"attribute index of segment {self._segment.name}"

    async def read(self, offset: int, length: int) -> Buffer:
        """Return a page's bytes."""
        key = (self._segment.segment_id, offset)
        page = self._cache.get(key)
        if page is not None and len(page) == length:
            return page
        ref = self._segment.index_pages.find(offset)
        if ref is None or ref.end < offset + length:
            raise CorruptionError(f"{self.place} at {offset}", "no object holds this page")
        page = await self._tier2.read_exact(ref, offset, length)
        self._cache.put(key, page)
        return page


class _PageNotCachedError(Exception):
    """Raised when a page that is not in memory would have to be read from Tier 2."""


class _CachedPages(_Pages):
    """Reads the pages in memory only, so that a lookup never waits."""

    async def read(self, offset: int, length: int) -> Buffer:
        """Return a page's bytes. Raises _PageNotCachedError."""
        page = self._cache.get((self._segment.segment_id, offset))
        if page is None or len(page) != length:
            raise _PageNotCachedError
        return page


class AttributeFlush(NamedTuple):
    """New pages in Tier 2: the operation that commits them, and the updates that are in them."""

    operation: ops.CommitIndex
    items: list[tuple[bytes, int]]


class AttributeStore:
    """Reads, loads and flushes extended attributes."""

    def __init__(self, tier2: ChunkObjects, room: PageRoom | None = None) -> None:
        self._tier2 = tier2
        self._pages = PageCache(_PAGES_MAX_BYTES, room)

    def close(self) -> None:
        """Drop the pages in memory."""
        self._pages.clear()

    @property
    def cached_page_bytes(self) -> int:
        """Bytes of index pages in memory."""
        return self._pages.used_bytes

    @staticmethod
    def _state(segment: Segment) -> index.IndexState:
        root = segment.index
        return index.IndexState(
            root_offset=root.root_offset,
            root_length=root.root_length,
            start_offset=root.start_offset,
            length=root.length,
            live_bytes=root.live_bytes,
            key_length=segment.attribute_key_length,
        )

    def _reader(self, segment: Segment) -> _Pages:
        return _Pages(segment, self._pages, self._tier2)

    async def load(self, segment: Segment, attribute_ids: Sequence[bytes]) -> None:
        """Load values into memory, so that operations can be staged against them.

        A value from the index counts only if neither the root nor the eviction generation has changed and no update
        was staged meanwhile; otherwise it is read again (docs/design.md#write-path).
        """
        wanted = sorted({key for key in attribute_ids if key not in segment.latest})
        if not wanted:
            return
        _keep(segment, wanted, await self._look_up(segment, wanted))

    def load_cached(self, segment: Segment, attribute_ids: Sequence[bytes]) -> bool:
        """Load values as `load` from index pages in memory; return False, and load nothing, when a page is not there.

        It never waits, so an operation can be staged in the same turn of the event loop.
        """
        wanted = [key for key in attribute_ids if key not in segment.latest]
        pages = _CachedPages(segment, self._pages, self._tier2)
        state = self._state(segment)
        found: dict[bytes, int] = {}
        for key in wanted:  # one at a time: a lookup of several keys reads pages in tasks
            lookup = index.get_many(state, (key,), pages)
            try:
                lookup.send(None)
            except StopIteration as ended:
                found.update(ended.value)
            except (_PageNotCachedError, CorruptionError):
                return False  # `load` reads the page, or reports the damage
            else:
                raise AssertionError("a lookup in memory waited")
        _keep(segment, wanted, found)
        return True

    def make_room(self, segment: Segment) -> None:
        """Evict old values when there are far too many that no flush evicts.

        Writers that are set up and append nothing leave one each. Do not call it for an operation that needs several
        values: those that it loaded must stay in memory.
        """
        bound = limits.ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX
        clean = len(segment.latest) - len(segment.dirty)
        if clean > 2 * bound:
            self._forget(segment, clean - bound)

    async def _look_up(self, segment: Segment, wanted: list[bytes]) -> dict[bytes, int]:
        async def read() -> dict[bytes, int]:
            if not segment.index.root_length:
                return {}
            return await index.get_many(self._state(segment), wanted, self._reader(segment))

        return await self._at_one_root(segment, read)

    @staticmethod
    async def _at_one_root(segment: Segment, read: Callable[[], Awaitable[_T]]) -> _T:
        """Read the index; repeat when its root or the eviction generation changed meanwhile.

        Such a read, or a page that it missed, proves nothing.
        """
        while True:
            root, generation = segment.index, segment.eviction_generation
            try:
                found = await read()
            except CorruptionError:
                if segment.index is root:
                    raise
                continue
            if segment.index is root and segment.eviction_generation == generation:
                return found

    async def get(self, segment: Segment, attribute_ids: Sequence[bytes]) -> dict[bytes, int]:
        """Return the committed values of those attributes that are set, all as of one moment."""
        committed = segment.committed
        found: dict[bytes, int] = {}
        wanted: list[bytes] = []
        while absent := [key for key in attribute_ids if key not in committed and not is_core_attribute(key)]:
            if not segment.index.root_length or set(absent).issubset(wanted):
                break
            # A value in memory may be evicted during the lookup: the next iteration looks it up too.
            wanted = sorted(set(absent))
            found = await self._look_up(segment, wanted)
        return {
            key: value
            for key in attribute_ids
            if (value := committed.get(key, found.get(key, NULL_ATTRIBUTE))) != NULL_ATTRIBUTE
        }

    async def iterate(self, segment: Segment, from_id: bytes, to_id: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Return committed extended attributes in [from_id, to_id], at most `limit`, in byte order."""
        result: list[tuple[bytes, int]] = []
        position = from_id
        while len(result) < limit:
            batch, complete, last = await self._iterate_once(segment, position, to_id, limit - len(result))
            result.extend(batch)
            if complete or last >= to_id:
                break
            position = _after(last)
        return result[:limit]

    async def _iterate_once(
        self, segment: Segment, from_id: bytes, to_id: bytes, limit: int
    ) -> tuple[list[tuple[bytes, int]], bool, bytes]:
        """Merge one run of the index with memory; return (values, whether the range is exhausted, last id seen)."""

        async def read() -> list[tuple[bytes, int]]:
            if not segment.index.root_length:
                return []
            return await index.iterate(self._state(segment), from_id, to_id, limit, self._reader(segment))

        stored = await self._at_one_root(segment, read)
        bound = to_id if len(stored) < limit else stored[-1][0]
        # The index at this root holds every value in memory that is not dirty.
        memory = segment.dirty.between(from_id, bound, limit + 1)
        if len(memory) > limit:
            bound = memory[limit - 1]
            del memory[limit:]
        merged = {key: value for key, value in stored if key <= bound}
        merged.update((key, segment.committed[key]) for key in memory)
        values = [(key, value) for key, value in sorted(merged.items()) if value != NULL_ATTRIBUTE]
        if len(values) >= limit:
            return values[:limit], True, bound
        return values, bound == to_id, bound

    # -- flushing ------------------------------------------------------------------------------------------------

    async def build_update(self, segment: Segment) -> AttributeFlush | None:
        """Write new index pages for the attributes that have been dirty longest to Tier 2.

        Returns the operation that commits them; None when nothing is dirty. Memory: `limits.FLUSH_OBJECT_MAX_BYTES`.
        """
        batch = segment.dirty.oldest(_batch_size(segment))
        if not batch.items:
            return None
        keys = sorted(key for key, _ in batch.items)
        changes = [(key, None if (value := segment.committed[key]) == NULL_ATTRIBUTE else value) for key in keys]
        update = await index.update(self._state(segment), changes, self._reader(segment))
        state = update.state
        root = ops.IndexRoot(
            root_offset=state.root_offset,
            root_length=state.root_length,
            start_offset=state.start_offset,
            length=state.length,
            live_bytes=state.live_bytes,
            flushed_through=batch.flushed_through,
        )
        pages: list[ChunkRef] = []
        if update.data:
            section = Section(segment.segment_id, segment.name + "$attributes.index", segment.index.length, update.data)
            pages = [ref for _, ref in await self._tier2.write([section], kind="a")]
        return AttributeFlush(ops.CommitIndex(segment.segment_id, root, pages), batch.items)

    @staticmethod
    def evict(segment: Segment) -> int:
        """Evict values that the index holds, when there are too many; return how many.

        Examines a bounded number of values. Those that stay move to the end, so that the next call examines others.
        """
        bound = limits.ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX
        if len(segment.latest) <= bound or not segment.index.root_length:
            return 0
        return AttributeStore._forget(segment, len(segment.latest) - bound // 2)

    @staticmethod
    def _forget(segment: Segment, wanted: int) -> int:
        """Evict so many values, oldest first, that equal those in the index; none while an operation is in flight."""
        latest = segment.latest
        if segment.inflight:
            return 0
        evicted = 0
        for key in list(islice(latest, limits.ATTRIBUTES_EVICTION_SCAN_MAX)):
            if evicted == wanted:
                break
            value = latest.pop(key)
            if key in segment.dirty or is_core_attribute(key):
                latest[key] = value
            else:
                segment.committed.pop(key, None)
                evicted += 1
        if evicted:
            segment.eviction_generation += 1
        return evicted


def _keep(segment: Segment, wanted: Sequence[bytes], found: dict[bytes, int]) -> None:
    """Keep the values of looked up attributes in memory, except those staged meanwhile."""
    for key in wanted:
        if key not in segment.latest:
            value = found.get(key, NULL_ATTRIBUTE)
            segment.latest[key] = value
            segment.committed[key] = value


def _batch_size(segment: Segment) -> int:
    """Return how many attributes one flush may write: each may rewrite a page, but no page is rewritten twice."""
    if segment.index.live_bytes <= limits.FLUSH_OBJECT_MAX_BYTES // 2:
        return limits.FLUSH_ATTRIBUTES_BATCH_MAX
    return limits.FLUSH_ATTRIBUTES_SCATTERED_BATCH_MAX


def _after(key: bytes) -> bytes:
    """Return the smallest key of the same length above `key`; `key` when there is none."""
    number = int.from_bytes(key, "big") + 1
    if number >> (8 * len(key)):
        return key
    return number.to_bytes(len(key), "big")
