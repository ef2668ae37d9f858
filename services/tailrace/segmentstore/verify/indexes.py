"""Verifies a segment's attribute index: reads every live page by its reference (docs/formats/attributes.md)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common.errors import CorruptionError, FormatVersionError, NotFoundError
from tailrace.segmentstore.attributes import IndexState, PageReader
from tailrace.segmentstore.attributes.index import load_page
from tailrace.segmentstore.attributes.page import Child, PageKind
from tailrace.storage import chunks

if TYPE_CHECKING:
    from tailrace.segmentstore.attributes.page import Page
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.verify.report import ContainerReport
    from tailrace.storage.port import ObjectStore


class _Span(NamedTuple):
    """The keys of a page according to its parent: from `first` on, below `end` (None: no bound)."""

    first: bytes | None
    end: bytes | None


class _Below(NamedTuple):
    """The lowest offset and the bytes of a subtree."""

    lowest: int
    length_bytes: int


class IndexWalk(PageReader):
    """Walks the index of one segment. ``intact`` is False afterwards when a page is damaged."""

    def __init__(self, segment: Segment, store: ObjectStore, report: ContainerReport) -> None:
        root = segment.index
        self._segment = segment
        self._store = store
        self._report = report
        self._state = IndexState(
            root.root_offset,
            root.root_length,
            root.start_offset,
            root.length,
            root.live_bytes,
            segment.attribute_key_length,
        )
        self.intact = True

    @property
    def place(self) -> str:
        """See PageReader."""
        return f"attribute index of segment {self._segment.name}"

    async def read(self, offset: int, length: int) -> memoryview:
        """See PageReader."""
        ref = self._segment.index_pages.find(offset)
        if ref is None or ref.end < offset + length:
            raise CorruptionError(f"{self.place} at {offset}", "no object holds this page")
        position, stored, first = chunks.block_range(ref.data_offset, ref.length, offset - ref.segment_offset, length)
        try:
            raw = await self._store.get_range(ref.object_key, position, stored)
        except NotFoundError as error:
            raise CorruptionError(f"object {ref.object_key}", "the referenced object does not exist") from error
        data = b"".join(chunks.decode_blocks(ref.object_key, position, raw))
        start = offset - ref.segment_offset - first
        return memoryview(data)[start : start + length]

    async def verify(self) -> None:
        """Read the tree from its root."""
        if self._state.is_empty:
            return
        found = await self._walk(self._state.root, self._state.length, _Span(None, None))
        if found is None or not self.intact:
            return
        if found.length_bytes != self._state.live_bytes:
            self._problem(f"{found.length_bytes} bytes of live pages, {self._state.live_bytes} are recorded")

    async def _walk(self, child: Child, parent_offset: int, span: _Span) -> _Below | None:
        """Verify a subtree; return None when its page is damaged."""
        try:
            page = await load_page(self._state, child, parent_offset, self)
        except (CorruptionError, FormatVersionError) as error:
            self._damaged(child, error)
            return None
        self._report.report.index_pages += 1
        self._check_keys(page, span)
        lowest, length = page.offset, page.length
        if page.kind is PageKind.INDEX:
            lowest = parent_offset
            for index in range(page.count):
                following = page.key(index + 1) if index + 1 < page.count else span.end
                bounds = _Span(page.key(index) if index else span.first, following)
                below = await self._walk(page.child(index), page.offset, bounds)
                if below is not None:
                    lowest, length = min(lowest, below.lowest), length + below.length_bytes
        if self.intact and lowest != child.lowest:
            self._problem(f"page at {page.offset}: its lowest offset is {lowest}, its parent says {child.lowest}")
        return _Below(lowest, length)

    def _check_keys(self, page: Page, span: _Span) -> None:
        keys = [page.key(index) for index in range(page.count)]
        if any(first >= second for first, second in itertools.pairwise(keys)):
            self._problem(f"page at {page.offset}: its keys are not in order")
        elif (span.first is not None and keys[0] < span.first) or (span.end is not None and keys[-1] >= span.end):
            self._problem(f"page at {page.offset}: its keys are not those of its parent's entry")

    def _problem(self, reason: str) -> None:
        self.intact = False
        self._report.problem(f"attribute index: {reason}", segment=self._segment.name)

    def _damaged(self, child: Child, error: Exception) -> None:
        self.intact = False
        ref = self._segment.index_pages.find(child.offset)
        place, position = "", None
        if ref is not None:
            place = f"object {ref.object_key}"
            position, _, _ = chunks.block_range(ref.data_offset, ref.length, child.offset - ref.segment_offset, 0)
            position += (child.offset - ref.segment_offset) % chunks.BLOCK_BYTES
        reason = error.reason if isinstance(error, CorruptionError) else str(error)
        self._report.problem(
            f"attribute index: page at {child.offset}: {reason}",
            segment=self._segment.name,
            place=place,
            position=position,
        )
