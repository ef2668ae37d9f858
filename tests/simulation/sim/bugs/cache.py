"""Planted bugs of the block cache, the read index and their budgets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sim.bugs.registry import bug
from sim.workloads.pressure import PressureWorkload, Shortage
from sim.workloads.server import ServerWorkload
from tailrace.common import limits
from tailrace.kernel import BlockCache, _cache_py
from tailrace.segmentstore.api import ReadResult
from tailrace.segmentstore.cache import cache_manager, segment_reader
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.cache.segment_reader import SegmentReader
from tailrace.segmentstore.cache.staged_tail import StagedTail
from tailrace.segmentstore.container import committer, operation_processor, recovery
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.read_index import Entry, ReadIndex
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.server.budgets import ConnectionBudget
from tailrace.segmentstore.tier2.shared_reads import SharedRead


def _crowded(seed: int) -> PressureWorkload:
    return PressureWorkload(seed, Shortage.ROOM)


def _unthrottled(seed: int) -> PressureWorkload:
    """Appends are admitted until the cache is full, so that more of them are staged while entries are flushed."""
    workload = PressureWorkload(seed, Shortage.ROOM)
    workload.knobs |= {(limits, "THROTTLE_TARGET"): 1.0}
    return workload


def _left_in_the_log(seed: int) -> PressureWorkload:
    """Frames are small, and recoveries leave much in the log."""
    workload = PressureWorkload(seed, Shortage.ROOM)
    workload.knobs |= {
        (operation_processor, "_ARENA_BYTES"): 4_096,
        (limits, "FLUSH_THRESHOLD_BYTES"): 1_000_000,
        (limits, "ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES"): 1_000_000,
        (limits, "CACHE_ENTRY_MAX_BYTES"): 256 * limits.KIB,
    }
    return workload


def _small(seed: int) -> PressureWorkload:
    return PressureWorkload(seed, Shortage.MEMORY)


def _cache_made_by(patch: pytest.MonkeyPatch, kind: Any) -> None:
    """Let all caches be of a kind that has a bug."""
    make = CacheManager.__init__

    def init(self: CacheManager, cache: BlockCache) -> None:
        make(self, kind(cache.max_bytes))

    patch.setattr(CacheManager, "__init__", init)


@bug(
    "cache-block-reused-under-view",
    _small,
    checker="workloads/pressureclients.py",
    words="changed under a reader that holds them",
)
def _cache_block_reused_under_view(patch: pytest.MonkeyPatch) -> None:
    """A read answers with views of cache memory, and a deletion frees blocks that a view still shows.

    Breaks: the bytes of an answer never change after it was given.
    """

    class Careless(_cache_py.BlockCache):
        def view(self, address: int) -> _cache_py.CacheView:
            self._entry(address)
            buffers, _ = self._collect(address)
            return _cache_py.CacheView(self, address, buffers, sum(map(len, buffers)))

        def _unpin(self, address: int) -> None:
            """Nothing was pinned."""

    def read(self: SegmentReader, segment: Segment, entries: list[Entry], offset: int, limit: int) -> ReadResult:
        entry = entries[0]
        view = self._cache.pin(entry)
        self._cache.touch(entry)
        skip, want = offset - entry.offset, min(limit, entry.end - offset)
        parts = []
        for buffer in view.buffers:
            piece = buffer[skip : skip + want]
            skip, want = max(skip - len(buffer), 0), want - len(piece)
            if len(piece):
                parts.append(piece)

        length = sum(map(len, parts))
        at_end = offset + length >= segment.length
        return ReadResult(offset, parts, length, at_end, at_end and segment.sealed)

    _cache_made_by(patch, Careless)
    patch.setattr(SegmentReader, "_from_cache", read)


@bug(
    "cache-full-at-commit",
    _crowded,
    checker="workloads/container.py",
    words="(stopped without a fault|nothing fails any more): .*blocks needed",
)
def _cache_full_at_commit(patch: pytest.MonkeyPatch) -> None:
    """An append reserves no cache blocks, so its commit fails when the cache is full.

    Breaks: a full cache slows writers and stops no container.
    """

    class Unreserved(BlockCache):
        def insert(self, data: Any, reserved: bool = False) -> int:
            return super().insert(data, False)

        def append(self, address: int, expected_length: int, data: Any, reserved: bool = False) -> int:
            return super().append(address, expected_length, data, False)

    _cache_made_by(patch, Unreserved)
    patch.setattr(StagedTail, "blocks", property(lambda self: 0))
    patch.setattr(StagedTail, "growth", lambda self, length: 0)
    patch.setattr(StagedTail, "closing", lambda self: 0)


@bug(
    "reservation-not-returned",
    PressureWorkload,
    checker="checks/memory.py",
    words="blocks are reserved, staged appends take",
)
def _reservation_not_returned(patch: pytest.MonkeyPatch) -> None:
    """The blocks that appends behind a merge reserved and do not need stay reserved.

    Breaks: all memory of a container comes back when nothing is under way.
    """
    patch.setattr(CacheManager, "_release", lambda self, blocks: None)


@bug(
    "closed-tail-takes-unreserved-block",
    _crowded,
    checker="checks/memory.py",
    words="blocks are reserved, staged appends take",
)
def _closed_tail_takes_unreserved_block(patch: pytest.MonkeyPatch) -> None:
    """A tail entry becomes evictable while appends count on its last block, and no other block is reserved for them.

    Breaks: an append never takes more of the cache than is reserved for it.
    """
    patch.setattr(StagedTail, "closing", lambda self: 0)


@bug(
    "cache-entries-left-by-deletion",
    PressureWorkload,
    checker="checks/memory.py",
    words="blocks of the cache are used, read indexes know|a closed container leaves",
)
def _cache_entries_left_by_deletion(patch: pytest.MonkeyPatch) -> None:
    """The cached bytes of a deleted segment are never freed.

    Breaks: every block of the cache is free or known to a read index.
    """

    def drop_all(self: CacheManager, entries: ReadIndex) -> None:
        entries.clear()

    patch.setattr(CacheManager, "drop_all", drop_all)


@bug(
    "evicted-before-tier2-has-all",
    _crowded,
    checker="checks/undamaged.py",
    words="a read of .* reports CorruptionError",
)
def _evicted_before_tier2_has_all(patch: pytest.MonkeyPatch) -> None:
    """A flush lets the cache evict also the entries behind what it wrote.

    Breaks: every acknowledged byte can be read from the cache, the log or Tier 2.
    """

    def mark(segment: Segment | None, ref: ChunkRef, cache: CacheManager) -> None:
        if segment is not None:
            for entry in segment.read_index.between(ref.segment_offset, segment.length):
                cache.make_evictable(entry)

    patch.setattr(committer, "mark_tiered", mark)
    patch.setattr(recovery, "mark_tiered", mark)


@bug(
    "appended-to-evictable-entry",
    _unthrottled,
    checker="checks/undamaged.py",
    words="a read of .* reports CorruptionError",
)
def _appended_to_evictable_entry(patch: pytest.MonkeyPatch) -> None:
    """An entry that Tier 2 holds grows by an append, and its eviction drops bytes that only the cache has.

    Breaks: every acknowledged byte can be read from the cache, the log or Tier 2.
    """
    patch.setattr(cache_manager, "_grows", lambda entry, end: entry.address >= 0 and entry.end == end)
    patch.setattr(CacheManager, "_close_tail", lambda self, entry: True)


@bug(
    "read-shared-by-offset-alone",
    _small,
    checker="workloads/segment_model.py",
    words="not a possible state: .*content",
)
def _read_shared_by_offset_alone(patch: pytest.MonkeyPatch) -> None:
    """Reads of Tier 2 that begin at the same offset share one request, whichever segments they read.

    Breaks: a reader gets the bytes of its own segment.
    """
    patch.setattr(segment_reader, "_Range", lambda segment_id, start, step: (start, step))


@bug(
    "reader-that-leaves-ends-shared-read",
    _small,
    checker="workloads/pressureclients.py",
    words="a read ends as if the container had stopped",
)
def _reader_that_leaves_ends_shared_read(patch: pytest.MonkeyPatch) -> None:
    """A reader that goes away cancels the request that other readers wait for, too.

    Breaks: a read of a container that runs fails only with Tier 2.
    """
    result = SharedRead.result

    async def leave(self: SharedRead[Any]) -> Any:
        try:
            return await result(self)
        except asyncio.CancelledError:
            self.task.cancel()
            raise

    patch.setattr(SharedRead, "result", leave)


@bug(
    "budget-kept-by-gone-connections",
    ServerWorkload,
    checker="checks/serverwatch.py",
    words="bytes stay in flight though no client writes",
)
def _budget_kept_by_gone_connections(patch: pytest.MonkeyPatch) -> None:
    """The bytes in flight of a connection that ends are never given back to the budget.

    Breaks: memory of a server stays within its budgets, and all of it comes back.
    """
    close, release = ConnectionBudget.close, ConnectionBudget.release
    gone: dict[int, ConnectionBudget] = {}

    def forget(self: ConnectionBudget) -> None:
        gone[id(self)] = self
        close(self)

    def give_back(self: ConnectionBudget, length_bytes: int) -> None:
        if id(self) not in gone:
            release(self, length_bytes)

    patch.setattr(ConnectionBudget, "close", forget)
    patch.setattr(ConnectionBudget, "release", give_back)


@bug(
    "log-bytes-all-from-the-first-frame",
    _left_in_the_log,
    checker="workloads/segment_model.py",
    words="not a possible state: .*content",
)
def _log_bytes_all_from_the_first_frame(patch: pytest.MonkeyPatch) -> None:
    """A read takes all bytes that recovery left in the log from the first frame of them.

    Breaks: bytes that wait in the log after a recovery come to Tier 2 once it is there.
    """
    frames = segment_reader._frames

    def first(entries: list[Entry], offset: int, limit: int) -> list[tuple[int, list[tuple[int, int]]]]:
        found = frames(entries, offset, limit)
        return [(found[0][0], [piece for _, pieces in found for piece in pieces])]

    patch.setattr(segment_reader, "_frames", first)
