"""One segment of a container, staged and committed (docs/design.md#write-path, docs/design.md#tier-2)."""

from __future__ import annotations

import asyncio
import math
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, SegmentTruncatedError
from tailrace.common.names import is_internal_segment
from tailrace.segmentstore.api import (
    CORE_ATTRIBUTE_PREFIX,
    CREATION_TIME,
    EVENT_COUNT,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    TABLE_COMPACTION_OFFSET,
    TABLE_ENTRY_COUNT,
    TABLE_TOTAL_ENTRY_COUNT,
    SegmentKind,
    SegmentProperties,
    is_core_attribute,
)
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.coverage import Coverage
from tailrace.segmentstore.metadata.dirty_attributes import DirtyAttributes
from tailrace.segmentstore.metadata.event_starts import EventStarts
from tailrace.segmentstore.metadata.pending_appends import PendingAppends
from tailrace.segmentstore.metadata.read_index import ReadIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.segmentstore.metadata.fields import Attributes, ChunkRef
    from tailrace.segmentstore.metadata.segment_rate import SegmentRate
    from tailrace.segmentstore.metadata.untiered_room import UntieredRoom


_EVICTION_RUN = 256
"""Attributes that an eviction takes from the map at once, while it changes the map."""


_CORE_KEYS = {
    key: key
    for key in (
        *(CREATION_TIME, EVENT_COUNT, SCALE_POLICY_TYPE, SCALE_POLICY_RATE, ROLLOVER_SIZE),
        *(TABLE_ENTRY_COUNT, TABLE_TOTAL_ENTRY_COUNT, TABLE_COMPACTION_OFFSET),
    )
}


def shared_key(key: bytes) -> bytes:
    """Return the one object for the id of a usual core attribute: every segment has some of them."""
    return _CORE_KEYS.get(key, key)


class Damage(NamedTuple):
    """What is wrong with the attribute index of a segment, and when it is read again, in the event loop's time."""

    place: str
    reason: str
    retry_at_s: float

    def error(self) -> CorruptionError:
        """Return the error for what needs the index until then."""
        return CorruptionError(self.place, self.reason)


class Segment:
    """One segment of a container."""

    __slots__ = (
        "attributes_deadline",
        "chunks",
        "committed",
        "core",
        "damage",
        "dirty",
        "event_starts",
        "flush_deadline",
        "flushing",
        "held",
        "index",
        "index_pages",
        "inflight",
        "internal",
        "key_length",
        "kind",
        "last_modified_ms",
        "latest",
        "length",
        "name",
        "pending",
        "rate",
        "read_index",
        "sealed",
        "segment_id",
        "staged_gone",
        "staged_length",
        "staged_sealed",
        "staged_start",
        "start_offset",
        "waiters",
    )

    def __init__(
        self,
        segment_id: int,
        name: str,
        kind: SegmentKind,
        key_length: int,
        timestamp_ms: int,
        untiered: UntieredRoom | None = None,
    ) -> None:
        self.segment_id = segment_id
        self.name = name
        self.internal = is_internal_segment(name)
        self.kind = kind
        self.key_length = key_length
        self.last_modified_ms = timestamp_ms
        self.length = self.staged_length = 0
        self.start_offset = self.staged_start = 0
        self.sealed = self.staged_sealed = False
        self.staged_gone = False
        self.latest: dict[bytes, int] = {}  # least recently used first
        self.committed: dict[bytes, int] = {}
        self.core = self.committed
        """The core attributes in `committed`, which are never evicted: itself, until it has others."""
        self.dirty = DirtyAttributes(untiered)
        self.index = ops.EMPTY_INDEX
        self.index_pages = Coverage()
        self.damage: Damage | None = None  # of the attribute index
        self.held: dict[bytes, int] = {}
        """How many changes in flight and lookups need an attribute in memory; those are never evicted."""
        self.inflight = 0
        self.chunks = Coverage()
        self.pending = PendingAppends(untiered)
        self.event_starts = EventStarts(one_event=kind.is_transient)
        self.flush_deadline = self.attributes_deadline = math.inf
        self.flushing = False
        self.read_index = ReadIndex()
        self.rate: SegmentRate | None = None  # from the first time that it is asked for
        self.waiters: dict[asyncio.Future[None], None] | None = None

    @property
    def attribute_key_length(self) -> int:
        """Length of the ids of extended attributes."""
        return self.key_length or 16

    @property
    def chunk_max_bytes(self) -> int:
        """Length of a chunk at most: the stream's rollover size, within bounds; without one that of any object."""
        rollover_bytes = self.core.get(ROLLOVER_SIZE, 0)
        if rollover_bytes <= 0:
            return limits.FLUSH_OBJECT_MAX_BYTES
        return min(max(rollover_bytes, limits.ROLLOVER_MIN_BYTES), limits.FLUSH_OBJECT_MAX_BYTES)

    def properties(self) -> SegmentProperties:
        """Committed properties."""
        return SegmentProperties(
            name=self.name,
            segment_id=self.segment_id,
            kind=self.kind,
            key_length=self.key_length,
            length=self.length,
            start_offset=self.start_offset,
            sealed=self.sealed,
            last_modified_ms=self.last_modified_ms,
            core_attributes=self.core.copy(),
        )

    def check_not_truncated(self, offset: int) -> None:
        """Raise SegmentTruncatedError when the offset is below the committed start."""
        if offset < self.start_offset:
            raise SegmentTruncatedError(self.name, self.start_offset)

    def stage_attributes(self, values: Attributes) -> None:
        """Stage final attribute values, and hold them until `release` after the commit of their operation."""
        latest, held = self.latest, self.held
        for key, value in values:
            latest.pop(key, None)  # insert it at the end
            latest[key] = value
            held[key] = held.get(key, 0) + 1

    def hold(self, keys: Iterable[bytes]) -> None:
        """Keep attributes in memory, once they are there, until `release`."""
        held = self.held
        for key in keys:
            held[key] = held.get(key, 0) + 1

    def release(self, keys: Iterable[bytes]) -> None:
        """Undo a call of `hold`, or of `stage_attributes`."""
        held = self.held
        for key in keys:
            if (count := held[key]) == 1:
                del held[key]
            else:
                held[key] = count - 1
        if not held:
            held.clear()  # frees its table

    def touch(self, keys: Iterable[bytes]) -> None:
        """Mark the attributes in memory as the most recently used."""
        latest = self.latest
        for key in keys:
            if (value := latest.pop(key, None)) is not None:
                latest[key] = value

    def set_attributes(self, sequence: int, values: Attributes) -> None:
        """Commit final attribute values."""
        committed, core, put = self.committed, self.core, self.dirty.put
        for key, value in values:
            if key in core:
                committed[key] = core[key] = value
            elif is_core_attribute(key):
                kept = shared_key(key)
                committed[kept] = core[kept] = value
            else:
                if core is committed:
                    core = self._part_core()
                committed[key] = value
                put(key, sequence)

    def set_last_attributes(self, values: dict[bytes, int], sequences: dict[bytes, int]) -> None:
        """Commit the last values of attributes, in the order of the operations that set them: `sequences`."""
        core = [key for key in values if key.startswith(CORE_ATTRIBUTE_PREFIX) and is_core_attribute(key)]
        if len(core) < len(values):
            self._part_core()
        self.committed.update(values)
        for key in core:
            self.core[key] = values[key]
        if core:
            sequences = {key: sequence for key, sequence in sequences.items() if key not in self.core}
        self.dirty.put_all(sequences)

    def keep(self, key: bytes, value: int) -> None:
        """Keep a value in memory that the index holds, or that it knows not to be set."""
        self._part_core()
        self.latest[key] = self.committed[key] = value

    def _part_core(self) -> dict[bytes, int]:
        """Return the core attributes, apart from the others that the segment gets now."""
        if self.core is self.committed:
            self.core = dict(self.committed)
        return self.core

    @property
    def clean_values(self) -> int:
        """Return how many values in memory the attribute index holds, too, or knows not to be set."""
        return len(self.committed) - len(self.core) - len(self.dirty)

    def evict_values(self, wanted: int, scan_max: int) -> tuple[int, int]:
        """Evict so many clean values, least recently used first, except those held; examine at most `scan_max`.

        Values that stay move to the end, so that the next call examines others. Returns how many were evicted and how
        many examined.
        """
        latest, committed, dirty, held = self.latest, self.committed, self.dirty, self.held
        unseen = min(len(latest), scan_max)
        evicted = examined = 0
        while evicted < wanted and examined < unseen:
            for key in list(islice(latest, min(unseen - examined, _EVICTION_RUN))):
                if evicted == wanted:
                    break
                examined += 1
                value = latest.pop(key)
                if key in dirty or key in held or is_core_attribute(key):
                    latest[key] = value
                else:
                    committed.pop(key, None)
                    evicted += 1
        return evicted, examined

    def drop_pending_below(self, offset: int) -> None:
        """Forget appends that end at or below `offset`."""
        count = 0
        for item in self.pending:
            if item.end > offset:
                break
            count += 1
        self.pending.remove_first(count)

    def drop_tiered(self, ref: ChunkRef) -> None:
        """Forget appends that Tier 2 holds entirely, after `ref` was added."""
        covers, start = self.chunks.covers, self.start_offset
        self.pending.remove_tiered(ref.segment_offset, ref.end, lambda begin, end: covers(max(begin, start), end))

    def reset_staged(self) -> None:
        """Make the staged view equal to the committed one (after replay)."""
        self.staged_length = self.length
        self.staged_start = self.start_offset
        self.staged_sealed = self.sealed
        self.staged_gone = False
        self.latest = dict(self.committed)
        self.event_starts.recover(self.length)

    async def changed(self) -> None:
        """Wait until `wake`; a cancelled reader removes its waiter."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self.waiters
        if waiters is None:
            waiters = self.waiters = {}
        waiters[waiter] = None
        try:
            await waiter
        finally:
            waiters.pop(waiter, None)

    def wake(self) -> None:
        """Wake waiting readers, so that they check the segment again."""
        waiters = self.waiters
        if waiters is None:
            return
        self.waiters = None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
