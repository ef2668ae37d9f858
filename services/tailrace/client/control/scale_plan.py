"""Plan a scale: the segments to seal and the new key ranges (docs/protocol/controller.md#scaling). Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.common.ranges import KeyRange, equal_ranges, split_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.client.model import SegmentRange


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """The segments to seal, the ranges of the new ones, and the resulting number of segments."""

    sealed: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    resulting_count: int

    @property
    def changes_nothing(self) -> bool:
        """Return whether the stream has the requested segments already."""
        return not self.sealed


def plan_count(active: Sequence[SegmentRange], count: int) -> ScalePlan:
    """Plan `count` equal ranges; segments with one of these ranges stay. Raises BadRequestError."""
    if not 1 <= count <= limits.STREAM_SEGMENTS_MAX:
        raise BadRequestError(f"{count} segments requested, 1 to {limits.STREAM_SEGMENTS_MAX} are allowed")
    wanted = equal_ranges(count)
    present = [segment.key_range for segment in active]
    sealed = tuple(segment.identifier for segment in active if segment.key_range not in wanted)
    return ScalePlan(sealed, tuple(item for item in wanted if item not in present), count)


def plan_changes(
    active: Sequence[SegmentRange], splits: Sequence[tuple[int, int]], merges: Sequence[Sequence[int]]
) -> ScalePlan:
    """Plan splits (segment, number of parts) and merges (neighbours) in one scale. Raises BadRequestError."""
    if not splits and not merges:
        raise BadRequestError("no segment is named")
    sealed: list[int] = []
    ranges: list[KeyRange] = []
    for identifier, parts in splits:
        sealed.append(identifier)
        ranges += _split(_find(active, identifier), parts)
    for identifiers in merges:
        sealed += identifiers
        ranges.append(_join([_find(active, identifier) for identifier in identifiers]))
    if len(set(sealed)) != len(sealed):
        raise BadRequestError("a segment is named twice")
    count = len(active) - len(sealed) + len(ranges)
    if count > limits.STREAM_SEGMENTS_MAX:
        raise BadRequestError(
            f"the scale results in {count} segments, at most {limits.STREAM_SEGMENTS_MAX} are allowed"
        )
    return ScalePlan(tuple(sealed), tuple(ranges), count)


def _split(segment: SegmentRange, parts: int) -> list[KeyRange]:
    if not 2 <= parts <= limits.STREAM_SEGMENTS_MAX:
        raise BadRequestError(
            f"a segment cannot be split into {parts} parts, 2 to {limits.STREAM_SEGMENTS_MAX} are allowed"
        )
    return split_range(segment.key_range, parts)


def _join(segments: Sequence[SegmentRange]) -> KeyRange:
    if len(segments) < 2:
        raise BadRequestError("a merge needs at least two segments")
    ordered = sorted(segments, key=lambda segment: segment.key_range)
    for left, right in itertools.pairwise(ordered):
        if left.key_range.high != right.key_range.low:
            raise BadRequestError(f"segments {left.identifier} and {right.identifier} are not neighbours")
    return KeyRange(ordered[0].key_range.low, ordered[-1].key_range.high)


def _find(active: Sequence[SegmentRange], identifier: int) -> SegmentRange:
    for segment in active:
        if segment.identifier == identifier:
            return segment
    raise BadRequestError(f"segment {identifier} is not active; {active_text(active)}")


def active_text(active: Sequence[SegmentRange]) -> str:
    """List the active segments for a message."""
    shown = ", ".join(str(segment.identifier) for segment in active[:20])
    return f"active segments: {shown}{', …' if len(active) > 20 else ''}"
