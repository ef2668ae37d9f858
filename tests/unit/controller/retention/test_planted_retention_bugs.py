"""Bugs of the kinds that "Pravega Stream Retention" warns of, planted one at a time: the searches must find each.

A search that passes with a bug would prove nothing about the product.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tailrace.common.ranges import KeyRange
from tailrace.common.stream_cut import CutOrder, compare_cuts
from tailrace.common.stream_policies import RetentionType
from tailrace.controller.metadata.model import Epoch, RecordedCut
from tailrace.controller.retention import decision, forward, lower_bound

from . import test_decision as searches

Cut = Mapping[int, int]
Plant = Callable[[pytest.MonkeyPatch], None]

_limits = decision._limits
_by_size, _by_time = decision._by_size, decision._by_time
_forward = forward.forward
_count_before = decision.count_before


def a_cut_too_new_for_the_minimum(patch: pytest.MonkeyPatch) -> None:
    """Wrong bound: the cut that follows the newest one which keeps the minimum."""

    def limits(policy: Any, now_ms: int, recorded: Sequence[RecordedCut]) -> decision.Reading[Any]:
        found = yield from _limits(policy, now_ms, recorded)
        if found.least is None:
            return found
        following = recorded[min(recorded.index(found.least) + 1, len(recorded) - 1)]
        return dataclasses.replace(found, least=following)

    patch.setattr(decision, "_limits", limits)


def the_newest_cut_for_the_maximum(patch: pytest.MonkeyPatch) -> None:
    """Wrong bound: at the maximum all goes but the minimum."""

    def limits(policy: Any, now_ms: int, recorded: Sequence[RecordedCut]) -> decision.Reading[Any]:
        found = yield from _limits(policy, now_ms, recorded)
        return dataclasses.replace(found, most=found.least)

    patch.setattr(decision, "_limits", limits)


def a_younger_cut_for_the_maximum_age(patch: pytest.MonkeyPatch) -> None:
    """The cut that follows the newest one which is as old as the maximum: data between them may be young."""

    def limits(policy: Any, now_ms: int, recorded: Sequence[RecordedCut]) -> decision.Reading[Any]:
        found = yield from _limits(policy, now_ms, recorded)
        if policy.kind is RetentionType.SIZE or found.most is None:
            return found
        following = recorded[min(recorded.index(found.most) + 1, len(recorded) - 1)]
        return dataclasses.replace(found, most=following)

    patch.setattr(decision, "_limits", limits)


def the_maximum_is_never_exceeded(patch: pytest.MonkeyPatch) -> None:
    """A subscriber that lags holds everything."""

    def limits(policy: Any, now_ms: int, recorded: Sequence[RecordedCut]) -> decision.Reading[Any]:
        return dataclasses.replace((yield from _limits(policy, now_ms, recorded)), most=None)

    patch.setattr(decision, "_limits", limits)


def cuts_that_overlap_count_as_before(patch: pytest.MonkeyPatch) -> None:
    """Cases iv and v: some keys have read more, so the others are taken to have read as much."""

    def compare(first: Cut, second: Cut, ranges: Mapping[int, KeyRange]) -> CutOrder:
        found = compare_cuts(first, second, ranges)
        return CutOrder.BEFORE if found is CutOrder.OVERLAPS else found

    patch.setattr(decision, "compare_cuts", compare)


def one_cut_too_many_before_consumption(patch: pytest.MonkeyPatch) -> None:
    """Off by one: the first cut that a subscriber has not passed."""

    def count(recorded: Sequence[RecordedCut], cut: Cut, ranges: Any) -> decision.Reading[int]:
        found = yield from _count_before(recorded, cut, ranges)
        return min(found + 1, len(recorded))

    patch.setattr(decision, "count_before", count)


def consumption_without_the_minimum(patch: pytest.MonkeyPatch) -> None:
    """Case ii: what all have read goes, although too little is left."""

    def safe(recorded: Any, subscribers: Any, limits: Any, ranges: Any) -> decision.Reading[Any]:
        return subscribers
        yield recorded[0]  # makes it a generator

    patch.setattr(decision, "_safe", safe)


def an_overlap_before_the_maximum(patch: pytest.MonkeyPatch) -> None:
    """What subscribers have read in one segment beyond the minimum lets them hold another one back for ever."""

    def by_time(recorded: Any, subscribers: Any, limits: Any, ranges: Any) -> decision.Reading[Any]:
        least = limits.least and (yield limits.least).cut
        if least and compare_cuts(least, subscribers.cut, ranges) is not CutOrder.EQUAL_OR_AFTER:
            limits = dataclasses.replace(limits, most=None)
        return (yield from _by_time(recorded, subscribers, limits, ranges))

    patch.setattr(decision, "_by_time", by_time)


def an_overlap_before_the_maximum_size(patch: pytest.MonkeyPatch) -> None:
    """The same by size: too little would be left at the subscribers' cut, and too much at the cut before it."""

    def by_size(policy: Any, recorded: Any, subscribers: Any, limits: Any, *others: Any) -> decision.Reading[Any]:
        if recorded[-1].size_bytes - subscribers.size_bytes < policy.minimum:
            limits = dataclasses.replace(limits, most=None)
        return (yield from _by_size(policy, recorded, subscribers, limits, *others))

    patch.setattr(decision, "_by_size", by_size)


def the_fastest_subscriber_counts(patch: pytest.MonkeyPatch) -> None:
    """The upper bound of several subscribers in place of the lower one."""
    patch.setattr(searches, "earliest", lower_bound.latest)


def a_ghost_takes_the_place_of_the_first_subscriber(patch: pytest.MonkeyPatch) -> None:
    """The cut of one subscriber is not looked at."""
    real = lower_bound.earliest
    patch.setattr(searches, "earliest", lambda cuts, ranges: real(list(cuts)[1:] or cuts, ranges))


def one_epoch_too_few(patch: pytest.MonkeyPatch) -> None:
    """Off by one epoch: a cut is not moved over the last scale."""

    def short(cut: Cut, epochs: Sequence[Epoch], sizes: Mapping[int, int]) -> dict[int, int]:
        return _forward(cut, epochs[:-1], sizes)

    patch.setattr(searches, "forward", short)


def a_segment_counts_as_read_one_byte_early(patch: pytest.MonkeyPatch) -> None:
    """Off by one byte at the end of a sealed segment."""

    def early(cut: Cut, epochs: Sequence[Epoch], sizes: Mapping[int, int]) -> dict[int, int]:
        return _forward(cut, epochs, {each: max(0, size - 1) for each, size in sizes.items()})

    patch.setattr(searches, "forward", early)


def what_is_deleted_counts_as_kept(patch: pytest.MonkeyPatch) -> None:
    """A recorded cut that lies behind the head for some keys: its size is that of before the deletion."""

    def count(recorded: Sequence[RecordedCut], newest_bytes: int, least_bytes: int) -> decision.Reading[int]:
        return sum(newest_bytes - each.size_bytes >= least_bytes for each in recorded)
        yield recorded[0]  # makes it a generator

    patch.setattr(decision, "_count_keeping", count)


def merged(seed: int) -> None:
    searches.test_merged_cuts_hold_what_all_of_them_or_any_of_them_hold(seed, "ci")


def moved(seed: int) -> None:
    searches.test_a_cut_moves_over_the_ends_of_segments_as_far_as_it_can(seed, "ci")


def truncated(seed: int) -> None:
    searches.test_a_truncation_is_the_one_that_a_search_finds(seed, "ci")


def promised(seed: int) -> None:
    searches.test_a_truncation_keeps_the_minimum_and_enforces_the_maximum(seed, "ci")


@pytest.mark.parametrize(
    ("plant", "search"),
    [
        (a_cut_too_new_for_the_minimum, truncated),
        (the_newest_cut_for_the_maximum, truncated),
        (a_younger_cut_for_the_maximum_age, truncated),
        (the_maximum_is_never_exceeded, truncated),
        (cuts_that_overlap_count_as_before, truncated),
        (one_cut_too_many_before_consumption, truncated),
        (consumption_without_the_minimum, truncated),
        (what_is_deleted_counts_as_kept, truncated),
        (a_cut_too_new_for_the_minimum, promised),
        (the_maximum_is_never_exceeded, promised),
        (an_overlap_before_the_maximum, promised),
        (an_overlap_before_the_maximum_size, promised),
        (the_fastest_subscriber_counts, merged),
        (a_ghost_takes_the_place_of_the_first_subscriber, merged),
        (one_epoch_too_few, moved),
        (a_segment_counts_as_read_one_byte_early, moved),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_found(
    plant: Plant, search: Callable[[int], None], test_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        search(test_seed)
