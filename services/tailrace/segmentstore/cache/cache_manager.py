"""The bytes behind the read index: one block cache for all containers of a worker, with a hard bound.

See "Yet Another Cache but for the Streaming World".

Entries that Tier 2 holds are evicted, least recently used first. All others can only be freed by a flush or a deletion,
so a caller that finds no room waits for one. A part of the room is for appends to internal segments alone, so that
controllers and reader groups go on while writers wait for Tier 2 (docs/adr/0053).

An append reserves, when it is staged, exactly what its commit takes. While it waits for its commit, only an event that
`StagedTail` knows can change that, and such an event adjusts the reservation first, or is put off.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

from tailrace.common import limits
from tailrace.kernel import BLOCK_BYTES, BlockCache, CacheView, blocks_needed
from tailrace.segmentstore.cache.staged_tail import StagedTail
from tailrace.segmentstore.cache.throttle import Throttle
from tailrace.segmentstore.metadata.read_index import Entry, FramePlaces, LogPlaces, ReadIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment

Buffer: TypeAlias = bytes | bytearray | memoryview


class CacheManager:
    """Inserts, appends, evicts and frees cache entries; callers reserve room or wait for it."""

    def __init__(self, cache: BlockCache) -> None:
        self.cache = cache
        self.evictions = 0
        self._evictable: OrderedDict[Entry, None] = OrderedDict()
        self._evictable_blocks = 0
        self.staged: dict[ReadIndex, StagedTail] = {}
        """Tails of segments with staged appends or merges; what they take together is what is reserved."""
        self._internal_blocks = int(cache.max_bytes * limits.CACHE_INTERNAL_PART) // BLOCK_BYTES
        writers_bytes = cache.max_bytes - self._internal_blocks * BLOCK_BYTES
        self.throttle = Throttle(writers_bytes, self._kept_bytes, self._press)
        self._pressure_listeners: list[Callable[[], None]] = []

    def on_pressure(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a reservation is refused, so that storage writers flush at once."""
        self._pressure_listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Undo `on_pressure`."""
        self._pressure_listeners.remove(listener)

    # -- room ----------------------------------------------------------------------------------------------------

    def has_room(self, blocks: int) -> bool:
        """Return whether so many blocks are free, or would be after evictions; views may pin some of them."""
        return self.cache.available_blocks + self._evictable_blocks >= blocks

    def reserve(self, blocks: int) -> bool:
        """Reserve blocks, evict no more entries than they need; return False when there are too few."""
        if self.cache.reserve(blocks) or (self._evict(blocks) and self.cache.reserve(blocks)):
            return True
        self._press()
        return False

    def _press(self) -> None:
        for listener in self._pressure_listeners:
            listener()

    def _kept_bytes(self) -> int:
        """Return the bytes that must stay: those that Tier 2 lacks, and reservations."""
        cache = self.cache
        return cache.max_bytes - (cache.available_blocks + self._evictable_blocks) * BLOCK_BYTES

    def _evict(self, blocks: int) -> bool:
        """Evict entries until so many blocks are free. Return False when there are too few, and evict none for that."""
        if not self.has_room(blocks):
            return False
        while self.cache.available_blocks < blocks and self._evictable:
            entry, _ = self._evictable.popitem(last=False)
            self._evictable_blocks -= blocks_needed(entry.length)
            entry.owner.remove(entry)
            self._free(entry)
            self.evictions += 1
        return self.cache.available_blocks >= blocks

    def _free(self, entry: Entry) -> None:
        if entry.address >= 0:
            self.cache.delete(entry.address)
            entry.address = -1

    # -- staged appends ------------------------------------------------------------------------------------------

    def stage_append(self, index: ReadIndex, end: int, length: int, *, internal: bool = False) -> bool:
        """Reserve what an append takes at its commit; return False when there is no room.

        ``end``: the segment's committed length.
        ``internal``: of an internal segment, which may fill the cache to its end.
        """
        tail = self._tail(index, end)
        blocks = tail.growth(length)
        if blocks:
            if not (internal or self.has_room(blocks + self._internal_blocks)):
                self._press()
                return False
            if not self.reserve(blocks):
                return False
        tail.append_staged(length)
        self.staged[index] = tail
        return True

    def stage_merge(self, index: ReadIndex, end: int) -> None:
        """Note that the entries of another segment will follow, by `move`. `end` as of `stage_append`."""
        tail = self.staged[index] = self._tail(index, end)
        tail.merge_staged()

    def unstage(self, index: ReadIndex) -> None:
        """Return the reservation of staged appends that will never be committed."""
        tail = self.staged.pop(index, None)
        if tail is not None:
            self._release(tail.blocks)

    def _tail(self, index: ReadIndex, end: int) -> StagedTail:
        return self.staged.get(index) or StagedTail(_free_in_tail(index, end))

    def _release(self, blocks: int) -> None:
        if blocks:
            self.cache.release_reservation(blocks)

    def _settled(self, index: ReadIndex, tail: StagedTail) -> None:
        """Forget a tail because nothing is staged; flush it again if it could not be made evictable before."""
        del self.staged[index]
        if tail.flush_again:
            self._press()

    def _close_tail(self, entry: Entry) -> bool:
        """Reserve what staged appends take in addition when an entry no longer grows; return False without room."""
        tail = self.staged.get(entry.owner)
        if tail is None or entry is not entry.owner.last:
            return True
        if not self.reserve(tail.closing()):
            tail.flush_again = True
            return False
        tail.closed()
        return True

    # -- entries -------------------------------------------------------------------------------------------------

    def append_tail(self, index: ReadIndex, offset: int, data: Buffer) -> None:
        """Add the committed bytes of a staged append at a segment's tail."""
        cache, tail = self.cache, self.staged[index]
        view = memoryview(data)
        position, total, entry_max = 0, len(view), _entry_max_bytes()
        while position < total:
            last = index.last
            take = min(total - position, entry_max)
            if last is not None and _grows(last, offset + position) and last.length < entry_max:
                take = min(take, entry_max - last.length)
                last.address = cache.append(last.address, last.length, view[position : position + take], True)
                last.length += take
            else:
                address = cache.insert(view[position : position + take], True)
                last = Entry(index, offset + position, take, address)
                index.add(last)
            position += take
            tail.append_committed(take, -last.length % BLOCK_BYTES)
        if tail.idle:
            self._settled(index, tail)

    def insert_untiered(self, index: ReadIndex, offset: int, data: Buffer, spare_blocks: int) -> bool:
        """Insert bytes that Tier 2 lacks anywhere in a segment with nothing staged; they grow the entry before them.

        Return False, and insert none, when fewer than `spare_blocks` would be left. Raises ValueError when an entry
        has one of the bytes.
        """
        view = memoryview(data)
        total, entry_max = len(view), _entry_max_bytes()
        if index.between(offset, offset + total):
            raise ValueError(f"bytes from {offset} to {offset + total} are in the read index already")
        before = index.find(offset - 1)
        if before is not None and not (_grows(before, offset) and before.length < entry_max):
            before = None
        free_bytes = -before.length % BLOCK_BYTES if before is not None else 0
        blocks = -(-max(total - free_bytes, 0) // BLOCK_BYTES)
        if not (self.has_room(blocks + spare_blocks) and self._evict(blocks)):
            return False
        position = 0
        if before is not None:
            position = min(total, entry_max - before.length)
            before.address = self.cache.append(before.address, before.length, view[:position])
            before.length += position
        for at in range(position, total, entry_max):
            piece = view[at : at + entry_max]
            index.add(Entry(index, offset + at, len(piece), self.cache.insert(piece)))
        return True

    def add_log_places(self, index: ReadIndex, offset: int, length: int, places: LogPlaces | FramePlaces) -> None:
        """Add an entry for bytes that recovery leaves in the log."""
        index.add(Entry(index, offset, length, -1, places))

    def insert_fetched(self, index: ReadIndex, offset: int, data: Buffer) -> None:
        """Keep bytes that were fetched from Tier 2, if eviction makes room for them."""
        view = memoryview(data)
        end = offset + len(view)
        position = offset
        while position < end:
            gap = index.first_gap(position, end)
            if gap is None:
                return
            stop = min(gap[1], gap[0] + limits.CACHE_ENTRY_MAX_BYTES)
            piece = view[gap[0] - offset : stop - offset]
            blocks = blocks_needed(len(piece))
            if not self._evict(blocks):
                return
            entry = Entry(index, gap[0], len(piece), self.cache.insert(piece))
            index.add(entry)
            self.make_evictable(entry)
            position = stop

    def make_evictable(self, entry: Entry) -> None:
        """Allow the eviction of an entry: Tier 2 holds every byte of it.

        A tail entry that staged appends will extend stays when there is no room for a new block for them. It is flushed
        and comes here again once it was extended.
        """
        if not entry.evictable:
            if entry.address < 0:
                entry.evictable = True
                entry.owner.remove(entry)
                return
            if not self._close_tail(entry):
                return
            entry.evictable = True
            self._evictable[entry] = None
            self._evictable_blocks += blocks_needed(entry.length)

    def touch(self, entry: Entry) -> None:
        """Make an entry that was read the most recently used one."""
        if entry.evictable and entry in self._evictable:
            self._evictable.move_to_end(entry)

    def drop(self, entry: Entry) -> None:
        """Free an entry that its index no longer holds."""
        if entry in self._evictable:
            del self._evictable[entry]
            self._evictable_blocks -= blocks_needed(entry.length)
        self._free(entry)

    def drop_below(self, index: ReadIndex, offset: int) -> None:
        """Free entries that end at or below `offset`; a tail entry that `make_evictable` would leave stays."""
        for entry in index.remove_below(offset):
            self.drop(entry)
        last = index.last
        if last is not None and last.end <= offset and self._close_tail(last):
            index.remove(last)
            self.drop(last)

    def drop_all(self, index: ReadIndex) -> None:
        """Free all entries of an index."""
        for entry in index.clear():
            self.drop(entry)

    def move(self, source: ReadIndex, target: ReadIndex, shift: int, end: int) -> None:
        """Move the entries of a merged source to its target, whose committed length is `end` then."""
        for entry in source.clear():
            entry.offset += shift
            target.add(entry)
        tail = self.staged.get(target)
        if tail is not None:
            self._release(tail.merge_committed(_free_in_tail(target, end)))
            if tail.idle:
                self._settled(target, tail)

    # -- bytes ---------------------------------------------------------------------------------------------------

    def copy(self, entries: Sequence[Entry], offset: int, length: int) -> bytearray:
        """Copy cached bytes [offset, offset + length) out of consecutive entries."""
        content = bytearray(length)
        target = memoryview(content)
        position = offset
        for entry in entries:
            take = min(entry.end, offset + length) - position
            at = position - offset
            self.cache.copy_into(entry.address, entry.length, position - entry.offset, take, target[at : at + take])
            self.touch(entry)
            position += take
        return content

    def pin(self, entry: Entry) -> CacheView:
        """Return a view of an entry's bytes; the blocks stay until `unpin`."""
        return self.cache.view(entry.address)

    def unpin(self, view: CacheView) -> None:
        """Release a view of `pin`."""
        view.release()


def _entry_max_bytes() -> int:
    """Return how long an entry may grow: whole blocks, so that only the last entry has one that is partly filled."""
    return limits.CACHE_ENTRY_MAX_BYTES // BLOCK_BYTES * BLOCK_BYTES


def _grows(entry: Entry, end: int) -> bool:
    """Return whether bytes from `end` on may be added to an entry."""
    return not entry.evictable and entry.address >= 0 and entry.end == end


def _free_in_tail(index: ReadIndex, end: int) -> int:
    """Return how many bytes from `end` on fit in the last block of the tail entry."""
    last = index.last
    return -last.length % BLOCK_BYTES if last is not None and _grows(last, end) else 0


def mark_tiered(segment: Segment | None, ref: ChunkRef, cache: CacheManager) -> None:
    """Let the cache evict the entries whose bytes Tier 2 holds now that `ref` is committed.

    ``segment`` is None when it was deleted or merged before.
    """
    if segment is None:
        return
    for entry in segment.read_index.between(ref.segment_offset, ref.end):
        if segment.chunks.covers(max(entry.offset, segment.start_offset), entry.end):
            cache.make_evictable(entry)


def drop_truncated(segment: Segment, cache: CacheManager) -> None:
    """Free the entries below a segment's new start; let the cache evict the one around it if Tier 2 holds the rest.

    No later chunk touches that entry when Tier 2 lacked only what was truncated.
    """
    start = segment.start_offset
    cache.drop_below(segment.read_index, start)
    entry = segment.read_index.find(start)
    if entry is not None and segment.chunks.covers(start, entry.end):
        cache.make_evictable(entry)
