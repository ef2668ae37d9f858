"""Which bytes of a container are neither in Tier 2 nor in its log. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.metadata.state import ContainerState


def missing_bytes(state: ContainerState) -> Iterator[tuple[Segment, int, int]]:
    """Yield (segment, start, end) for each range without a chunk and without a pending append.

    A container that is whole yields nothing.
    """
    for segment in state.segments.values():
        for gap_start, gap_end in segment.chunks.gaps(segment.start_offset, segment.length):
            position = segment.pending.covered_to(gap_start)
            if position < gap_end:
                yield segment, position, gap_end
