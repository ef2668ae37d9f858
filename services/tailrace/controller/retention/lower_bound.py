"""Merge cuts of one stream: the position before which none of them lies, and the one after which none does. Pure.

See "Pravega Stream Retention" and docs/protocol/server.md#retention.

For every key, the segments that owned it follow each other by epoch. There a cut is a segment and an offset, and two
cuts are ordered. A merge takes the earlier, or the later, for each key. As a valid cut never lies before and after one
segment, all keys of a segment that is taken take it, and the merge partitions the key space again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common.names import segment_epoch
from tailrace.common.stream_cut import FUTURE_OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tailrace.common.ranges import KeyRange

    Cut = Mapping[int, int]


def earliest(cuts: Iterable[Cut], ranges: Mapping[int, KeyRange]) -> dict[int, int]:
    """Return the cut that truncates what lies before every one of the cuts, and nothing else.

    `ranges` has the key range of every segment in the cuts. At least one cut is needed; each covers the key space.
    """
    return _merge(cuts, ranges, lambda identifier, other: segment_epoch(other) < segment_epoch(identifier), min)


def latest(cuts: Iterable[Cut], ranges: Mapping[int, KeyRange]) -> dict[int, int]:
    """Return the cut that truncates what lies before any of the cuts; arguments as for `earliest`."""
    return _merge(cuts, ranges, lambda identifier, other: segment_epoch(other) > segment_epoch(identifier), max)


def _merge(
    cuts: Iterable[Cut],
    ranges: Mapping[int, KeyRange],
    is_preferred: Callable[[int, int], bool],
    choose: Callable[[int, int], int],
) -> dict[int, int]:
    """Return the segments that no other one with common keys is preferred to, each with its chosen offset."""
    offsets: dict[int, int] = {}
    for cut in cuts:
        for identifier, offset in cut.items():
            if offset != FUTURE_OFFSET:
                offsets[identifier] = choose(offset, offsets.get(identifier, offset))
    return {
        identifier: offset
        for identifier, offset in sorted(offsets.items())
        if not any(
            is_preferred(identifier, other) and ranges[identifier].overlaps(ranges[other])
            for other in offsets
            if other != identifier
        )
    }
