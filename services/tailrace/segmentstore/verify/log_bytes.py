"""Verifies the appends in a container's log, and digests them for a comparison with Tier 2.

Tier 2 may hold the same ranges. Both sides are digested in runs, the log's when it is read and the chunks' when they
are. So memory depends on the number of runs, not on the number of appends.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits
from tailrace.kernel import crc32c
from tailrace.segmentstore.metadata import operation_log
from tailrace.segmentstore.metadata import operations as ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState
    from tailrace.segmentstore.verify.container_log import VerifiedLog
    from tailrace.segmentstore.verify.report import ContainerReport

_DIGEST_BYTES = 16


def new_digest() -> hashlib.blake2b:
    """Return a digest for a run's bytes."""
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


class Run(NamedTuple):
    """A range of a segment that the log holds, within one chunk reference."""

    start: int
    end: int
    digest: bytes


class _OpenRun:
    """A run that still grows."""

    __slots__ = ("digest", "end", "ref", "segment", "start")

    def __init__(self, segment: Segment, ref: ChunkRef, start: int) -> None:
        self.segment = segment
        self.ref = ref
        self.start = self.end = start
        self.digest = new_digest()


class LogBytes:
    """Reads the appends of a log. `state` is the outcome of its operations."""

    def __init__(self, log: VerifiedLog, state: ContainerState, report: ContainerReport) -> None:
        self._log = log
        self._state = state
        self._report = report
        self.walked_bytes = 0
        self._moves: dict[int, tuple[int, int]] = {}
        self._open: dict[int, _OpenRun] = {}  # by the segment of the append, which merges may have ended
        self._runs: dict[int, list[Run]] = {}

    async def walk(self, advance: Callable[[int], None]) -> None:
        """Read every append; report progress by ``advance(bytes)``. DataError as of recovery, which runs first."""
        await self._note_merges()
        assembler = operation_log.Assembler(ops.OperationType.APPEND)
        async for frame in self._log.recover():
            place = f"log of container {self._state.container_id}, frame {frame.sequence}"
            for placed in assembler.feed(frame.sequence, frame.payload, place):
                if isinstance(placed.operation, ops.Append):
                    self._append(placed.operation, placed.places[0][0])
            advance(len(frame.payload))
            self.walked_bytes += len(frame.payload)
        for segment_id in list(self._open):
            self._close(segment_id)
        for runs in self._runs.values():
            runs.sort()

    def runs(self, segment: Segment) -> list[Run]:
        """Return the runs of a segment, by offset."""
        return self._runs.get(segment.segment_id, [])

    async def _note_merges(self) -> None:
        """Record the merges of the log, which move earlier appends."""
        assembler = operation_log.Assembler(ops.OperationType.MERGE)
        async for frame in self._log.recover():
            place = f"log of container {self._state.container_id}, frame {frame.sequence}"
            for placed in assembler.feed(frame.sequence, frame.payload, place):
                merge = placed.operation
                assert isinstance(merge, ops.Merge)
                self._moves[merge.source_id] = merge.target_id, merge.target_offset

    def _resolve(self, segment_id: int) -> tuple[Segment | None, int]:
        shift = 0
        while segment_id in self._moves:
            segment_id, step = self._moves[segment_id]
            shift += step
        return self._state.segments.get(segment_id), shift

    def _append(self, append: ops.Append, frame: int) -> None:
        segment, shift = self._resolve(append.segment_id)
        start = append.offset + shift
        if crc32c(append.data) != append.crc:
            name = segment.name if segment is not None else f"number {append.segment_id}, which was deleted"
            place, position = self._log.place_of(frame)
            self._report.problem(
                f"{len(append.data)} bytes of log frame {frame} do not match the CRC32C of their append",
                segment=name,
                offset=start,
                place=place,
                position=position,
            )
        elif segment is not None:
            self._note(append.segment_id, segment, start, append.data)

    def _note(self, source_id: int, segment: Segment, start: int, data: memoryview) -> None:
        """Add the ranges to the runs that Tier 2 holds too."""
        end = start + len(data)
        position = max(start, segment.start_offset)
        while position < end:
            ref = segment.chunks.find(position)
            if ref is None:
                following = segment.chunks.next_start(position)
                position = end if following is None else following
                continue
            stop = min(end, ref.end)
            run = self._open.get(source_id)
            full = run is not None and run.end - run.start >= limits.VERIFY_RUN_BYTES
            if run is None or full or run.end != position or run.ref is not ref:
                self._close(source_id)
                run = self._open[source_id] = _OpenRun(segment, ref, position)
            run.digest.update(data[position - start : stop - start])
            run.end = position = stop

    def _close(self, source_id: int) -> None:
        run = self._open.pop(source_id, None)
        if run is not None:
            self._runs.setdefault(run.segment.segment_id, []).append(Run(run.start, run.end, run.digest.digest()))
