"""Choose the cut at which a stream with a retention policy is truncated, and why. Pure.

See "Pravega Stream Retention" and docs/protocol/server.md#retention.

Each cycle records a cut at the tail with its time and with the bytes that the stream had received. These cuts follow
each other. Size is measured back from the newest of them, age from now. The least that a policy keeps is never given
up; what subscribers have not read goes only when the most that it keeps is exceeded, and then also where they have read
other segments further than the minimum (ADR 0049).

Subscribers and recorded cuts can lie behind the head in some segments. What is deleted there is not kept: all places
here are where a truncation would leave the head.

A decision needs few of the recorded cuts. It is therefore a generator, which yields each recorded cut that it needs and
gets its place.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tailrace.common.stream_cut import CutOrder, compare_cuts
from tailrace.common.stream_policies import RetentionType
from tailrace.controller.metadata.model import RecordedCut, TruncationReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.common.ranges import KeyRange
    from tailrace.common.stream_policies import RetentionPolicy

    Ranges = Mapping[int, KeyRange]

T = TypeVar("T")
Cut = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the stream, and the bytes before it since the stream's beginning."""

    size_bytes: int
    cut: Cut


Reading = Generator[RecordedCut, Place, T]
"""Yields recorded cuts, gets the place of each, returns a result."""


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
    """By size, the oldest one that keeps at least the minimum and at most the maximum; else `least`.

    By time, the newest one before which everything is as old as the maximum or older (ADR 0045).
    """


def decide(
    policy: RetentionPolicy,
    now_ms: int,
    recorded: Sequence[RecordedCut],
    subscribers: Place | None,
    ranges: Ranges,
    head_bytes: int,
) -> Reading[Truncation | None]:
    """Return where to truncate, which is at the head when nothing is to go; None for nowhere.

    `recorded` has the retention set, oldest first; `ranges` the key range of every segment in the places that were
    returned so far. `subscribers` is the place before which all of them have read; None when no subscriber has
    published a cut. `head_bytes` are those before the head since the stream's beginning.
    """
    if not recorded:
        return None
    limits = yield from _limits(policy, now_ms, recorded)
    if subscribers is None:
        return None if limits.least is None else Truncation((yield limits.least).cut, TruncationReason.MIN_LIMIT)
    if policy.kind is RetentionType.SIZE:
        return (yield from _by_size(policy, recorded, subscribers, limits, ranges, head_bytes))
    return (yield from _by_time(recorded, subscribers, limits, ranges))


def count_before(recorded: Sequence[RecordedCut], cut: Cut, ranges: Ranges) -> Reading[int]:
    """Return how many of the recorded cuts lie before a cut: the first ones, because they follow each other."""
    return (
        yield from _count(
            recorded, len(recorded) // 2, lambda place: compare_cuts(place.cut, cut, ranges) is CutOrder.BEFORE
        )
    )


def count_until(recorded: Sequence[RecordedCut], until: Place, ranges: Ranges) -> Reading[int]:
    """Return how many of the recorded cuts lie before a place or at it, in every segment: the first ones."""
    # None of them has more bytes before it. Mostly all that have not lie there, so the last one is looked at first.
    possible = [each for each in recorded if each.size_bytes <= until.size_bytes]
    return (
        yield from _count(
            possible,
            len(possible) - 1,
            lambda place: compare_cuts(until.cut, place.cut, ranges) is CutOrder.EQUAL_OR_AFTER,
        )
    )


def _count(recorded: Sequence[RecordedCut], first: int, holds: Callable[[Place], bool]) -> Reading[int]:
    """Return for how many of the recorded cuts something holds: the first ones. Look at the one at `first` first."""
    low, high, middle = 0, len(recorded), first
    while low < high:
        if holds((yield recorded[middle])):
            low = middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    return low


def _limits(policy: RetentionPolicy, now_ms: int, recorded: Sequence[RecordedCut]) -> Reading[_Limits]:
    """Return the cuts at the limits. Cuts follow each other, so what they keep falls from the oldest to the newest."""
    if policy.kind is RetentionType.TIME:
        old = [each for each in recorded if now_ms - each.recorded_ms >= policy.minimum]
        most = next((each for each in reversed(old) if now_ms - each.recorded_ms >= policy.most), None)
        return _Limits(old[-1] if old else None, most)
    newest_bytes = recorded[-1].size_bytes
    enough = recorded[: (yield from _count_keeping(recorded, newest_bytes, policy.minimum))]
    if not enough:
        return _Limits(None, None)
    too_many = yield from _count_keeping(enough, newest_bytes, policy.most + 1)
    return _Limits(enough[-1], enough[min(too_many, len(enough) - 1)])


def _count_keeping(recorded: Sequence[RecordedCut], newest_bytes: int, least_bytes: int) -> Reading[int]:
    """Return how many of the recorded cuts keep so many bytes: the first ones."""
    # Their sizes count also what is deleted behind them. Hence no others keep as much, and mostly all of these do.
    possible = [each for each in recorded if newest_bytes - each.size_bytes >= least_bytes]
    return (
        yield from _count(possible, len(possible) - 1, lambda place: newest_bytes - place.size_bytes >= least_bytes)
    )


def _by_size(
    policy: RetentionPolicy,
    recorded: Sequence[RecordedCut],
    subscribers: Place,
    limits: _Limits,
    ranges: Ranges,
    head_bytes: int,
) -> Reading[Truncation | None]:
    newest_bytes = recorded[-1].size_bytes
    kept_bytes = newest_bytes - subscribers.size_bytes
    if policy.minimum <= kept_bytes < policy.most:
        return Truncation(subscribers.cut, TruncationReason.CONSUMPTION)
    most = None if limits.most is None else (yield limits.most)
    if kept_bytes < policy.minimum:
        safe = yield from _safe(recorded, subscribers, limits, ranges)
        deleted_bytes = head_bytes if safe is None else safe.size_bytes
        if most is not None and most.size_bytes > deleted_bytes and newest_bytes - deleted_bytes > policy.most:
            return Truncation(most.cut, TruncationReason.MAX_LIMIT)
        return None if safe is None else Truncation(safe.cut, TruncationReason.MIN_LIMIT)
    if most is not None and most.size_bytes > subscribers.size_bytes:
        return Truncation(most.cut, TruncationReason.MAX_LIMIT)
    return Truncation(subscribers.cut, TruncationReason.CONSUMPTION)


def _by_time(
    recorded: Sequence[RecordedCut], subscribers: Place, limits: _Limits, ranges: Ranges
) -> Reading[Truncation | None]:
    if limits.least is None:
        return None
    if limits.most is not None:
        most = (yield limits.most).cut
        if compare_cuts(subscribers.cut, most, ranges) is not CutOrder.EQUAL_OR_AFTER:
            return Truncation(most, TruncationReason.MAX_LIMIT)
    if compare_cuts((yield limits.least).cut, subscribers.cut, ranges) is CutOrder.EQUAL_OR_AFTER:
        return Truncation(subscribers.cut, TruncationReason.CONSUMPTION)
    safe = yield from _safe(recorded, subscribers, limits, ranges)
    return None if safe is None else Truncation(safe.cut, TruncationReason.MIN_LIMIT)


def _safe(
    recorded: Sequence[RecordedCut], subscribers: Place, limits: _Limits, ranges: Ranges
) -> Reading[Place | None]:
    """Return the newest recorded cut that keeps the minimum and lies before all that subscribers have not read."""
    enough = [] if limits.least is None else recorded[: recorded.index(limits.least) + 1]
    before = yield from count_before(enough, subscribers.cut, ranges)
    return (yield enough[before - 1]) if before else None
