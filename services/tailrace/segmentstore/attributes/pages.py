"""Index pages in memory, and reads of those that are not (docs/design.md#attributes)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.segmentstore.attributes.page import PageBytes, PageKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.segmentstore.attributes.update import IndexUpdate
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects


class PageKey(NamedTuple):
    """Names a page. Objects never change, so neither does what a key names."""

    object_key: str
    offset: int
    """In the attribute segment."""
    length: int


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
    """Recently used index pages of one container, bounded in bytes for itself and together with its siblings.

    Leaves leave first, while pages above them have no more than half of the bound: each of those leads to a thousand
    leaves, so that a lookup reads one leaf at most. Flushes go round the leaves and would drive all others out.
    """

    def __init__(self, max_bytes: int, room: PageRoom | None = None) -> None:
        self._leaves: OrderedDict[PageKey, PageBytes] = OrderedDict()
        self._above: OrderedDict[PageKey, PageBytes] = OrderedDict()
        self._max_bytes = max_bytes
        self._room = room or PageRoom(max_bytes)
        self._closed = False
        self.used_bytes = 0
        self._above_bytes = 0

    def get(self, key: PageKey) -> PageBytes | None:
        """Return a page; None when it is not cached."""
        for pages in (self._above, self._leaves):
            page = pages.get(key)
            if page is not None:
                pages.move_to_end(key)
                return page
        return None

    def put(self, key: PageKey, page: PageBytes) -> None:
        """Cache a page; drop the least recently used ones beyond the bound."""
        if self._closed or key in self._leaves or key in self._above:
            return
        (self._above if page.is_index else self._leaves)[key] = page
        self._room.joined(self)
        self._count(page, 1)
        while self.used_bytes > self._max_bytes:
            self.forget_oldest()
        self._room.make_room()

    def put_written(self, ref: ChunkRef, update: IndexUpdate) -> None:
        """Cache the pages of an update: at most half of the bound, index pages before leaves, the root last."""
        wanted = sorted(update.pages, key=lambda page: page.kind is PageKind.INDEX)
        left = self._half_bytes
        first = len(wanted)
        while first and wanted[first - 1].length <= left:
            first -= 1
            left -= wanted[first].length
        start = ref.segment_offset
        for page in wanted[first:]:
            at = page.offset - start
            data = PageBytes(update.data[at : at + page.length])
            self.put(PageKey(ref.object_key, page.offset, page.length), data)

    @property
    def _half_bytes(self) -> int:
        return min(self._max_bytes, self._room.max_bytes) // 2

    def forget_oldest(self) -> None:
        """Drop the least recently used leaf; without one, or with too many pages above them, one of those."""
        above = not self._leaves or self._above_bytes > self._half_bytes
        _, old = (self._above if above else self._leaves).popitem(last=False)
        self._count(old, -1)

    def forget(self, keys: Iterable[PageKey]) -> None:
        """Drop pages that no root leads to any more; a lookup that began before reads them again."""
        for key in keys:
            page = self._above.pop(key, None) or self._leaves.pop(key, None)
            if page is not None:
                self._count(page, -1)

    def close(self) -> None:
        """Drop all pages, and take no more."""
        self._closed = True
        self._leaves.clear()
        self._above.clear()
        self._room.used_bytes -= self.used_bytes
        self.used_bytes = self._above_bytes = 0
        self._room.left(self)

    def _count(self, page: PageBytes, sign: int) -> None:
        length_bytes = sign * len(page.data)
        self.used_bytes += length_bytes
        self._room.used_bytes += length_bytes
        if page.is_index:
            self._above_bytes += length_bytes


class PageReads:
    """Reads pages from Tier 2 into the cache. Calls that need the same page at the same time share one read."""

    def __init__(self, cache: PageCache, tier2: ChunkObjects) -> None:
        self.cache = cache
        self._tier2 = tier2

    def is_under_way(self, key: PageKey) -> bool:
        """Return whether some call reads the page now."""
        return key in self._tier2.shared

    async def read(self, ref: ChunkRef, key: PageKey, run: PageKey | None = None) -> PageBytes:
        """Return a page's bytes, which stay in memory; with `run` read all of that range, as others do meanwhile.

        Raises what `ChunkObjects.read_exact` and `SharedReads.read` raise.
        """
        return await self._tier2.shared.read(key, lambda: self._read(ref, key, run))

    async def _read(self, ref: ChunkRef, key: PageKey, run: PageKey | None) -> PageBytes:
        if run is None:
            (page,) = await self.read_run(ref, key, [key])
        else:
            page = await self._read_within(ref, key, run)
        self.cache.put(key, page)
        return page

    async def _read_within(self, ref: ChunkRef, key: PageKey, run: PageKey) -> PageBytes:
        read = self._tier2.read_exact
        try:
            data = await self._tier2.shared.read(run, lambda: read(ref, run.offset, run.length))
        except CorruptionError:  # perhaps of another page, or of what lies between them
            return PageBytes(await read(ref, key.offset, key.length))
        return _cut(data, run, key)

    async def read_run(self, ref: ChunkRef, run: PageKey, keys: Sequence[PageKey]) -> list[PageBytes]:
        """Return the bytes of pages within a range that is read at once; leaves do not stay in memory."""
        try:
            data = await self._tier2.read_exact(ref, run.offset, run.length)
        except CorruptionError:
            if len(keys) == 1:
                raise
            return [page for key in keys for page in await self.read_run(ref, key, [key])]
        pages = [_cut(data, run, key) for key in keys]
        for key, page in zip(keys, pages, strict=True):
            if page.is_index:
                self.cache.put(key, page)
        return pages


def _cut(data: bytes, run: PageKey, key: PageKey) -> PageBytes:
    at = key.offset - run.offset
    return PageBytes(data[at : at + key.length])


class SegmentPages:
    """Reads the pages of one segment's index; implements the `PageReader` port.

    Without ``keep_leaves`` the leaves that it reads from Tier 2 do not stay in memory: an update replaces them.
    """

    def __init__(self, segment: Segment, reads: PageReads, *, keep_leaves: bool = True) -> None:
        self._segment = segment
        self._reads = reads
        self._keep_leaves = keep_leaves

    @property
    def place(self) -> str:
        """Place that errors name."""
        return f"attribute index of segment {self._segment.name}"

    async def read(self, offset: int, length: int) -> PageBytes:
        """Return a page's bytes. Raises CorruptionError for one that was truncated, too."""
        ref, key = self._find(offset, length)
        page = self._reads.cache.get(key)
        if page is not None:
            return page
        if self._keep_leaves:
            return await self._reads.read(ref, key)
        return (await self._reads.read_run(ref, key, [key]))[0]

    async def read_many(self, places: Sequence[tuple[int, int]]) -> Sequence[PageBytes]:
        """Return the bytes of pages. Those that lie near one another in an object are read with one request."""
        keys: list[PageKey] = []
        found: dict[PageKey, PageBytes] = {}
        cold: dict[PageKey, ChunkRef] = {}
        for offset, length in places:
            ref, key = self._find(offset, length)
            keys.append(key)
            page = self._reads.cache.get(key)
            if page is None:
                cold[key] = ref
            else:
                found[key] = page
        if cold:
            await (self._read_shared(cold, found) if self._keep_leaves else self._read_runs(cold, found))
        return [found[key] for key in keys]

    async def _read_shared(self, cold: dict[PageKey, ChunkRef], found: dict[PageKey, PageBytes]) -> None:
        runs = _runs(key for key in cold if not self._reads.is_under_way(key))
        within = {key: run for run, keys in runs.items() if len(keys) > 1 for key in keys}
        reads = (self._reads.read(ref, key, within.get(key)) for key, ref in cold.items())
        found.update(zip(cold, await asyncio.gather(*reads), strict=True))

    async def _read_runs(self, cold: dict[PageKey, ChunkRef], found: dict[PageKey, PageBytes]) -> None:
        runs = _runs(cold)
        reads = (self._reads.read_run(cold[keys[0]], run, keys) for run, keys in runs.items())
        for keys, pages in zip(runs.values(), await asyncio.gather(*reads), strict=True):
            found.update(zip(keys, pages, strict=True))

    def key_of(self, offset: int, length: int) -> PageKey:
        """Return the key of a page. Raises CorruptionError for one that was truncated."""
        return self._find(offset, length)[1]

    def _find(self, offset: int, length: int) -> tuple[ChunkRef, PageKey]:
        ref = self._segment.index_pages.find(offset)
        if ref is None or ref.end < offset + length:
            raise CorruptionError(f"{self.place} at {offset}", "no object holds this page")
        return ref, PageKey(ref.object_key, offset, length)


def _runs(keys: Iterable[PageKey]) -> dict[PageKey, list[PageKey]]:
    """Return pages that lie near one another in an object together, by the range that holds them."""
    groups: list[list[PageKey]] = []
    for key in sorted(keys):
        last = groups[-1][-1] if groups else None
        if (
            last is None
            or last.object_key != key.object_key
            or key.offset - (last.offset + last.length) > limits.ATTRIBUTE_READ_GAP_MAX_BYTES
        ):
            groups.append([])
        groups[-1].append(key)
    return {
        PageKey(first.object_key, first.offset, last.offset + last.length - first.offset): group
        for group in groups
        for first, last in [(group[0], group[-1])]
    }


class PageNotCachedError(Exception):
    """Raised when a page that is not in memory would have to be read from Tier 2."""


class CachedSegmentPages(SegmentPages):
    """Reads the pages in memory only, so that a lookup never waits."""

    async def read(self, offset: int, length: int) -> PageBytes:
        """Return a page's bytes. Raises PageNotCachedError."""
        page = self._reads.cache.get(self.key_of(offset, length))
        if page is None:
            raise PageNotCachedError
        return page
