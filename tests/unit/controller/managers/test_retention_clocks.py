"""Retention where the clocks of controllers are wrong, and where a stream has its turn earlier in a round."""

from __future__ import annotations

from typing import Any

import pytest

from .test_retention_manager import PERIOD_MS, Bench, by_size, by_time

YEAR_MS = 365 * 86_400_000


@pytest.fixture
def bench(world: Any, make_api: Any) -> Bench:
    return Bench(world, make_api)


async def test_a_turn_earlier_in_the_round_records_a_cut_too(bench: Bench) -> None:
    await bench.begin(by_size(25))
    for early_ms in (0, PERIOD_MS // 10, PERIOD_MS // 3, 0):
        bench.world.clock.ms -= early_ms
        await bench.append(10)
        await bench.apply()
    assert [each.size_bytes for each in bench.record().recorded] == [10, 20, 30, 40]


@pytest.mark.parametrize("subscribed", [False, True])
async def test_a_clock_that_was_ahead_once_does_not_stop_retention(bench: Bench, subscribed: bool) -> None:
    await bench.begin(by_size(0, 100))
    if subscribed:
        await bench.subscribe()
    await bench.append(10)
    bench.world.clock.ms += YEAR_MS
    await bench.apply()
    ahead_ms = bench.record().recorded[-1].recorded_ms
    bench.world.clock.ms -= YEAR_MS
    for count in range(1, 5):
        await bench.append(100)
        if subscribed:
            assert await bench.publish({0: 10 + 100 * count}) == 0
        await bench.apply()
    assert await bench.head() == {0: 410}
    record = bench.record()
    assert record.applied_ms == bench.world.clock.ms, "the status does not say that it is applied for a year"
    assert all(each.recorded_ms >= ahead_ms for each in record.recorded), "times do not go back"


async def test_by_time_a_clock_that_was_ahead_once_deletes_nothing_early(bench: Bench) -> None:
    await bench.begin(by_time(3 * PERIOD_MS))
    await bench.append(10)
    bench.world.clock.ms += YEAR_MS
    await bench.apply()
    bench.world.clock.ms -= YEAR_MS
    for _ in range(10):
        await bench.append(10)
        assert await bench.apply() is None
    bench.world.clock.ms += YEAR_MS
    await bench.apply()
    await bench.apply()
    await bench.apply()
    assert await bench.head() == {0: 110}, "what was kept longer goes when that time comes"
