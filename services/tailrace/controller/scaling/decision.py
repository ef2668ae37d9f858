"""Choose the segments of a stream that are split and merged, by their rates. Pure.

See docs/controller.md#automatic-scaling, docs/protocol/server.md#auto-scaling, ADR 0027.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.ranges import KeyRange, split_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.common.stream_policies import ScalingPolicy
    from tailrace.controller.metadata.model import StreamSegment
    from tailrace.controller.scaling.times import ScalingTimes

_HOT_2_MIN: Final = 5.0
_HOT_5_MIN: Final = 2.0
_HOT_10_MIN: Final = 1.25
"""Above 1: segments are merged when they are below 1 together, and must not be split again for a small change."""
_MERGED_AT_ONCE_MAX: Final = 3
_RANGE_MIN: Final = 2.0**-40
"""Width of a key range that is not split further."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rates of a segment, in the unit of the policy per second, over 2, 5, 10 and 20 minutes."""

    age_s: float
    """How long the segment was measured so far."""
    rates: Sequence[float]


@dataclass(frozen=True, slots=True)
class Plan:
    """A scale: the segments that are replaced, and the ranges of the new ones."""

    sealed: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    splits: int
    """Segments that are split."""
    merges: int
    """Segments that are made of several."""


def is_hot(measured: Measured, target: float, times: ScalingTimes) -> bool:
    """Return whether a segment is to be split."""
    two, five, ten, _ = measured.rates
    above = two > _HOT_2_MIN * target or five > _HOT_5_MIN * target or ten > _HOT_10_MIN * target
    return above and measured.age_s > times.split_age_s


def is_cold(measured: Measured, target: float, times: ScalingTimes) -> bool:
    """Return whether a segment may be merged with its neighbours. One that takes no events at all is cold too."""
    return max(measured.rates) < target and measured.age_s > times.merge_age_s


def decide(
    policy: ScalingPolicy, segments: Sequence[StreamSegment], measured: Mapping[int, Measured], times: ScalingTimes
) -> Plan | None:
    """Return the scale of a stream, or None.

    `segments` are the active ones. One that is not in `measured` is neither split nor merged.
    """
    ordered = sorted(segments, key=lambda each: each.low)
    parts = _splits(policy, ordered, measured, times)
    groups = _merges(policy, ordered, measured, times)
    if not parts and not groups:
        return None
    found = {each.identifier: each for each in ordered}
    ranges = [part for identifier, count in parts.items() for part in split_range(found[identifier].key_range, count)]
    ranges += [KeyRange(group[0].low, group[-1].high) for group in groups]
    sealed = (*parts, *(each.identifier for group in groups for each in group))
    return Plan(sealed, tuple(ranges), len(parts), len(groups))


def _splits(
    policy: ScalingPolicy, ordered: Sequence[StreamSegment], measured: Mapping[int, Measured], times: ScalingTimes
) -> dict[int, int]:
    """Return into how many parts each hot segment is split, as far as there may be more segments."""
    room = limits.SCALING_SEGMENTS_MAX - len(ordered)
    parts = {}
    for segment in ordered:
        seen = measured.get(segment.identifier)
        if seen is None or segment.key_range.width < _RANGE_MIN or not is_hot(seen, policy.target_rate, times):
            continue
        wanted = int(max(seen.rates[:3]) / policy.target_rate)
        count = min(max(2, wanted), max(2, policy.scale_factor), room + 1)
        if count >= 2:
            parts[segment.identifier] = count
            room -= count - 1
    return parts


def _merges(
    policy: ScalingPolicy, ordered: Sequence[StreamSegment], measured: Mapping[int, Measured], times: ScalingTimes
) -> list[list[StreamSegment]]:
    """Return groups of cold neighbours whose rates are below the target together, over every window."""
    spare = len(ordered) - policy.min_segments
    groups: list[list[StreamSegment]] = []
    group: list[StreamSegment] = []
    total = 0.0
    for segment in ordered:
        seen = measured.get(segment.identifier)
        if seen is None or not is_cold(seen, policy.target_rate, times):
            group = []
            continue
        rate = max(seen.rates)
        if group and len(group) < _MERGED_AT_ONCE_MAX and total + rate < policy.target_rate and spare > 0:
            if len(group) == 1:
                groups.append(group)
            group.append(segment)
            total += rate
            spare -= 1
        else:
            group, total = [segment], rate
    return groups
