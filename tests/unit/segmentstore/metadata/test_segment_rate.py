"""Averages of a segment's rate against their definition (docs/controller.md#automatic-scaling)."""

from __future__ import annotations

import math
import random

import pytest

from tailrace.segmentstore.metadata.segment_rate import SegmentRate

WINDOWS_S = (120.0, 300.0, 600.0, 1200.0)


def begun(count: int = 0) -> SegmentRate:
    return SegmentRate("key", WINDOWS_S, count, 0.0)


def test_a_steady_rate_is_the_mean_of_every_window_from_the_first_sample_on() -> None:
    rate = begun(500)
    assert rate.rates() == [0, 0, 0, 0]
    for number in range(1, 400):
        rate.sample(500 + 70 * number, 7.0 * number)
        assert rate.rates() == pytest.approx([10.0] * 4)


def test_means_are_the_weighted_ones_over_all_there_was(test_seed: int) -> None:
    chance = random.Random(test_seed)
    for _ in range(50):
        rate, now_s, count = begun(), 0.0, 0
        pieces: list[tuple[float, float, float]] = []
        for _ in range(chance.randint(1, 100)):
            lapse_s, speed = chance.uniform(0.1, 60), chance.choice([0, 0, 1, 10, 1000])
            added = round(speed * lapse_s)
            pieces.append((now_s, now_s + lapse_s, added / lapse_s))
            now_s, count = now_s + lapse_s, count + added
            rate.sample(count, now_s)
        for mean, window_s in zip(rate.rates(), WINDOWS_S, strict=True):

            def weight(begin_s: float, end_s: float, window_s: float = window_s, now_s: float = now_s) -> float:
                return math.exp((end_s - now_s) / window_s) - math.exp((begin_s - now_s) / window_s)

            total = sum(weight(begin_s, end_s) for begin_s, end_s, _ in pieces)
            expected = sum(weight(begin_s, end_s) * speed for begin_s, end_s, speed in pieces) / total
            assert mean == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_how_often_it_is_sampled_does_not_matter_at_a_steady_rate() -> None:
    often, seldom = begun(), begun()
    for number in range(1, 1001):
        often.sample(30 * number, 3.0 * number)
    seldom.sample(30_000, 3000.0)
    assert often.rates() == pytest.approx(seldom.rates())


def test_a_burst_at_the_beginning_is_no_high_rate_later() -> None:
    rate = begun()
    rate.sample(5000, 5.0)  # 1000 a second
    for number in range(2, 122):
        rate.sample(5000, 5.0 * number)
    two, five, ten, twenty = rate.rates()
    assert two < five < ten < twenty < 12, "5,000 events in ten minutes are 8 a second"


def test_silence_lets_rates_fall_to_nothing() -> None:
    rate = begun()
    rate.sample(600_000, 600.0)
    rate.sample(600_000, 600.0 + 20 * 1200)
    assert max(rate.rates()) < 0.001


def test_what_came_at_once_counts_as_if_it_had_come_evenly() -> None:
    """Transactions of every length, one after the other, show the rate at which they were written."""
    for life_s in (10, 60, 600, 3600):
        rate, count = begun(), 0
        for end_s in range(life_s, 7200 + 1, life_s):
            rate.spread(24 * life_s, life_s, end_s)
            count += 24 * life_s
            rate.sample(count, float(end_s))
            assert rate.rates() == pytest.approx([24.0] * 4)


def test_how_often_it_is_sampled_does_not_matter_to_what_is_spread() -> None:
    rate = begun()
    for number in range(1, 1001):
        rate.spread(240, 10.0, 10.0 * number)
    rate.sample(240_000, 10_000.0)
    assert rate.rates() == pytest.approx([24.0] * 4)


def test_what_is_spread_may_be_counted_later() -> None:
    rate = begun()
    rate.spread(200, 20.0, 20.0)
    rate.sample(0, 20.0)  # the merge is not committed yet
    assert rate.rates() == pytest.approx([10.0] * 4)
    rate.sample(200, 40.0)
    expected = [10 * (math.exp(-20 / each) - math.exp(-40 / each)) / -math.expm1(-40 / each) for each in WINDOWS_S]
    assert rate.rates() == pytest.approx(expected)
    rate.sample(2200, 60.0)
    assert rate.rates()[0] > 30


def test_what_was_written_before_the_beginning_does_not_count() -> None:
    rate = begun()
    rate.spread(7200, 720.0, 10.0)  # 10 a second
    rate.sample(7200, 10.0)
    assert rate.rates() == pytest.approx([10.0] * 4)


def test_a_sample_at_the_same_moment_is_ignored() -> None:
    rate = begun()
    rate.sample(100, 0.0)
    assert rate.rates() == [0, 0, 0, 0]
    assert rate.sampled_before(0.1)
    assert not rate.sampled_before(0.0)
