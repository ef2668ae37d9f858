"""Chooses the small chunks that are worth rewriting as one (docs/design.md#tier-2). Pure.

Two rules choose a contiguous run of small references:

- *growth*: at least ``COMPACT_RUN_MIN`` (16) of them, which together are at least ``COMPACT_GROWTH_MIN`` (4) times as
  long as the longest. Each rewrite by this rule makes the chunk of a byte at least four times longer, and chunks of
  ``COMPACT_SMALL_MAX_BYTES`` (1 MiB) are left alone. So a byte that was flushed in a chunk of s bytes is rewritten at
  most ⌈log₄(1 MiB / s)⌉ times: once from 256 KiB on, twice from 64 KiB on, never more than ten times.
- *count*: ``COMPACT_RUN_FORCED`` (64) of them in a row, of any lengths, so that no order of lengths escapes.
  Either they fill ``FLUSH_OBJECT_MAX_BYTES`` (8 MiB) and are small no longer, which rewrites each byte once; or 8 MiB
  remove at least 63 references, which is some 140 KiB for each reference that a flush made.

So a segment keeps at most 63 small references in a row. The bytes rewritten are at most eleven times the bytes flushed
plus 140 KiB for each reference. The credit of `chunk_compaction` bounds the bytes rewritten per second.

For a segment with a smaller rollover size both lengths are smaller in the same proportion, so the bounds hold as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.segmentstore.metadata.fields import ChunkRef


def choose(refs: Sequence[ChunkRef], chunk_max_bytes: int) -> Sequence[ChunkRef]:
    """Return the first run of the sorted references that is worth rewriting; empty when none is.

    ``chunk_max_bytes``: how long a chunk of the segment may be.
    """
    small_max_bytes = limits.COMPACT_SMALL_MAX_BYTES * chunk_max_bytes // limits.FLUSH_OBJECT_MAX_BYTES
    for run in _small_runs(refs, small_max_bytes):
        if len(run) >= limits.COMPACT_RUN_MIN and (
            chosen := _by_growth(run, chunk_max_bytes) or _by_count(run, chunk_max_bytes)
        ):
            return chosen
    return ()


def _small_runs(refs: Sequence[ChunkRef], small_max_bytes: int) -> Iterator[Sequence[ChunkRef]]:
    """Yield maximal contiguous runs of small references."""
    begin = 0
    for index, ref in enumerate(refs):
        small = ref.length < small_max_bytes
        if index > begin and (not small or refs[index - 1].end != ref.segment_offset):
            yield refs[begin:index]
            begin = index
        if not small:
            begin = index + 1
    if begin < len(refs):
        yield refs[begin:]


def _by_growth(run: Sequence[ChunkRef], chunk_max_bytes: int) -> Sequence[ChunkRef]:
    """Return the longest run of the growth rule from the first reference where the rule holds."""
    for begin in range(len(run) - limits.COMPACT_RUN_MIN + 1):
        total = longest = chosen_end = 0
        for end in range(begin, min(begin + limits.COMPACT_RUN_MAX, len(run))):
            length = run[end].length
            total += length
            if total > chunk_max_bytes:
                break
            longest = max(longest, length)
            if end - begin + 1 >= limits.COMPACT_RUN_MIN and total >= limits.COMPACT_GROWTH_MIN * longest:
                chosen_end = end + 1
        if chosen_end:
            return run[begin:chosen_end]
    return ()


def _by_count(run: Sequence[ChunkRef], chunk_max_bytes: int) -> Sequence[ChunkRef]:
    if len(run) < limits.COMPACT_RUN_FORCED:
        return ()
    total = 0
    for end, ref in enumerate(run[: limits.COMPACT_RUN_MAX]):
        total += ref.length
        if total > chunk_max_bytes:
            return run[:end]
    return run[: limits.COMPACT_RUN_MAX]
