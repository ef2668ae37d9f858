"""Which small chunks are worth being written as one (design §5). Pure.

Two rules choose a run of small references that follow each other without gaps:

- *growth*: at least ``COMPACT_RUN_MIN`` (16) of them, which together are at least ``COMPACT_GROWTH_MIN`` (4) times as
  long as the longest. Each time a byte is written again by this rule, the chunk that holds it is at least four times
  longer than before, and chunks of ``COMPACT_SMALL_MAX_BYTES`` (1 MiB) are left alone: a byte that was flushed in a
  chunk of s bytes is written again at most ⌈log₄(1 MiB / s)⌉ times: once from 256 KiB on, twice from 64 KiB on, never
  more than ten times.
- *count*: ``COMPACT_RUN_FORCED`` (64) of them in a row, whatever their lengths, so that no order of lengths escapes.
  Either they fill ``FLUSH_OBJECT_MAX_BYTES`` (8 MiB), and what is in them is not small any more: once a byte; or at
  least 63 references less cost at most 8 MiB: some 140 KiB for each reference that a flush made.

So a segment keeps at most 63 small references in a row, and what is written again is at most eleven times what was
flushed and 140 KiB for each reference, however it came about. What is written per time is bounded by the compaction's
credit (`chunkcompaction`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.segmentstore.metadata.fields import ChunkRef


def choose(refs: Sequence[ChunkRef]) -> Sequence[ChunkRef]:
    """The first run of references, which are in order, that is worth it; empty when none is."""
    for run in _small_runs(refs):
        if len(run) >= limits.COMPACT_RUN_MIN and (chosen := _by_growth(run) or _by_count(run)):
            return chosen
    return ()


def _small_runs(refs: Sequence[ChunkRef]) -> Iterator[Sequence[ChunkRef]]:
    """Maximal runs of small references without gaps."""
    begin = 0
    for index, ref in enumerate(refs):
        small = ref.length < limits.COMPACT_SMALL_MAX_BYTES
        if index > begin and (not small or refs[index - 1].end != ref.segment_offset):
            yield refs[begin:index]
            begin = index
        if not small:
            begin = index + 1
    if begin < len(refs):
        yield refs[begin:]


def _by_growth(run: Sequence[ChunkRef]) -> Sequence[ChunkRef]:
    """The longest choice from the first reference on from which there is one."""
    for begin in range(len(run) - limits.COMPACT_RUN_MIN + 1):
        total = longest = chosen_end = 0
        for end in range(begin, min(begin + limits.COMPACT_RUN_MAX, len(run))):
            length = run[end].length
            total += length
            if total > limits.FLUSH_OBJECT_MAX_BYTES:
                break
            longest = max(longest, length)
            if end - begin + 1 >= limits.COMPACT_RUN_MIN and total >= limits.COMPACT_GROWTH_MIN * longest:
                chosen_end = end + 1
        if chosen_end:
            return run[begin:chosen_end]
    return ()


def _by_count(run: Sequence[ChunkRef]) -> Sequence[ChunkRef]:
    if len(run) < limits.COMPACT_RUN_FORCED:
        return ()
    total = 0
    for end, ref in enumerate(run[: limits.COMPACT_RUN_MAX]):
        total += ref.length
        if total > limits.FLUSH_OBJECT_MAX_BYTES:
            return run[:end]
    return run[: limits.COMPACT_RUN_MAX]
