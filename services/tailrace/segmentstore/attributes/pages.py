"""Index pages in memory, and reads of those that are not (docs/design.md#attributes)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common.errors import CorruptionError
from tailrace.segmentstore.attributes.page import PageBytes, PageKind

if TYPE_CHECKING:
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
    """Recently used index pages of one container, bounded in bytes for itself and together with its siblings."""

    def __init__(self, max_bytes: int, room: PageRoom | None = None) -> None:
        self._pages: OrderedDict[PageKey, PageBytes] = OrderedDict()
        self._max_bytes = max_bytes
        self._room = room or PageRoom(max_bytes)
        self._closed = False
        self.used_bytes = 0

    def get(self, key: PageKey) -> PageBytes | None:
        """Return a page; None when it is not cached."""
        page = self._pages.get(key)
        if page is not None:
            self._pages.move_to_end(key)
        return page

    def put(self, key: PageKey, page: PageBytes) -> None:
        """Cache a page; drop the least recently used ones beyond the bound."""
        if self._closed or key in self._pages:
            return
        self._pages[key] = page
        self._room.joined(self)
        self._count(len(page.data))
        while self.used_bytes > self._max_bytes:
            self.forget_oldest()
        self._room.make_room()

    def put_written(self, ref: ChunkRef, update: IndexUpdate) -> None:
        """Cache the pages of an update: at most half of the bound, index pages before leaves, the root last."""
        wanted = sorted(update.pages, key=lambda page: page.kind is PageKind.INDEX)
        left = min(self._max_bytes, self._room.max_bytes) // 2
        first = len(wanted)
        while first and wanted[first - 1].length <= left:
            first -= 1
            left -= wanted[first].length
        start = ref.segment_offset
        for page in wanted[first:]:
            at = page.offset - start
            data = PageBytes(update.data[at : at + page.length])
            self.put(PageKey(ref.object_key, page.offset, page.length), data)

    def forget_oldest(self) -> None:
        """Drop the least recently used page."""
        _, old = self._pages.popitem(last=False)
        self._count(-len(old.data))

    def close(self) -> None:
        """Drop all pages, and take no more."""
        self._closed = True
        self._pages.clear()
        self._count(-self.used_bytes)
        self._room.left(self)

    def _count(self, length_bytes: int) -> None:
        self.used_bytes += length_bytes
        self._room.used_bytes += length_bytes


class PageReads:
    """Reads pages from Tier 2 into the cache. Calls that need the same page at the same time share one read."""

    def __init__(self, cache: PageCache, tier2: ChunkObjects) -> None:
        self.cache = cache
        self._tier2 = tier2

    async def read(self, ref: ChunkRef, key: PageKey) -> PageBytes:
        """Return a page's bytes. Raises what `ChunkObjects.read_exact` and `SharedReads.read` raise."""
        return await self._tier2.shared.read(key, lambda: self._read(ref, key))

    async def _read(self, ref: ChunkRef, key: PageKey) -> PageBytes:
        page = PageBytes(await self._tier2.read_exact(ref, key.offset, key.length))
        self.cache.put(key, page)
        return page


class SegmentPages:
    """Reads the pages of one segment's index; implements the `PageReader` port."""

    def __init__(self, segment: Segment, reads: PageReads) -> None:
        self._segment = segment
        self._reads = reads

    @property
    def place(self) -> str:
        """Place that errors name."""
        return f"attribute index of segment {self._segment.name}"

    async def read(self, offset: int, length: int) -> PageBytes:
        """Return a page's bytes. Raises CorruptionError for one that was truncated, too."""
        ref, key = self._find(offset, length)
        page = self._reads.cache.get(key)
        return page if page is not None else await self._reads.read(ref, key)

    def _find(self, offset: int, length: int) -> tuple[ChunkRef, PageKey]:
        ref = self._segment.index_pages.find(offset)
        if ref is None or ref.end < offset + length:
            raise CorruptionError(f"{self.place} at {offset}", "no object holds this page")
        return ref, PageKey(ref.object_key, offset, length)


class PageNotCachedError(Exception):
    """Raised when a page that is not in memory would have to be read from Tier 2."""


class CachedSegmentPages(SegmentPages):
    """Reads the pages in memory only, so that a lookup never waits."""

    async def read(self, offset: int, length: int) -> PageBytes:
        """Return a page's bytes. Raises PageNotCachedError."""
        _, key = self._find(offset, length)
        page = self._reads.cache.get(key)
        if page is None:
            raise PageNotCachedError
        return page
