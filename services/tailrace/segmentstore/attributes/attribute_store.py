"""Attributes of a container's segments: values in memory, over cached index pages, over Tier 2.

See docs/design.md#attributes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.segmentstore import attributes as index
from tailrace.segmentstore.api import NULL_ATTRIBUTE, is_core_attribute
from tailrace.segmentstore.attributes.page import LEAF_VALUE_BYTES
from tailrace.segmentstore.attributes.pages import (
    CachedSegmentPages,
    PageCache,
    PageKey,
    PageNotCachedError,
    PageReads,
    PageRoom,
    SegmentPages,
)
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.segment import Damage
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.segmentstore.metadata.dirty_attributes import DirtyBatch
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.value_room import ValueRoom

_log = structlog.get_logger()
_PAGES_MAX_BYTES = limits.ATTRIBUTE_PAGES_CACHED_MAX_BYTES


class AttributeFlush(NamedTuple):
    """New pages in Tier 2: the operation that commits them, the updates in them, the pages that they replace."""

    operation: ops.CommitIndex
    items: list[tuple[bytes, int]]
    replaced: list[PageKey]


class AttributeStore:
    """Reads, loads and flushes extended attributes."""

    def __init__(self, tier2: ChunkObjects, values: ValueRoom, room: PageRoom | None = None) -> None:
        self._tier2 = tier2
        self._values = values
        self._closed = False
        self._reads = PageReads(PageCache(_PAGES_MAX_BYTES, room), tier2)

    def close(self) -> None:
        """Drop the pages in memory, and count no more values: the container has ended."""
        self._closed = True
        self._reads.cache.close()

    @property
    def cached_page_bytes(self) -> int:
        """Bytes of index pages in memory."""
        return self._reads.cache.used_bytes

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

    def _reader(self, segment: Segment) -> SegmentPages:
        return SegmentPages(segment, self._reads)

    async def load(self, segment: Segment, attribute_ids: Sequence[bytes]) -> None:
        """Load values into memory, so that operations can be staged against them; evict others when there are many.

        Name all attributes that the operation needs. On return all of them are in memory: those that were there before
        are held meanwhile, too. A value that is staged meanwhile takes precedence (docs/design.md#admit).
        """
        segment.hold(attribute_ids)
        try:
            if wanted := sorted({key for key in attribute_ids if key not in segment.latest}):
                _keep(segment, wanted, await self._look_up(segment, wanted))
                self.make_room(segment)
        finally:
            segment.release(attribute_ids)

    def load_cached(self, segment: Segment, attribute_ids: Sequence[bytes]) -> bool:
        """Load values as `load` from index pages in memory; return False, and load nothing, when a page is not there.

        It never waits, so an operation can be staged in the same turn of the event loop.
        """
        wanted = [key for key in attribute_ids if key not in segment.latest]
        pages = CachedSegmentPages(segment, self._reads)
        state = self._state(segment)
        found: dict[bytes, int] = {}
        for key in wanted:  # one at a time: a lookup of several keys reads pages in tasks
            lookup = index.get_many(state, (key,), pages)
            try:
                lookup.send(None)
            except StopIteration as ended:
                found.update(ended.value)
            except (PageNotCachedError, CorruptionError):
                return False  # `load` reads the page, or reports the damage
            else:
                raise AssertionError("a lookup in memory waited")
        _keep(segment, wanted, found)
        return True

    @staticmethod
    def check_readable(segment: Segment) -> None:
        """Raise CorruptionError while the index is known to be damaged, until ``limits.DAMAGE_RETRY_S`` later.

        Values in memory stay right. So only what needs the index is refused, and the rest of the container goes on.
        """
        if segment.damage is not None and segment.damage.retry_at_s > asyncio.get_running_loop().time():
            raise segment.damage.error()

    def _damaged(self, segment: Segment, error: CorruptionError) -> None:
        """Keep what is wrong with the index; log it once."""
        if segment.staged_gone:
            return  # deleted or merged meanwhile, and its pages with it
        if segment.damage is None:
            _log.error("attribute_index_damaged", segment=segment.name, place=error.place, reason=error.reason)
        retry_at_s = asyncio.get_running_loop().time() + limits.DAMAGE_RETRY_S
        segment.damage = Damage(error.place, error.reason, retry_at_s)
        segment.dirty.leave_room()  # they have a bound of their own, and must not keep all others waiting
        self._values.forget(segment)

    def _forget_damage(self, segment: Segment) -> None:
        """Forget damage once the index was read again later; a lookup that meets it again reports it again."""
        if segment.damage is not None and segment.damage.retry_at_s <= asyncio.get_running_loop().time():
            _log.warning("attribute_index_read_again", segment=segment.name, place=segment.damage.place)
            segment.damage = None
            if not segment.staged_gone:
                segment.dirty.enter_room()
                self._count_values(segment)

    def make_room(self, segment: Segment) -> None:
        """Evict old values after some were loaded: of this segment when it has far too many, then of all.

        Writers that are set up and append nothing leave one each, and so do conditions that fail. No flush evicts them.
        """
        bound = limits.ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX
        if segment.clean_values > 2 * bound:
            segment.evict_values(segment.clean_values - bound, limits.ATTRIBUTES_EVICTION_SCAN_MAX)
        self._count_values(segment)

    def _count_values(self, segment: Segment) -> None:
        if not self._closed:
            self._values.count(segment)

    async def _look_up(self, segment: Segment, wanted: list[bytes]) -> dict[bytes, int]:
        """Return values that some root of the index holds.

        The caller holds the keys and prefers values in memory. So a value that changes meanwhile is found there, and
        what an older root says of the others still counts. Only a lookup whose own pages were replaced and truncated
        begins again. Raises CorruptionError for a damaged page of the present index.
        """
        self.check_readable(segment)
        while True:
            root = segment.index
            if not root.root_length:
                return {}
            try:
                found = await index.get_many(self._state(segment), wanted, self._reader(segment))
            except CorruptionError as error:
                if segment.index is root:
                    self._damaged(segment, error)
                    raise
            else:
                self._forget_damage(segment)
                return found

    def get_in_memory(self, segment: Segment, attribute_ids: Sequence[bytes]) -> dict[bytes, int] | None:
        """Return the committed values of those attributes that are set; None when that takes a read, or many lookups.

        What it finds in index pages in memory stays in memory until room is needed, as after `load`.
        """
        committed = segment.committed
        absent: list[bytes] = []
        if segment.index.root_length:
            absent = [key for key in attribute_ids if key not in committed and not is_core_attribute(key)]
        if len(absent) > limits.ATTRIBUTES_LOOKED_UP_AT_ONCE_MAX:
            return None  # `get` looks up many with one walk over the index, and others have turns meanwhile
        if absent and not (self.load_cached(segment, absent) and all(key in committed for key in absent)):
            return None
        segment.touch(attribute_ids)
        found = ((key, committed.get(key, NULL_ATTRIBUTE)) for key in attribute_ids)
        values = {key: value for key, value in found if value != NULL_ATTRIBUTE}
        if absent:
            self.make_room(segment)
        return values

    async def get(self, segment: Segment, attribute_ids: Sequence[bytes], *, keep: bool = False) -> dict[bytes, int]:
        """Return the committed values of those attributes that are set, all as of one moment.

        With `keep` those that were looked up stay in memory until room is needed, as after `load`.
        """
        committed = segment.committed
        found: dict[bytes, int] = {}
        absent = {key for key in attribute_ids if key not in committed and not is_core_attribute(key)}
        if absent and segment.index.root_length:
            segment.hold(attribute_ids)  # also those in memory: they are read after the lookup
            try:
                wanted = sorted(absent)
                found = await self._look_up(segment, wanted)
                if keep:
                    _keep(segment, wanted, found)
                    self.make_room(segment)
            finally:
                segment.release(attribute_ids)
        segment.touch(attribute_ids)
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
        self.check_readable(segment)
        while True:
            root = segment.index
            stored: list[tuple[bytes, int]] = []
            try:
                if root.root_length:
                    stored = await index.iterate(self._state(segment), from_id, to_id, limit, self._reader(segment))
            except CorruptionError as error:
                if segment.index is root:
                    self._damaged(segment, error)
                    raise
            if segment.index is root:
                break
            # Values may have left the dirty ones since that root. The pages that changed are in memory.
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
        """Write new index pages for dirty attributes to Tier 2: all of a small index, neighbours of a large one.

        Returns the operation that commits them; None when nothing is dirty. Memory: about
        `limits.FLUSH_INDEX_MAX_BYTES`; of a large index a few pages more if no two of its leaves have the same parent.
        Raises CorruptionError for a damaged page.
        """
        state = self._state(segment)
        small = _may_rewrite_all(state)
        try:
            if small:
                batch, moves_max = segment.dirty.oldest(limits.FLUSH_ATTRIBUTES_BATCH_MAX), None
            else:
                batch = await _neighbours(segment, state, self._reader(segment))
                moves_max = limits.ATTRIBUTE_MOVES_MAX
            if not batch.items:
                return None
            keys = sorted(key for key, _ in batch.items)
            changes = [(key, None if (value := segment.committed[key]) == NULL_ATTRIBUTE else value) for key in keys]
            reader = SegmentPages(segment, self._reads, keep_leaves=False)
            update = await index.update(state, changes, reader, moves_max=moves_max)
            replaced = [reader.key_of(*place) for place in update.replaced if place[0] < state.length]
        except CorruptionError as error:
            self._damaged(segment, error)
            raise
        self._forget_damage(segment)
        root = root_of(update.state, batch.flushed_through)
        pages: list[ChunkRef] = []
        if update.data:
            section = Section(segment.segment_id, segment.name + "$attributes.index", segment.index.length, update.data)
            pages = [ref for _, ref in await self._tier2.write([section], kind="a")]
            self._reads.cache.put_written(pages[0], update)
        if not small:
            segment.dirty.flushed_to(batch.items[-1][0])
        return AttributeFlush(ops.CommitIndex(segment.segment_id, root, pages), batch.items, replaced)

    def flushed(self, segment: Segment, flush: AttributeFlush) -> None:
        """Forget, after the commit of a flush, the updates that the index holds now, and the pages that it lost."""
        segment.dirty.settle_items(flush.items)
        self._reads.cache.forget(flush.replaced)

    def evict(self, segment: Segment) -> None:
        """Evict values after a flush, which the index holds: of this segment when it has too many, then of all.

        Not for a few of them: the search looks at as many values that the index lacks, and a large index is flushed
        again and again while thousands of those wait.
        """
        bound = limits.ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX
        if len(segment.latest) > bound and segment.clean_values > bound // 2 and segment.index.root_length:
            segment.evict_values(len(segment.latest) - bound // 2, limits.ATTRIBUTES_EVICTION_SCAN_MAX)
        self._count_values(segment)


def root_of(state: index.IndexState, flushed_through: int) -> ops.IndexRoot:
    """Return what the log holds of an index."""
    return ops.IndexRoot(
        root_offset=state.root_offset,
        root_length=state.root_length,
        start_offset=state.start_offset,
        length=state.length,
        live_bytes=state.live_bytes,
        flushed_through=flushed_through,
    )


def _keep(segment: Segment, wanted: Sequence[bytes], found: dict[bytes, int]) -> None:
    """Keep the values of looked up attributes in memory, except those staged meanwhile."""
    for key in wanted:
        if key not in segment.latest:
            segment.keep(key, found.get(key, NULL_ATTRIBUTE))


def _may_rewrite_all(state: index.IndexState) -> bool:
    """Return whether one flush may rewrite all pages of an index for as many attributes as one takes."""
    added_bytes = limits.FLUSH_ATTRIBUTES_BATCH_MAX * 2 * (state.key_length + LEAF_VALUE_BYTES)
    return state.live_bytes + added_bytes <= limits.FLUSH_INDEX_MAX_BYTES


async def _neighbours(segment: Segment, state: index.IndexState, pages: SegmentPages) -> DirtyBatch:
    """Return the attributes that wait for the next leaves of a large index (docs/adr/0054)."""
    leaves_max = limits.FLUSH_ATTRIBUTE_LEAVES_MAX
    ahead, first = segment.dirty.neighbours(limits.FLUSH_ATTRIBUTES_BATCH_MAX, _flushes_per_round(state))
    reached, leaves = await index.reach(state, ahead, pages, leaves_max)
    chosen = ahead[:reached]
    if reached == len(ahead) and leaves < leaves_max:
        reached, _ = await index.reach(state, first, pages, leaves_max - leaves)
        chosen += first[:reached]
    return segment.dirty.batch(chosen)


def _flushes_per_round(state: index.IndexState) -> int:
    """Return in how many flushes a round over all leaves should end, also when removals left them a quarter full."""
    flush_bytes = limits.FLUSH_ATTRIBUTE_LEAVES_MAX * limits.ATTRIBUTE_PAGE_MAX_BYTES // 4
    return 2 + state.live_bytes // flush_bytes


def _after(key: bytes) -> bytes:
    """Return the smallest key of the same length above `key`; `key` when there is none."""
    number = int.from_bytes(key, "big") + 1
    if number >> (8 * len(key)):
        return key
    return number.to_bytes(len(key), "big")
