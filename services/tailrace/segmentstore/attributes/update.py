"""Updates the attribute index: one batch of changes becomes one append (docs/design.md#attributes).

A batch rewrites the pages that its changes touch, leaf to root. It also rewrites the live page with the lowest offset
and its ancestors (progressive compaction), so that everything before that page can be truncated. A batch of many
changes moves further pages while the index is longer than a multiple of its live pages: one move a batch would let it
grow.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.kernel import merge, search
from tailrace.segmentstore.attributes.index import (
    IndexState,
    PageReader,
    check_key_lengths,
    load_children,
    load_page,
    route,
)
from tailrace.segmentstore.attributes.page import (
    INDEX_VALUE_BYTES,
    PAGE_OVERHEAD_BYTES,
    Buffer,
    Child,
    Page,
    PageKind,
    decode_page,
    lowest_offset,
    max_entries,
    pack_attribute,
    pack_child,
    page_parts,
    value_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence, Set


class WrittenPage(NamedTuple):
    """A page of a batch: its kind, its offset in the attribute segment, its bytes."""

    kind: PageKind
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class IndexUpdate:
    """Outcome of a batch.

    ``data`` is to be appended at the old state's ``length``; once it is stored, ``state`` may be committed, and then
    everything below ``state.start_offset`` be truncated. ``replaced`` are offset and length of the pages that the new
    root does not lead to any more, ``pages`` are the pages in ``data``, in order.
    """

    data: bytes
    state: IndexState
    replaced: Sequence[tuple[int, int]] = ()
    pages: Sequence[WrittenPage] = ()

    @property
    def obsolete_bytes(self) -> int:
        """Length of the replaced pages."""
        return sum(length for _, length in self.replaced)


class _Content(NamedTuple):
    """Entries of one or more future pages; `grows_right`: all added keys follow the old ones."""

    kind: PageKind
    entries: bytes
    grows_right: bool


async def update(
    state: IndexState,
    changes: Sequence[tuple[bytes, int | None]],
    pages: PageReader,
    *,
    moves_max: int | None = None,
    move_lowest: bool = True,
) -> IndexUpdate:
    """Apply changes (sorted by key, each key once; None removes) to the tree of `state`.

    ``moves_max``: how many pages to move at most, in a batch that has many changes for each leaf (`reach`).
    ``move_lowest``: compact by moving the live pages with the lowest offsets; without it the index grows for ever.
    Nothing below ``state.start_offset`` is read. Memory: up to 1.25 pages per change; with ``moves_max`` those that the
    changes belong to, and those that are moved. So callers bound their batches.

    Raises:
        BadRequestError: the keys are not sorted, not unique, or of another length than the index's.
        CorruptionError: a page is damaged; the error names its place.
    """
    _check_changes(state, changes)
    if not changes:
        return IndexUpdate(b"", state)
    return await _Batch(state, pages).apply(changes, moves_max, move_lowest=move_lowest)


def _check_changes(state: IndexState, changes: Sequence[tuple[bytes, int | None]]) -> None:
    check_key_lengths(state, [key for key, _ in changes])
    for (before, _), (after, _) in itertools.pairwise(changes):
        if before >= after:
            raise BadRequestError(f"attribute changes are not sorted and unique at {after.hex()}")


class _Batch:
    """Pages that a batch writes, and the state they are built on."""

    def __init__(self, state: IndexState, pages: PageReader) -> None:
        self._state = state
        self._pages = pages
        self._written: dict[int, tuple[Buffer, ...]] = {}
        self._pages_written: list[WrittenPage] = []
        self._length = state.length
        self._replaced: list[tuple[int, int]] = []
        self._move_below = state.length - int(limits.ATTRIBUTE_INDEX_LENGTH_FACTOR * state.live_bytes)
        self._moves_left = 0

    async def apply(
        self, changes: Sequence[tuple[bytes, int | None]], moves_max: int | None, *, move_lowest: bool
    ) -> IndexUpdate:
        """Rewrite the tree from the root."""
        packed = [(key, None if value is None else pack_attribute(value)) for key, value in changes]
        if move_lowest:  # the lowest page itself does not count
            moves = len(changes) // limits.ATTRIBUTE_CHANGES_PER_MOVE
            self._moves_left = max(0, (moves if moves_max is None else min(moves, moves_max)) - 1)
        if self._state.is_empty:
            content = _Content(PageKind.LEAF, b"".join(key + value for key, value in packed if value is not None), True)
        else:
            root_page = await load_page(self._state, self._state.root, self._state.length, self._pages)
            content = await self._rewrite(root_page, packed, move_lowest=move_lowest)
        root = await self._write_root(content)
        return self._result(root)

    def _result(self, root: Child | None) -> IndexUpdate:
        old = self._state
        data = b"".join(itertools.chain.from_iterable(self._written.values()))
        live = old.live_bytes + len(data) - sum(length for _, length in self._replaced)
        if root is None:
            state = IndexState(0, 0, self._length, self._length, 0, old.key_length)
        else:
            state = IndexState(root.offset, root.length, root.lowest, self._length, live, old.key_length)
        return IndexUpdate(data, state, self._replaced, self._pages_written)

    async def _rewrite(
        self, page: Page, changes: Sequence[tuple[bytes, bytes | None]], *, move_lowest: bool
    ) -> _Content:
        """Return the new entries of a page after its changes; write its changed children first."""
        self._replaced.append((page.offset, page.length))
        if page.kind is PageKind.INDEX:
            changes = await self._rewrite_children(page, changes, move_lowest=move_lowest)
        entries = merge(page.entries, page.key_length, page.value_length, page.count, changes)
        return _Content(page.kind, entries, _grows_right(page, entries))

    async def _rewrite_children(
        self, page: Page, changes: Sequence[tuple[bytes, bytes | None]], *, move_lowest: bool
    ) -> list[tuple[bytes, bytes | None]]:
        """Rewrite the children that changes touch and those to move; return the page's own changes."""
        routes = route(page, [key for key, _ in changes])
        lowest = -1
        if move_lowest or self._moves_left:
            offsets = page.lowest_offsets()
            lowest = offsets.index(min(offsets)) if move_lowest else -1
            moves = self._moves(offsets, lowest, {child for child, _, _ in routes})
            routes = sorted([*routes, *((child, 0, 0) for child in moves)])
        siblings = _Siblings(self)
        for first in range(0, len(routes), limits.ATTRIBUTE_PAGE_READS_MAX):
            group = routes[first : first + limits.ATTRIBUTE_PAGE_READS_MAX]
            children = await load_children(self._state, page, [child for child, _, _ in group], self._pages)
            for child_page, (child, start, end) in zip(children, group, strict=True):
                content = await self._rewrite(child_page, changes[start:end], move_lowest=child == lowest)
                siblings.add(child, page.key(child), content)
        return siblings.finish()

    def _moves(self, offsets: Sequence[int], lowest: int, touched: Set[int]) -> list[int]:
        """Return the children of an index page to rewrite though nothing in them changes.

        These are the one on the way to the lowest page, and old ones as far as moves are left, the oldest first.
        """
        moves = [lowest] if lowest >= 0 and lowest not in touched else []
        if self._moves_left and min(offsets) < self._move_below:
            old = sorted(
                (offset, child)
                for child, offset in enumerate(offsets)
                if offset < self._move_below and child != lowest and child not in touched
            )[: self._moves_left]
            self._moves_left -= len(old)
            moves += [child for _, child in old]
        return moves

    def write(self, kind: PageKind, entries: Buffer) -> Child:
        """Add a page to the batch."""
        offset = self._length
        self._written[offset] = page_parts(kind, self._state.key_length, entries, offset)
        length = len(entries) + PAGE_OVERHEAD_BYTES
        self._pages_written.append(WrittenPage(kind, offset, length))
        self._length += length
        return Child(offset, length, lowest_offset(kind, entries, self._state.key_length, offset))

    def write_split(self, content: _Content) -> list[tuple[bytes, Child]]:
        """Write content as one or more pages; return (first key, page) of each."""
        entry_bytes = self._state.key_length + value_bytes(content.kind)
        view = memoryview(content.entries)
        written = []
        position = 0
        for count in _split(len(view) // entry_bytes, max_entries(content.kind, self._state.key_length), content):
            part = view[position : position + count * entry_bytes]
            written.append((bytes(part[: self._state.key_length]), self.write(content.kind, part)))
            position += len(part)
        return written

    async def _write_root(self, content: _Content) -> Child | None:
        """Write the top of the tree: more levels after a split, fewer after it shrank."""
        while content.entries:
            if content.kind is PageKind.INDEX and len(content.entries) == self._state.key_length + INDEX_VALUE_BYTES:
                only = Page(
                    content.kind, self._state.key_length, INDEX_VALUE_BYTES, 1, 0, 0, memoryview(content.entries)
                ).child(0)
                return await self._shrink(only)
            written = self.write_split(content)
            if len(written) == 1:
                return written[0][1]
            entries = b"".join(key + pack_child(child) for key, child in written)
            content = _Content(PageKind.INDEX, entries, True)
        return None

    async def _shrink(self, root: Child) -> Child:
        """Return the first page from `root` down that is not an index page with one entry."""
        while True:
            page = await self._load_any(root)
            if page.kind is PageKind.LEAF or page.count > 1:
                return root
            self._replaced.append((page.offset, page.length))
            root = page.child(0)

    async def _load_any(self, child: Child) -> Page:
        parts = self._written.get(child.offset)
        if parts is None:
            return await load_page(self._state, child, self._state.length, self._pages)
        return decode_page(b"".join(parts), self._state.key_length, child.offset, child.length, self._pages.place)


class _Siblings:
    """Collects the new contents of one index page's children; small neighbours become one page."""

    def __init__(self, batch: _Batch) -> None:
        self._batch = batch
        self._updates: dict[bytes, bytes | None] = {}
        self._pending: _Content | None = None
        self._last_child = -1

    def add(self, child: int, key: bytes, content: _Content) -> None:
        """Replace the child at that index, whose entry has that key."""
        pending = self._pending
        if pending is not None and pending.entries and child == self._last_child + 1 and _fit_one(pending, content):
            content = _Content(content.kind, pending.entries + content.entries, False)
        else:
            self._flush()
        self._updates.setdefault(key, None)
        self._pending = content
        self._last_child = child

    def finish(self) -> list[tuple[bytes, bytes | None]]:
        """Return the index page's own changes, sorted."""
        self._flush()
        return sorted(self._updates.items())

    def _flush(self) -> None:
        if self._pending is not None:
            for key, child in self._batch.write_split(self._pending):
                self._updates[key] = pack_child(child)
        self._pending = None


def _fit_one(first: _Content, second: _Content) -> bool:
    """Return whether two neighbours fit half a page: joined, the next insert does not split them."""
    return len(first.entries) + len(second.entries) <= limits.ATTRIBUTE_PAGE_MAX_BYTES // 2


def _grows_right(page: Page, entries: bytes) -> bool:
    """Return whether all added keys follow the page's old last key (a sorted insert)."""
    entry_bytes = page.key_length + page.value_length
    old_last = page.key(page.count - 1)
    count = len(entries) // entry_bytes
    return search(entries, page.key_length, page.value_length, count, old_last) + 1 <= page.count


def _split(count: int, maximum: int, content: _Content) -> list[int]:
    """Return the number of entries of each page: full pages for sorted inserts, else even parts.

    See docs/design.md#attributes.
    """
    pages = -(-count // maximum)
    if content.grows_right:
        return [maximum] * (pages - 1) + ([count - maximum * (pages - 1)] if pages else [])
    return [count // pages + (1 if index < count % pages else 0) for index in range(pages)]
