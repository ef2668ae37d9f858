"""Reads committed bytes from the cache, from the log where recovery left them, or from Tier 2.

See docs/design.md#cache, docs/protocol/wire.md#reads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    CorruptionError,
    NoSuchSegmentError,
    NotFoundError,
    TailraceError,
)
from tailrace.segmentstore.api import ReadResult

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tailrace.log.port import ReadableLog
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.read_index import Entry
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects

_logger = structlog.get_logger()


class SegmentReader:
    """Reads the segments of one container. ``spawn`` runs a task that ends with the container."""

    def __init__(
        self,
        cache: CacheManager,
        log: ReadableLog,
        tier2: ChunkObjects,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._cache = cache
        self._log = log
        self._tier2 = tier2
        self._spawn = spawn
        self._fetches: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._last_end: dict[int, int] = {}
        self.cache_hits = 0
        self.fetches = 0

    async def read(
        self, segment: Segment, offset: int, max_length: int, alive: Callable[[Segment], bool]
    ) -> ReadResult:
        """Return bytes from `offset`, which is below the committed length: at most `max_length`, at least one."""
        while True:
            if not alive(segment):
                raise NoSuchSegmentError(segment.name)
            segment.check_not_truncated(offset)
            limit = min(max_length, segment.length - offset)
            entries = segment.read_index.run(offset, limit)
            if entries and entries[0].address >= 0:
                self.cache_hits += 1
                return self._from_cache(segment, entries, offset, limit)
            try:
                if entries:
                    return await self._from_log(segment, entries[0], offset, limit)
                data = await self._fetch(segment, offset)
            except (CorruptionError, KeyError):
                if self._unchanged(segment, entries, offset, alive):
                    raise
                continue  # deleted, merged, truncated or moved to Tier 2 meanwhile: look up again
            if data is not None:
                return self._result(segment, offset, data[:limit])

    @staticmethod
    def _unchanged(segment: Segment, entries: list[Entry], offset: int, alive: Callable[[Segment], bool]) -> bool:
        if not alive(segment) or offset < segment.start_offset:
            return False
        return not entries or segment.read_index.find(offset) is entries[0]

    def _from_cache(self, segment: Segment, entries: list[Entry], offset: int, limit: int) -> ReadResult:
        cached = []
        end = offset
        for entry in entries:
            if entry.address < 0:
                break
            cached.append(entry)
            end = entry.end
        data = self._cache.copy(cached, offset, min(limit, end - offset))
        self._prefetch(segment, offset, offset + len(data), cached[-1])
        return self._result(segment, offset, data)

    @staticmethod
    def _result(segment: Segment, offset: int, data: bytes | bytearray) -> ReadResult:
        end = offset + len(data)
        at_end = end >= segment.length
        return ReadResult(offset, [data], len(data), at_end, at_end and segment.sealed)

    async def _from_log(self, segment: Segment, entry: Entry, offset: int, limit: int) -> ReadResult:
        skip = offset - entry.offset
        want = min(limit, entry.length - skip)
        parts = []
        for sequence, position, length in entry.places:
            if skip >= length:
                skip -= length
                continue
            take = min(length - skip, want)
            parts.append(await self._log.read(sequence, position + skip, take))
            skip, want = 0, want - take
            if not want:
                break
        return self._result(segment, offset, b"".join(parts))

    # -- Tier 2 --------------------------------------------------------------------------------------------------

    async def _fetch(self, segment: Segment, offset: int) -> bytes | None:
        """Fetch the aligned range around an offset into the cache; return the bytes from `offset`.

        Return None after a fetch that another reader of the range started: the cache may hold the bytes now.
        """
        key = (segment.segment_id, offset - offset % limits.STORAGE_READ_ALIGNMENT_BYTES)
        running = self._fetches.get(key)
        if running is not None:
            await asyncio.wait([running])  # whatever its outcome: the caller looks up again
            return None
        return await self._fetch_range(segment, offset, key[1])

    async def _fetch_range(self, segment: Segment, offset: int, aligned: int) -> bytes:
        for attempt in range(2):
            ref = segment.chunks.find(offset)
            if ref is None:
                raise CorruptionError(f"segment {segment.name} at {offset}", "no tier holds the bytes")
            start = max(aligned, ref.segment_offset)
            end = min(aligned + limits.STORAGE_READ_ALIGNMENT_BYTES, ref.end)
            try:
                first, blocks = await self._tier2.read(ref, start, end - start)
            except NotFoundError as error:
                # A compaction may have replaced the reference: look it up once more (docs/design.md#tier-2).
                if attempt or segment.chunks.find(offset) == ref:
                    raise await self._tier2.missing(ref) from error
                continue
            self.fetches += 1
            data = b"".join(blocks)
            kept_from = max(start, segment.start_offset)
            if kept_from < end and self._still(segment, ref):
                self._cache.insert_fetched(
                    segment.read_index, kept_from, memoryview(data)[kept_from - first : end - first]
                )
            return data[offset - first :]
        raise AssertionError("unreachable: the second attempt returns or raises")

    @staticmethod
    def _still(segment: Segment, ref: ChunkRef) -> bool:
        """Return whether the segment still holds the reference: it may be merged or deleted."""
        return segment.chunks.find(ref.segment_offset) is ref

    def _prefetch(self, segment: Segment, start: int, end: int, last: Entry) -> None:
        """Fetch the next range ahead for a sequential reader."""
        sequential = self._last_end.get(segment.segment_id) == start
        if len(self._last_end) > limits.PREFETCH_POSITIONS_MAX:
            self._last_end.clear()
        self._last_end[segment.segment_id] = end
        if not sequential or not last.evictable or last.end - end > limits.STORAGE_READ_ALIGNMENT_BYTES // 2:
            return
        position = last.end
        if position >= segment.length or segment.read_index.find(position) is not None:
            return
        ref = segment.chunks.find(position)
        key = (segment.segment_id, position - position % limits.STORAGE_READ_ALIGNMENT_BYTES)
        if ref is None or key in self._fetches or len(self._fetches) >= limits.STORAGE_READS_MAX:
            return
        self._fetches[key] = self._spawn(self._prefetch_range(segment, position, key))

    async def _prefetch_range(self, segment: Segment, offset: int, key: tuple[int, int]) -> None:
        try:
            await self._fetch_range(segment, offset, key[1])
        except TailraceError as error:
            # A reader of the range gets the same error; no request waits for the prefetch itself.
            _logger.info("prefetch_failed", segment=segment.name, offset=offset, reason=str(error))
        finally:
            del self._fetches[key]

    async def read_range(self, segment: Segment, start: int, end: int, alive: Callable[[Segment], bool]) -> bytearray:
        """Return exactly [start, end), for the storage writer and the table layer.

        Raises:
            BadRequestError: the range is not within the segment. NoSuchSegmentError: it ended meanwhile.
        """
        if not segment.start_offset <= start <= end <= segment.length:
            raise BadRequestError(
                f"range {start}..{end} of {segment.name}, which has {segment.start_offset}..{segment.length}"
            )
        if not alive(segment):
            raise NoSuchSegmentError(segment.name)
        entries = segment.read_index.run(start, end - start)
        if entries and entries[-1].end >= end and all(entry.address >= 0 for entry in entries):
            return self._cache.copy(entries, start, end - start)
        content = bytearray(end - start)
        position = start
        while position < end:
            result = await self.read(segment, position, end - position, alive)
            for part in result.data:
                content[position - start : position - start + len(part)] = part
                position += len(part)
        return content
