"""Move a cut over ends of sealed segments, to where their successors begin. Pure.

See "Pravega Stream Retention" and docs/controller.md#retention.

The end of a sealed segment and the beginning of its successors are the same position in the data, but not in the order
of cuts. A subscriber that has read everything before a scale would seem to lag behind a cut that was made after it.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from tailrace.common.stream_cut import FUTURE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tailrace.controller.metadata.model import Epoch, StreamSegment


def forward(cut: Mapping[int, int], epochs: Sequence[Epoch], sizes: Mapping[int, int]) -> dict[int, int]:
    """Return the last cut with the same data before it, in order of id.

    `epochs` follow each other, from the first one of the cut's segments on; `sizes` has the final size of each segment
    that is sealed between them; one that it lacks is being sealed, and is not left. Future segments are dropped.
    """
    moved = {identifier: offset for identifier, offset in cut.items() if offset != FUTURE_OFFSET}
    for before, after in itertools.pairwise(epochs):
        for gone, made in replaced(before, after):
            if all(moved.get(each.identifier, -1) >= sizes.get(each.identifier, math.inf) for each in gone):
                for each in gone:
                    del moved[each.identifier]
                moved.update((each.identifier, 0) for each in made)
    return dict(sorted(moved.items()))


def replaced(before: Epoch, after: Epoch) -> Iterator[tuple[list[StreamSegment], list[StreamSegment]]]:
    """Yield the smallest groups of segments of `before` that segments of `after` replace, and those segments."""
    kept = {segment.identifier for segment in before.segments} & {segment.identifier for segment in after.segments}
    gone = [segment for segment in before.segments if segment.identifier not in kept]
    made = [segment for segment in after.segments if segment.identifier not in kept]
    first_gone = first_made = 0
    for high in sorted({segment.high for segment in gone} & {segment.high for segment in made}):
        end_gone, end_made = _end(gone, first_gone, high), _end(made, first_made, high)
        yield gone[first_gone:end_gone], made[first_made:end_made]
        first_gone, first_made = end_gone, end_made


def _end(segments: Sequence[StreamSegment], first: int, high: float) -> int:
    """Return the index behind the segments up to a key, which are in the order of their keys."""
    while first < len(segments) and segments[first].high <= high:
        first += 1
    return first
