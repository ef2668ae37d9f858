"""Reads the attribute index: lookups and ranges over any root that has not been truncated.

See docs/design.md#attributes.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, CorruptionError
from tailrace.kernel import lookup_many, search
from tailrace.segmentstore.attributes.page import (
    Buffer,
    Child,
    Page,
    PageBytes,
    PageKind,
    decode_page,
    unpack_attribute,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_KEY_LENGTH: Final = 16


class PageReader(Protocol):
    """Port to the bytes of one attribute segment; `AttributeStore` implements it over cache and Tier 2."""

    @property
    def place(self) -> str:
        """Names the segment in errors."""
        ...

    async def read(self, offset: int, length: int) -> Buffer | PageBytes:
        """Return exactly these bytes. A view must stay valid until the call that reads it returns."""
        ...

    async def read_many(self, places: Sequence[tuple[int, int]]) -> Sequence[Buffer | PageBytes]:
        """Return the bytes of several pages: offset and length of each. See `read`."""
        return await asyncio.gather(*(self.read(offset, length) for offset, length in places))


@dataclass(frozen=True, slots=True)
class IndexState:
    """What the container commits through its log about an attribute index (docs/design.md#attributes).

    ``root_offset``, ``root_length``: the root page; a length of 0 means that the index is empty.
    ``start_offset``: the lowest live offset; what lies below may be truncated. ``length``: where the next batch is
    appended. ``live_bytes``: sum of the lengths of live pages. ``key_length``: bytes of every key.
    """

    root_offset: int = 0
    root_length: int = 0
    start_offset: int = 0
    length: int = 0
    live_bytes: int = 0
    key_length: int = DEFAULT_KEY_LENGTH

    def __post_init__(self) -> None:
        if not 1 <= self.key_length <= limits.ATTRIBUTE_KEY_MAX_BYTES:
            raise BadRequestError(
                f"attribute key length {self.key_length} is not in 1..{limits.ATTRIBUTE_KEY_MAX_BYTES}"
            )

    @property
    def is_empty(self) -> bool:
        """Whether the index holds no attribute."""
        return self.root_length == 0

    @property
    def root(self) -> Child:
        """The root page."""
        return Child(self.root_offset, self.root_length, self.start_offset)


async def load_page(
    state: IndexState, child: Child, parent_offset: int, pages: PageReader, *, verify: bool = True
) -> Page:
    """Read and verify a page that a parent at `parent_offset` (for the root: the index's length) points to.

    Without ``verify`` a page in memory that was verified before is not verified again.

    Raises:
        CorruptionError: the reference or the page is wrong.
    """
    _check_child(state, child, parent_offset, pages)
    return _decoded(state, child, await pages.read(child.offset, child.length), pages, verify=verify)


def _check_child(state: IndexState, child: Child, parent_offset: int, pages: PageReader) -> None:
    if not state.start_offset <= child.offset < child.offset + child.length <= parent_offset:
        raise CorruptionError(
            f"{pages.place}, attribute page at {parent_offset}",
            f"child at [{child.offset}, +{child.length}) is not in [{state.start_offset}, {parent_offset})",
        )


def _decoded(state: IndexState, child: Child, data: Buffer | PageBytes, pages: PageReader, *, verify: bool) -> Page:
    if isinstance(data, PageBytes):
        return data.page(state.key_length, child.offset, pages.place, verify=verify)
    return decode_page(data, state.key_length, child.offset, child.length, pages.place)


async def load_children(
    state: IndexState, page: Page, indices: Sequence[int], pages: PageReader, *, verify: bool = True
) -> list[Page]:
    """Return the children at these indices, read together; at most ``limits.ATTRIBUTE_PAGE_READS_MAX`` of them."""
    children = [page.child(index) for index in indices]
    if len(children) == 1:
        return [await load_page(state, children[0], page.offset, pages, verify=verify)]
    for child in children:
        _check_child(state, child, page.offset, pages)
    found = await pages.read_many([(child.offset, child.length) for child in children])
    return [_decoded(state, child, data, pages, verify=verify) for child, data in zip(children, found, strict=True)]


def route(page: Page, keys: Sequence[bytes]) -> list[tuple[int, int, int]]:
    """Return which children of an index page hold which of the sorted keys: (child, first key, end key) in order.

    Keys below the first entry belong to the first child.
    """
    routes = []
    position = 0
    while position < len(keys):
        child = max(0, search(page.entries, page.key_length, page.value_length, page.count, keys[position]))
        end = len(keys) if child + 1 == page.count else bisect_left(keys, page.key(child + 1), position)
        routes.append((child, position, end))
        position = end
    return routes


async def get_many(state: IndexState, keys: Sequence[bytes], pages: PageReader) -> dict[bytes, int]:
    """Return the values of the keys that are set.

    Raises:
        BadRequestError: a key does not have the index's key length.
        CorruptionError: a page is damaged; the error names its place.
    """
    check_key_lengths(state, keys)
    found: dict[bytes, int] = {}
    if keys and not state.is_empty:
        root = await load_page(state, state.root, state.length, pages, verify=False)
        await _get_below(state, root, sorted(set(keys)), pages, found)
    return found


async def _get_below(
    state: IndexState, page: Page, keys: Sequence[bytes], pages: PageReader, found: dict[bytes, int]
) -> None:
    if page.kind is PageKind.LEAF:
        values = lookup_many(page.entries, page.key_length, page.value_length, page.count, keys)
        found.update(
            (key, unpack_attribute(value)) for key, value in zip(keys, values, strict=True) if value is not None
        )
        return
    routes = route(page, keys)
    for first in range(0, len(routes), limits.ATTRIBUTE_PAGE_READS_MAX):
        group = routes[first : first + limits.ATTRIBUTE_PAGE_READS_MAX]
        children = await load_children(state, page, [child for child, _, _ in group], pages, verify=False)
        for child_page, (_, start, end) in zip(children, group, strict=True):
            await _get_below(state, child_page, keys[start:end], pages, found)


async def reach(state: IndexState, keys: Sequence[bytes], pages: PageReader, leaves_max: int) -> tuple[int, int]:
    """Return how many of the sorted keys, from the first one on, belong to no more than `leaves_max` leaves.

    The second number is that of these leaves. A key belongs to the leaf that holds it, or would hold it. Apart from one
    leaf only index pages are read.

    Raises:
        BadRequestError: a key does not have the index's key length.
        CorruptionError: a page is damaged; the error names its place.
    """
    check_key_lengths(state, keys)
    if not keys or state.is_empty:
        return len(keys), 0
    root = await load_page(state, state.root, state.length, pages, verify=False)
    levels, page = 0, root  # of index pages: all leaves lie equally deep
    while page.kind is PageKind.INDEX:
        levels += 1
        child = route(page, keys[:1])[0][0]
        page = await load_page(state, page.child(child), page.offset, pages, verify=False)
    return await _reach_below(state, root, levels, keys, pages, leaves_max)


async def _reach_below(
    state: IndexState, page: Page, levels: int, keys: Sequence[bytes], pages: PageReader, leaves_max: int
) -> tuple[int, int]:
    """Do what `reach` does below a page that heads so many levels of index pages; return the number of leaves, too."""
    if not levels:
        return len(keys), 1
    reached = leaves = 0
    for child, start, end in route(page, keys):
        if leaves == leaves_max:
            break
        if levels == 1:
            reached, leaves = end, leaves + 1
            continue
        below = await load_page(state, page.child(child), page.offset, pages, verify=False)
        count, more = await _reach_below(state, below, levels - 1, keys[start:end], pages, leaves_max - leaves)
        reached, leaves = start + count, leaves + more
    return reached, leaves


async def iterate(
    state: IndexState, from_key: bytes, to_key: bytes, limit: int, pages: PageReader
) -> list[tuple[bytes, int]]:
    """Return entries with from_key <= key <= to_key in unsigned byte order, at most `limit` of them.

    Raises:
        BadRequestError: a bound does not have the index's key length.
        CorruptionError: a page is damaged; the error names its place.
    """
    check_key_lengths(state, (from_key, to_key))
    result: list[tuple[bytes, int]] = []
    if limit > 0 and from_key <= to_key and not state.is_empty:
        root = await load_page(state, state.root, state.length, pages, verify=False)
        await _iterate_below(state, root, (from_key, to_key), limit, pages, result)
    return result


async def _iterate_below(
    state: IndexState,
    page: Page,
    bounds: tuple[bytes, bytes],
    limit: int,
    pages: PageReader,
    result: list[tuple[bytes, int]],
) -> None:
    from_key, to_key = bounds
    first = search(page.entries, page.key_length, page.value_length, page.count, from_key)
    end = search(page.entries, page.key_length, page.value_length, page.count, to_key) + 1
    if page.kind is PageKind.LEAF:
        if first < 0 or page.key(first) < from_key:
            first += 1
        end = min(end, first + limit - len(result))
        result.extend((page.key(index), page.attribute(index)) for index in range(first, end))
        return
    for index in range(max(first, 0), end):
        child = await load_page(state, page.child(index), page.offset, pages, verify=False)
        await _iterate_below(state, child, bounds, limit, pages, result)
        if len(result) >= limit:
            return


def check_key_lengths(state: IndexState, keys: Sequence[bytes]) -> None:
    """Raise BadRequestError unless all keys have the index's key length."""
    for key in keys:
        if len(key) != state.key_length:
            raise BadRequestError(f"attribute key of {len(key)} bytes in an index of {state.key_length}-byte keys")
