"""Reads every byte of a chunk reference, block by block, and compares it with what the log holds."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, NotFoundError
from tailrace.segmentstore.verify.log_bytes import new_digest
from tailrace.storage import chunks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.verify.log_bytes import Run
    from tailrace.segmentstore.verify.report import ContainerReport
    from tailrace.storage.port import ObjectStore

_PIECE_BYTES = limits.VERIFY_READ_BYTES // chunks.BLOCK_BYTES * chunks.BLOCK_BYTES


class ChunkReader:
    """Reads references of one container. ``sizes`` are the lengths of the listed objects, by key."""

    def __init__(
        self,
        store: ObjectStore,
        sizes: Mapping[str, int],
        report: ContainerReport,
        advance: Callable[[int], None],
    ) -> None:
        self._store = store
        self._sizes = sizes
        self._report = report
        self._advance = advance

    async def verify(
        self,
        segment: str,
        ref: ChunkRef,
        runs: Sequence[Run] = (),
        *,
        sizes: Mapping[str, int] | None = None,
        within: tuple[int, int] | None = None,
    ) -> int:
        """Read all of a reference and compare it with ``runs``, the ranges that the log holds too, by offset.

        Return how many bytes match their CRC32C.

        ``sizes``: lengths of objects to use in place of the reader's. ``within``: only the blocks with bytes of this
        range of segment offsets are read, and only bytes of it are counted.
        """
        verified = 0
        start, end = within or (ref.segment_offset, ref.end)
        comparison = _Comparison(segment, ref, runs, self._report)
        async for offset, blocks in self._pieces(segment, ref, self._sizes if sizes is None else sizes, start, end):
            comparison.feed(offset, blocks)
            verified += max(min(offset + sum(map(len, blocks)), end) - max(offset, start), 0)
        return verified

    def _problem(self, segment: str, ref: ChunkRef, offset: int, position: int | None, reason: str) -> None:
        self._report.problem(
            reason, segment=segment, offset=offset, place=f"object {ref.object_key}", position=position
        )

    async def _pieces(
        self, segment: str, ref: ChunkRef, sizes: Mapping[str, int], wanted_from: int, wanted_to: int
    ) -> AsyncIterator[tuple[int, Sequence[memoryview]]]:
        """Yield verified blocks in order, with the segment offset of the first; report and skip damaged ones."""
        readable = self._readable(segment, ref, sizes)
        first = (wanted_from - ref.segment_offset) // chunks.BLOCK_BYTES * chunks.BLOCK_BYTES
        stop = min(-(-(wanted_to - ref.segment_offset) // chunks.BLOCK_BYTES) * chunks.BLOCK_BYTES, readable)
        for start in range(first, stop, _PIECE_BYTES):
            length = min(_PIECE_BYTES, stop - start)
            position, stored, _ = chunks.block_range(ref.data_offset, ref.length, start, length)
            try:
                raw = await self._store.get_range(ref.object_key, position, stored)
            except (NotFoundError, CorruptionError) as error:
                self._problem(segment, ref, ref.segment_offset + start, position, str(error))
                return
            self._advance(stored)
            try:
                yield ref.segment_offset + start, chunks.decode_blocks(ref.object_key, position, raw)
            except CorruptionError:
                for at, block in self._each_block(segment, ref, start, position, raw):
                    yield at, [block]

    def _each_block(
        self, segment: str, ref: ChunkRef, start: int, position: int, raw: bytes
    ) -> list[tuple[int, memoryview]]:
        """Return the valid blocks of a piece, and report the damaged ones."""
        good = []
        for number, at in enumerate(range(0, len(raw), chunks.BLOCK_STRIDE)):
            offset = ref.segment_offset + start + number * chunks.BLOCK_BYTES
            try:
                found = chunks.decode_blocks(ref.object_key, position + at, raw[at : at + chunks.BLOCK_STRIDE])
            except CorruptionError as error:
                self._problem(segment, ref, offset, position + at, error.reason)
            else:
                good.append((offset, found[0]))
        return good

    def _readable(self, segment: str, ref: ChunkRef, sizes: Mapping[str, int]) -> int:
        """Return how many bytes of a reference its object has, in whole blocks; report when some are missing."""
        size = sizes.get(ref.object_key)
        if size is None:
            reason = f"{ref.length} bytes of the segment are missing: the object does not exist"
            self._problem(segment, ref, ref.segment_offset, None, reason)
            return 0
        missing = ref.data_offset + chunks.stored_length(ref.length) - size
        if missing <= 0:
            return ref.length
        whole = max(size - ref.data_offset, 0) // chunks.BLOCK_STRIDE * chunks.BLOCK_BYTES
        readable = min(whole, ref.length)
        reason = f"the object ends {missing} bytes early: {ref.length - readable} bytes of the segment are missing"
        self._problem(segment, ref, ref.segment_offset + readable, size, reason)
        return readable


class _Comparison:
    """Digests the bytes of a reference that the log holds too. Skips runs with a damaged block."""

    def __init__(self, segment: str, ref: ChunkRef, runs: Sequence[Run], report: ContainerReport) -> None:
        self._segment = segment
        self._ref = ref
        self._report = report
        self._runs = runs
        self._next = max(bisect_right(runs, ref.segment_offset, key=itemgetter(0)) - 1, 0)
        self._digest = new_digest()
        self._digested_to = -1

    def feed(self, offset: int, blocks: Sequence[memoryview]) -> None:
        """Take the next blocks."""
        for block in blocks:
            self._feed(offset, block)
            offset += len(block)

    def _feed(self, offset: int, block: memoryview) -> None:
        end = offset + len(block)
        while self._next < len(self._runs) and self._runs[self._next].start < end:
            run = self._runs[self._next]
            start = max(run.start, offset)
            stop = min(run.end, end)
            if start == run.start:
                self._digest, self._digested_to = new_digest(), start
            if stop > start and self._digested_to == start:
                self._digest.update(block[start - offset : stop - offset])
                self._digested_to = stop
            if run.end > end:
                return
            if self._digested_to == run.end:
                self._compare(run)
            self._next += 1

    def _compare(self, run: Run) -> None:
        self._report.report.compared_bytes += run.end - run.start
        if self._digest.digest() != run.digest:
            position, _, _ = chunks.block_range(
                self._ref.data_offset, self._ref.length, run.start - self._ref.segment_offset, run.end - run.start
            )
            self._report.problem(
                f"bytes {run.start} to {run.end} differ from those in the log",
                segment=self._segment,
                offset=run.start,
                place=f"object {self._ref.object_key}",
                position=position,
            )
