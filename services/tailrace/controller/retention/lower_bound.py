"""Merge cuts of one stream: the position before which none of them lies, and the one after which none does. Pure.

See "Pravega Stream Retention" and docs/protocol/server.md#retention.

For every key, the segments that owned it follow each other by epoch. There a cut is a segment and an offset, and two
cuts are ordered. A merge takes the earlier, or the later, for each key. As a valid cut never lies before and after one
segment, all keys of a segment that is taken take it, and the merge partitions the key space again.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tailrace.common.stream_cut import pairs_of_positions, without_future

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tailrace.common.ranges import KeyRange
    from tailrace.common.stream_cut import Position

    Cut = Mapping[int, int]


def earliest(cuts: Iterable[Cut], ranges: Mapping[int, KeyRange]) -> dict[int, int]:
    """Return the cut that truncates what lies before every one of the cuts, and nothing else.

    `ranges` has the key range of every segment in the cuts. At least one cut is needed; each covers the key space.
    """
    return functools.reduce(lambda first, second: _merge(first, second, ranges, min), map(without_future, cuts))


def latest(cuts: Iterable[Cut], ranges: Mapping[int, KeyRange]) -> dict[int, int]:
    """Return the cut that truncates what lies before any of the cuts; arguments as for `earliest`."""
    return functools.reduce(lambda first, second: _merge(first, second, ranges, max), map(without_future, cuts))


def _merge(
    first: Cut, second: Cut, ranges: Mapping[int, KeyRange], choose: Callable[[Position, Position], Position]
) -> dict[int, int]:
    """Return the chosen one of both cuts' positions, for each key."""
    chosen = [choose(mine, theirs) for mine, theirs in pairs_of_positions(first, second, ranges)]
    return {position.identifier: position.offset for position in sorted(chosen)}
