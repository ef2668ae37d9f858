"""Where a long segment can be divided among readers of Tier 2 (docs/spark-direct.md#divisions; ADR 0044).

An event begins for certain where the header of a chunk's section says so. Few headers are read: one a part, mostly.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, NotFoundError
from tailrace.common.task_groups import gather_bounded
from tailrace.storage import chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.pipelines.direct.references import SegmentReferences
    from tailrace.pipelines.direct.segment_range import TierTwo
    from tailrace.segmentstore.metadata.fields import ChunkRef

_start = attrgetter("segment_offset")


async def divisions(tier2: TierTwo, references: SegmentReferences, start: int, end: int, most_bytes: int) -> list[int]:
    """Return offsets within (start, end) where events begin, near enough for parts of at most ``most_bytes``.

    Fewer where headers do not say where events begin, and none behind what Tier 2 has.

    Raises:
        UnavailableError: the store does not answer.
    """
    # A chunk begins at most so much before a goal, and the next goal is that much nearer than a whole part.
    spacing = max(most_bytes - limits.FLUSH_OBJECT_MAX_BYTES, most_bytes // 2, 1)
    goals = range(start + spacing, min(end, references.length), spacing)

    async def find(goal: int) -> int:
        for ref in _near(references, max(goal - spacing, start), goal):
            if await begins_event(tier2, ref):
                return ref.segment_offset
        return start

    return sorted({offset for offset in await gather_bounded(goals, find) if start < offset < end})


def _near(references: SegmentReferences, above: int, goal: int) -> Iterator[ChunkRef]:
    """Yield some references that begin in (above, goal], the nearest to `goal` first."""
    last = bisect_right(references.chunks, goal, key=_start)
    first = bisect_right(references.chunks, above, key=_start)
    return islice(reversed(references.chunks[first:last]), limits.DIRECT_DIVISION_LOOKS)


async def begins_event(tier2: TierTwo, ref: ChunkRef) -> bool:
    """Return whether a reference's section says that an event begins at its first byte; False: it is not known.

    Raises:
        UnavailableError: the store does not answer.
    """
    before = min(ref.data_offset, chunks.HEADER_MAX_BYTES)
    try:
        raw = await tier2.store.get_range(ref.object_key, ref.data_offset - before, before)
    except (NotFoundError, CorruptionError):
        return False  # replaced meanwhile; or damaged, which its reader reports
    return chunks.begins_event(raw, tier2.cluster_id.bytes, ref.length)
