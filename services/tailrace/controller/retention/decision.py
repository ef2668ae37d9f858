"""Choose the cut at which a stream with a retention policy is truncated, and why. Pure.

See "Pravega Stream Retention" and docs/protocol/server.md#retention.

Each cycle records a cut at the tail with its time and with the bytes that the stream had received. These cuts follow
each other. Size is measured back from the newest of them, age from now. The least that a policy keeps is never given
up; what subscribers have not read goes only when the most that it keeps is exceeded.

A decision needs few of the recorded cuts. It is therefore a generator, which yields each recorded position whose cut it
needs and gets the cut.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tailrace.common.stream_cut import CutOrder, compare_cuts
from tailrace.common.stream_policies import RetentionType
from tailrace.controller.metadata.model import RecordedCut, TruncationReason
from tailrace.controller.retention.lower_bound import latest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.common.ranges import KeyRange
    from tailrace.common.stream_policies import RetentionPolicy

    Ranges = Mapping[int, KeyRange]

T = TypeVar("T")
Cut = Mapping[int, int]
Reading = Generator[RecordedCut, Cut, T]
"""Yields recorded positions, gets the cut of each, returns a result."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The position that no subscriber's cut lies before, and the bytes before it since the stream's beginning."""

    size_bytes: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where to truncate, and why."""

    cut: Cut
    reason: TruncationReason


@dataclass(frozen=True, slots=True)
class _Limits:
    """Recorded cuts that the policy's two figures choose."""

    least: RecordedCut | None
    """The newest one that keeps at least the minimum."""
    most: RecordedCut | None
    """The oldest one that keeps at least the minimum and at most the maximum; else `least`."""
    beyond: RecordedCut | None
    """The newest one before which everything exceeds the maximum."""


def decide(
    policy: RetentionPolicy, now_ms: int, recorded: Sequence[RecordedCut], subscribers: Bound | None, ranges: Ranges
) -> Reading[Truncation | None]:
    """Return where to truncate; None for nowhere.

    `recorded` has the retention set, oldest first; `ranges` the key range of every segment in the cuts that were
    returned so far. `subscribers` is None when no subscriber has published a cut.
    """
    if not recorded:
        return None
    limits = _limits(policy, now_ms, recorded)
    if subscribers is None:
        return None if limits.least is None else Truncation((yield limits.least), TruncationReason.MIN_LIMIT)
    if policy.kind is RetentionType.SIZE:
        return (yield from _by_size(policy, recorded, subscribers, limits, ranges))
    return (yield from _by_time(recorded, subscribers, limits, ranges))


def beyond_head(truncation: Truncation, head: Cut, ranges: Ranges) -> Truncation | None:
    """Return the truncation without what lies before the head already; None when nothing is left.

    A subscriber that lags behind the head in some segments holds nothing back there.
    """
    cut = latest([truncation.cut, head], ranges)
    return None if compare_cuts(head, cut, ranges) is not CutOrder.BEFORE else Truncation(cut, truncation.reason)


def count_before(recorded: Sequence[RecordedCut], cut: Cut, ranges: Ranges) -> Reading[int]:
    """Return how many of the recorded cuts lie before a cut: the first ones, because they follow each other."""
    low, high = 0, len(recorded)
    while low < high:
        middle = (low + high) // 2
        if compare_cuts((yield recorded[middle]), cut, ranges) is CutOrder.BEFORE:
            low = middle + 1
        else:
            high = middle
    return low


def _limits(policy: RetentionPolicy, now_ms: int, recorded: Sequence[RecordedCut]) -> _Limits:
    """Return the cuts at the limits. Cuts follow each other, so what they keep falls from the oldest to the newest."""

    def kept(each: RecordedCut) -> int:
        if policy.kind is RetentionType.SIZE:
            return recorded[-1].size_bytes - each.size_bytes
        return now_ms - each.recorded_ms

    enough = [each for each in recorded if kept(each) >= policy.minimum]
    least = enough[-1] if enough else None
    most = next((each for each in enough if kept(each) <= policy.most), least)
    beyond = next((each for each in reversed(recorded) if kept(each) >= policy.most), None)
    return _Limits(least, most, beyond)


def _by_size(
    policy: RetentionPolicy,
    recorded: Sequence[RecordedCut],
    subscribers: Bound,
    limits: _Limits,
    ranges: Ranges,
) -> Reading[Truncation | None]:
    newest_bytes = recorded[-1].size_bytes
    kept_bytes = newest_bytes - subscribers.size_bytes
    if kept_bytes < policy.minimum:
        return (yield from _at_minimum(recorded, subscribers, limits, ranges))
    if kept_bytes < policy.most:
        return Truncation(subscribers.cut, TruncationReason.CONSUMPTION)
    if limits.most is not None and newest_bytes - limits.most.size_bytes < kept_bytes:
        return Truncation((yield limits.most), TruncationReason.MAX_LIMIT)
    return Truncation(subscribers.cut, TruncationReason.CONSUMPTION)


def _by_time(
    recorded: Sequence[RecordedCut], subscribers: Bound, limits: _Limits, ranges: Ranges
) -> Reading[Truncation | None]:
    if limits.least is None:
        return None
    if compare_cuts((yield limits.least), subscribers.cut, ranges) is not CutOrder.EQUAL_OR_AFTER:
        return (yield from _at_minimum(recorded, subscribers, limits, ranges))
    if limits.beyond is None or limits.most is None:
        return Truncation(subscribers.cut, TruncationReason.CONSUMPTION)
    beyond = yield limits.beyond
    match compare_cuts(subscribers.cut, beyond, ranges):
        case CutOrder.EQUAL_OR_AFTER:
            return Truncation(subscribers.cut, TruncationReason.CONSUMPTION)
        case CutOrder.BEFORE:
            return Truncation((yield limits.most), TruncationReason.MAX_LIMIT)
        case CutOrder.OVERLAPS:
            return Truncation(beyond, TruncationReason.MAX_LIMIT)


def _at_minimum(
    recorded: Sequence[RecordedCut], subscribers: Bound, limits: _Limits, ranges: Ranges
) -> Reading[Truncation | None]:
    """Truncate at the newest recorded cut that keeps the minimum and lies before all that subscribers have not read."""
    enough = [] if limits.least is None else recorded[: recorded.index(limits.least) + 1]
    before = yield from count_before(enough, subscribers.cut, ranges)
    return Truncation((yield enough[before - 1]), TruncationReason.MIN_LIMIT) if before else None
