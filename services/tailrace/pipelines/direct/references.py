"""Which bytes of segments are in Tier 2, and where, by the newest snapshots (docs/spark-direct.md; ADR 0031)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.cluster.segment_mapping import container_of
from tailrace.common import limits
from tailrace.common.errors import CorruptionError, NotFoundError, SegmentTruncatedError, UnavailableError
from tailrace.segmentstore.api import CREATION_TIME
from tailrace.segmentstore.tier2.snapshot import Snapshot, folder, parse_key

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Iterable

    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.storage.port import ObjectStore

CREATION_UNKNOWN: Final = -1
_end = attrgetter("end")


class Split(NamedTuple):
    """A range of a segment in two: what Tier 2 holds, and what only a segment store can return. None: empty.

    Where they meet an event may be in the middle: events are read from Tier 2 first, and from the store on from where
    the next event begins (`events.DirectEvents.offset`).
    """

    direct: tuple[int, int] | None
    store: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class SegmentReferences:
    """Where a segment's bytes are in Tier 2, as of a snapshot. It can be pickled, and is made small by `within`.

    Every byte from ``start_offset`` to ``length`` was covered by ``chunks`` in the snapshot. ``created_ms`` is the
    segment's attribute CREATION_TIME, which a deleted one of the same name does not share. ``snapshot`` is the object's
    key and ``time_ms`` when it was written.
    """

    segment: str
    segment_id: int
    created_ms: int
    start_offset: int
    length: int
    snapshot: str
    time_ms: int
    chunks: tuple[ChunkRef, ...]

    def split(self, start: int, end: int) -> Split:
        """Split [start, end) where this snapshot's knowledge ends.

        Raises:
            SegmentTruncatedError: bytes from ``start`` on are gone; the text names segment and offsets.
        """
        if start >= end:
            return Split(None, None)
        if start < self.start_offset:
            raise SegmentTruncatedError(self.segment, self.start_offset, start)
        middle = min(max(start, self.length), end)
        return Split((start, middle) if start < middle else None, (middle, end) if middle < end else None)

    def within(self, start: int, end: int) -> SegmentReferences:
        """Return the references that a partition needs: those of [start, end), and of an event that crosses its end.

        ``length`` is then the end of the last reference that was kept. An event longer than what is kept ends the
        direct read before it, and is read from the segment store.
        """
        first = bisect_right(self.chunks, start, key=_end)
        last = first
        reach = min(end + limits.EVENT_MAX_BYTES, self.length)
        while last < len(self.chunks) and self.chunks[last].segment_offset < reach:
            last += 1
        kept = self.chunks[first:last]
        return replace(self, chunks=kept, length=min(kept[-1].end, self.length) if kept else min(start, self.length))


class Request(NamedTuple):
    """Bytes [offset, offset + length) of a segment, within one reference and ending at a block's or its end."""

    ref: ChunkRef
    offset: int
    length: int


def requests(references: SegmentReferences, start: int, end: int, max_bytes: int) -> Iterable[Request]:
    """Yield the requests for [start, end), which lies within what is covered, in order and of whole blocks.

    ``max_bytes`` of each are a multiple of the block size.

    Raises:
        CorruptionError: references leave a gap, or do not reach ``end``.
    """
    position = start
    for ref in references.chunks[bisect_right(references.chunks, start, key=_end) :]:
        if position >= end:
            return
        if ref.segment_offset > position:
            break
        while position < min(ref.end, end):
            within = position - ref.segment_offset
            stop = min(within - within % max_bytes + max_bytes, ref.length, end - ref.segment_offset)
            yield Request(ref, position, stop - within)
            position = ref.segment_offset + stop
    if position < end:
        place = f"object {references.snapshot}"
        raise CorruptionError(place, f"no reference for byte {position} of segment {references.segment}")


async def newest_snapshot(store: ObjectStore, cluster_id: uuid.UUID, container: int) -> tuple[str, Snapshot] | None:
    """Return the newest snapshot of a container and its key; None when the container has none yet.

    Raises:
        CorruptionError: it is damaged, or another cluster's; the text names the object. FormatVersionError.
        UnavailableError: the store does not answer, or snapshots are replaced faster than they are read.
    """
    for _ in range(limits.DIRECT_SNAPSHOT_ATTEMPTS):
        listed = [parse_key(info.key) async for info in store.list(folder(container))]
        names = [found[1] for found in listed if found is not None and found[0] == container]
        if not names:
            return None
        key = max(names).key(container)
        try:
            data = await store.get(key)
        except NotFoundError:
            continue  # newer ones took its place
        snapshot = Snapshot.decode(key, data)
        if snapshot.cluster_id != cluster_id.bytes:
            raise CorruptionError(f"object {key}", f"written by another cluster, {snapshot.cluster_id.hex()}")
        return key, snapshot
    raise UnavailableError(
        f"each of {limits.DIRECT_SNAPSHOT_ATTEMPTS} snapshots of container {container} was deleted before it was read"
    )


async def load_snapshots(
    store: ObjectStore, cluster_id: uuid.UUID, containers: int, segments: Collection[str]
) -> tuple[dict[str, SegmentReferences], dict[str, int]]:
    """Return the references of those segments (full names) that the newest snapshots have, and the snapshots' times.

    The second result is the time, in ms since 1970, of the snapshot that would have a segment, also where it lacks it;
    a container without a snapshot gives none. One snapshot is in memory at a time.

    Raises:
        CorruptionError, DataLossError, FormatVersionError, UnavailableError: see `newest_snapshot`.
    """
    by_container: dict[int, dict[str, None]] = {}
    for name in segments:
        by_container.setdefault(container_of(name, containers), {})[name] = None
    found: dict[str, SegmentReferences] = {}
    times: dict[str, int] = {}
    for container, wanted in sorted(by_container.items()):
        newest = await newest_snapshot(store, cluster_id, container)
        if newest is None:
            continue
        key, snapshot = newest
        times |= dict.fromkeys(wanted, snapshot.time_ms)
        for segment in snapshot.segments(key):
            if segment.name in wanted:
                found[segment.name] = _references(segment, key, snapshot)
    return found, times


async def load_references(
    store: ObjectStore, cluster_id: uuid.UUID, containers: int, segments: Collection[str]
) -> dict[str, SegmentReferences]:
    """Return the first result of `load_snapshots`: a segment that is not in it is newer than the snapshot, or gone."""
    return (await load_snapshots(store, cluster_id, containers, segments))[0]


def _references(segment: Segment, key: str, snapshot: Snapshot) -> SegmentReferences:
    return SegmentReferences(
        segment=segment.name,
        segment_id=segment.segment_id,
        created_ms=segment.core.get(CREATION_TIME, CREATION_UNKNOWN),
        start_offset=segment.start_offset,
        length=segment.length,
        snapshot=key,
        time_ms=snapshot.time_ms,
        chunks=tuple(segment.chunks),
    )
