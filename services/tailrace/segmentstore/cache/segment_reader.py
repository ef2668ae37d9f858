"""Reads committed bytes from the cache, from the log where recovery left them, or from Tier 2.

See docs/design.md#cache, docs/protocol/wire.md#reads.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    CorruptionError,
    NoSuchSegmentError,
    NotFoundError,
    TailraceError,
)
from tailrace.common.logs import LimitedLog
from tailrace.kernel import blocks_needed
from tailrace.segmentstore.api import ReadResult
from tailrace.segmentstore.cache.damages import DataDamages
from tailrace.segmentstore.cache.read_positions import ReadPositions
from tailrace.storage.chunks import BLOCK_BYTES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    from tailrace.log.port import ReadableLog
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.read_index import Entry
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects
    from tailrace.segmentstore.tier2.shared_reads import SharedRead

_logger = structlog.get_logger()
_limited_log = LimitedLog(_logger)


class _Range(NamedTuple):
    """Names the bytes that one read of Tier 2 fetches; ``step`` is what it is aligned to, 0: one block of a chunk."""

    segment_id: int
    start: int
    step: int


class _Fetched(NamedTuple):
    """Bytes of a segment from `offset` on."""

    offset: int
    data: bytes

    def slice(self, offset: int, max_length: int) -> bytes | None:
        """Return a copy of the bytes from `offset` on; None when it is not among them."""
        skip = offset - self.offset
        return self.data[skip : skip + max_length] if 0 <= skip < len(self.data) else None


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
        self.positions = ReadPositions()
        self.damages = DataDamages()
        self.cache_hits = 0
        self.fetches = 0

    async def read(
        self, segment: Segment, offset: int, max_length: int, alive: Callable[[Segment], bool], *, ahead: bool = True
    ) -> ReadResult:
        """Return bytes from `offset`, which is below the committed length: at most `max_length`, at least one.

        With `ahead` a read that continues an earlier one also begins a fetch of what follows.

        Raises:
            NoSuchSegmentError, SegmentTruncatedError: the bytes are gone. ContainerStoppedError: the container stopped.
            UnavailableError: Tier 2 does not answer. CorruptionError: the byte at `offset` is damaged.
        """
        in_doubt = log_failed = False
        while True:
            if not alive(segment):
                raise NoSuchSegmentError(segment.name)
            segment.check_not_truncated(offset)
            limit = min(max_length, segment.length - offset)
            entries = [] if log_failed else segment.read_index.run(offset, limit)
            if entries and entries[0].address >= 0:
                self.cache_hits += 1
                return self._from_cache(segment, entries, offset, limit, ahead=ahead)
            try:
                if entries:
                    return await self._from_log(segment, entries, offset, limit)
                step = 0 if in_doubt else _step(segment, limit)
                fetched = await self._fetch(segment, offset, step).result()
            except CorruptionError as error:
                if not self._unchanged(segment, entries, offset, alive):
                    continue  # deleted, merged, truncated or moved to Tier 2 meanwhile: look up again
                if in_doubt or (entries and segment.chunks.find(offset) is None):
                    raise
                if entries:
                    log_failed = True  # Tier 2 holds the byte, too
                    place = {"segment": segment.name, "offset": offset}
                    _limited_log.warning("log_frame_not_readable", **place, error=str(error))
                else:
                    in_doubt = True  # some block of many is damaged: read the one that is needed alone
                continue
            data = fetched.slice(offset, limit)
            if data is not None:
                if ahead and alive(segment):
                    self._read_ahead(segment, offset, offset + len(data))
                return self._result(segment, offset, data)
            # The chunk that held the offset was replaced during a read that another reader began: look up again.

    @staticmethod
    def _unchanged(segment: Segment, entries: list[Entry], offset: int, alive: Callable[[Segment], bool]) -> bool:
        if not alive(segment) or offset < segment.start_offset:
            return False
        return not entries or segment.read_index.find(offset) is entries[0]

    def _from_cache(
        self, segment: Segment, entries: list[Entry], offset: int, limit: int, *, ahead: bool
    ) -> ReadResult:
        cached = []
        end = offset
        for entry in entries:
            if entry.address < 0:
                break
            cached.append(entry)
            end = entry.end
        data = self._cache.copy(cached, offset, min(limit, end - offset))
        if ahead:
            self._read_ahead(segment, offset, offset + len(data))
        return self._result(segment, offset, data)

    @staticmethod
    def _result(segment: Segment, offset: int, data: bytes | bytearray) -> ReadResult:
        end = offset + len(data)
        at_end = end >= segment.length
        return ReadResult(offset, [data], len(data), at_end, at_end and segment.sealed)

    async def _from_log(self, segment: Segment, entries: Sequence[Entry], offset: int, limit: int) -> ReadResult:
        """Read what recovery left in the log: each frame once, as far as `limit` and the bound of frames go."""
        parts: list[bytes] = []
        for sequence, pieces in _frames(entries, offset, min(limit, limits.LOG_READ_MAX_BYTES)):
            # Not from the first to the last: after a merge a segment's later bytes may be earlier in the frame.
            start = min(position for position, _ in pieces)
            end = max(position + length for position, length in pieces)
            try:
                data = memoryview(await self._log.read(sequence, start, end - start))
            except (CorruptionError, KeyError) as error:
                if parts:
                    break  # the read of what follows names the place, or finds the bytes in Tier 2
                if isinstance(error, KeyError):
                    place = f"segment {segment.name} at {offset}"
                    raise CorruptionError(place, f"its bytes are in the log: {error.args[0]}") from error
                raise
            # A copy: what else the frame holds is not kept until all frames are read.
            parts.append(b"".join(data[position - start : position - start + length] for position, length in pieces))
        return self._result(segment, offset, b"".join(parts))

    # -- Tier 2 --------------------------------------------------------------------------------------------------

    def _fetch(self, segment: Segment, offset: int, step: int) -> SharedRead[_Fetched]:
        """Begin or join a read of the range around an offset, which is kept in the cache if that has room."""
        ref = segment.chunks.find(offset)
        start = offset if ref is None else _range_in(ref, offset, step)[0]
        key = _Range(segment.segment_id, start, step)
        return self._tier2.shared.join(key, lambda: self._fetch_range(segment, offset, step))

    async def _fetch_range(self, segment: Segment, offset: int, step: int) -> _Fetched:
        for attempt in range(2):
            ref = segment.chunks.find(offset)
            if ref is None:
                raise CorruptionError(f"segment {segment.name} at {offset}", "no tier holds the bytes")
            start, end = _range_in(ref, offset, step)
            try:
                first, blocks = await self._tier2.read(ref, start, end - start)
            except NotFoundError as error:
                # A compaction may have replaced the reference: look it up once more (docs/design.md#tier-2).
                if attempt or segment.chunks.find(offset) == ref:
                    missing = await self._tier2.missing(ref)
                    self.damages.note(segment, ref, ref.segment_offset, ref.end, missing)
                    raise missing from error
                continue
            except CorruptionError as error:
                if not step:
                    self.damages.note(segment, ref, start, end, error)
                raise
            self.damages.forget(segment, start, end)
            self.fetches += 1
            data = b"".join(blocks)
            kept_from = max(start, segment.start_offset)
            if kept_from < end and self._still(segment, ref):
                self._cache.insert_fetched(
                    segment.read_index, kept_from, memoryview(data)[kept_from - first : end - first]
                )
            return _Fetched(first, data)
        raise AssertionError("unreachable: the second attempt returns or raises")

    @staticmethod
    def _still(segment: Segment, ref: ChunkRef) -> bool:
        """Return whether the segment still holds the reference: it may be merged or deleted."""
        return segment.chunks.find(ref.segment_offset) is ref

    def _read_ahead(self, segment: Segment, start: int, end: int) -> None:
        """Fetch the next range that the cache lacks and can hold, when the read of [start, end) continues another."""
        if not self.positions.advance(segment.segment_id, start, end):
            return
        near = min(end + limits.STORAGE_READ_ALIGNMENT_BYTES // 2, segment.length)
        gap = segment.read_index.first_gap(end, near) if end < near else None
        if gap is None or segment.chunks.find(gap[0]) is None or len(self._tier2.shared) >= limits.STORAGE_READS_MAX:
            return
        if self._cache.has_room(blocks_needed(limits.STORAGE_READ_ALIGNMENT_BYTES)):
            read = self._fetch(segment, gap[0], limits.STORAGE_READ_ALIGNMENT_BYTES)
            self._spawn(self._finish_read_ahead(segment, gap[0], read))

    @staticmethod
    async def _finish_read_ahead(segment: Segment, offset: int, read: SharedRead[_Fetched]) -> None:
        try:
            await read.result()
        except TailraceError as error:
            # A reader of the range gets the same error; no request waits for the prefetch itself.
            _logger.info("prefetch_failed", segment=segment.name, offset=offset, reason=str(error))

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
        # An entry of a table is read in two or more steps, and what follows it is another one.
        ahead = not segment.kind.is_table or end - start >= limits.TABLE_SCAN_READ_BYTES
        while position < end:
            result = await self.read(segment, position, end - position, alive, ahead=ahead)
            for part in result.data:
                content[position - start : position - start + len(part)] = part
                position += len(part)
        return content


def _range_in(ref: ChunkRef, offset: int, step: int) -> tuple[int, int]:
    """Return the aligned range around an offset, as far as the reference goes; with step 0 the block that holds it."""
    base = 0 if step else ref.segment_offset
    length = step or BLOCK_BYTES
    aligned = offset - (offset - base) % length
    return max(aligned, ref.segment_offset), min(aligned + length, ref.end)


def _step(segment: Segment, limit: int) -> int:
    """Return how much a read of Tier 2 fetches. Entries of a table that are read together are far from one another."""
    if not segment.kind.is_table:
        return limits.STORAGE_READ_ALIGNMENT_BYTES
    least = max(limit, limits.TABLE_READ_ALIGNMENT_BYTES)
    return min(1 << (least - 1).bit_length(), limits.STORAGE_READ_ALIGNMENT_BYTES)


def _frames(entries: Sequence[Entry], offset: int, limit: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return where the bytes from `offset` on are, up to the first entry that is not in the log.

    For each frame, its sequence, and the offset in its payload and the length of each piece, in the segment's order.
    """
    found: list[tuple[int, list[tuple[int, int]]]] = []
    skip = offset - entries[0].offset
    for entry in itertools.takewhile(lambda entry: entry.address < 0, entries):
        for sequence, position, length in entry.places:
            if skip >= length:
                skip -= length
                continue
            take = min(length - skip, limit)
            if not found or found[-1][0] != sequence:
                if len(found) == limits.LOG_READ_FRAMES_MAX:
                    return found
                found.append((sequence, []))
            found[-1][1].append((position + skip, take))
            skip, limit = 0, limit - take
            if not limit:
                return found
    return found
