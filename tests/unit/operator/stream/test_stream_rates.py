"""Rates of segments in the status of a Stream: what is said, and which change of them is worth a write."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.control.owners import SegmentRates, StreamDescription
from tailrace.common.stream_policies import ScaleType, ScalingPolicy, StreamConfig
from tailrace_operator.schema.grammar import SEGMENT_RATES_LISTED_MAX
from tailrace_operator.stream.rates import are_rates_near, rates

LATER = 5 << 32
"""Ids of epoch 5 begin here: they differ by less than a tenth."""


def described(per_s: dict[int, float] | None, kind: ScaleType = ScaleType.BY_RATE_IN_EVENTS) -> StreamDescription:
    policy = ScalingPolicy(kind, 1, 0 if kind is ScaleType.FIXED else 100, 2)
    known = None if per_s is None else SegmentRates(1_700_000_000_123, per_s)
    return StreamDescription(StreamConfig(policy), "", 0, "active", 0, 2, 0, 0, rates=known)


def status(per_s: dict[int, float], kind: ScaleType = ScaleType.BY_RATE_IN_EVENTS) -> Any:
    return rates(described(per_s, kind))["rates"]


def test_rates_are_said_with_their_unit_and_time() -> None:
    segments = [{"segment": 2, "perSecond": 100}, {"segment": LATER, "perSecond": 0}]
    expected = {"type": "EventRate", "time": "2023-11-14T22:13:20Z", "segments": segments}
    assert status({LATER: 0.4, 2: 99.6}) == expected
    assert status({LATER: 0.4, 2: 99.6}, ScaleType.BY_RATE_IN_KBYTES) == {**expected, "type": "ByteRate"}
    assert status({}) == {**expected, "segments": []}


def test_what_is_not_known_stays_and_what_a_fixed_stream_had_goes() -> None:
    assert rates(described(None)) == {}
    assert rates(described({1: 2.0}, ScaleType.FIXED)) == {"rates": None}


def test_the_fastest_segments_are_listed_in_the_order_of_ids() -> None:
    listed = status({number: float(number // 2) for number in range(205)})["segments"]
    assert [each["segment"] for each in listed] == [104, *range(106, 205)], "of equals the first"
    assert len(listed) == SEGMENT_RATES_LISTED_MAX


@pytest.mark.parametrize(
    "found", [{1: 20.0, 2: 1.0}, {1: 5.0, 2: 0.0}, {1: 10.0, 2: 0.4}], ids=["double", "half", "same"]
)
def test_small_changes_are_near(found: dict[int, float]) -> None:
    assert are_rates_near(status({1: 10.0, 2: 0.0}), {**status(found), "time": "2026-01-01T00:00:00Z"})


@pytest.mark.parametrize(
    "found",
    [{1: 21.0, 2: 0.0}, {1: 4.0, 2: 0.0}, {1: 10.0, 2: 2.0}, {1: 10.0}, {1: 10.0, 2: 0.0, 3: 0.0}],
    ids=["more", "less", "from nothing", "a segment less", "a segment more"],
)
def test_large_changes_are_not(found: dict[int, float]) -> None:
    assert not are_rates_near(status({1: 10.0, 2: 0.0}), status(found))


def test_other_segments_and_units_are_not_near() -> None:
    before = status({LATER + 1: 10.0})
    assert not are_rates_near(before, status({LATER + 2: 10.0}))
    assert not are_rates_near(before, status({LATER + 1: 10.0}, ScaleType.BY_RATE_IN_KBYTES))
    assert not are_rates_near(None, before)
    assert not are_rates_near(before, None)
    assert are_rates_near(None, None)


def test_of_full_lists_only_segments_in_both_count() -> None:
    first = dict.fromkeys(range(SEGMENT_RATES_LISTED_MAX), 100.0)
    other = dict.fromkeys(range(50, SEGMENT_RATES_LISTED_MAX + 50), 100.0)
    assert are_rates_near(status(first), status(other))
    assert not are_rates_near(status(first), status({**other, 60: 201.0}))
    assert not are_rates_near(status(first), status(dict(list(other.items())[1:]))), "one that is not full"
