"""Retention where the clocks of controllers are wrong, and where a stream has its turn earlier in a round."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.common.errors import BadRequestError

from .test_retention_manager import KEY, PERIOD_MS, Bench, by_size, by_time

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS


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


async def rounds_by_a_right_clock(bench: Bench, rounds: int = 6) -> None:
    """New data before each round."""
    for _ in range(rounds):
        await bench.append(10)
        await bench.apply()


async def apply_ahead(bench: Bench, ahead_ms: int) -> Any:
    """One application at this moment by a controller whose clock is ahead, or behind."""
    bench.world.clock.ms += ahead_ms
    try:
        return (await bench.api.controller.services.core.retention.apply(KEY)).truncation
    finally:
        bench.world.clock.ms -= ahead_ms


@pytest.mark.parametrize("ahead_ms", [DAY_MS, 30 * DAY_MS, YEAR_MS])
async def test_by_time_one_round_by_a_clock_that_is_ahead_deletes_nothing(bench: Bench, ahead_ms: int) -> None:
    await bench.begin(by_time(12 * PERIOD_MS))
    await rounds_by_a_right_clock(bench)
    before = bench.record()
    await bench.append(10)
    assert await apply_ahead(bench, ahead_ms) is None
    assert await bench.head() == {0: 0}
    after = bench.record()
    assert (after.recorded, after.applied_ms) == (before.recorded, before.applied_ms), "its time is used for nothing"
    await rounds_by_a_right_clock(bench, 8)
    assert await bench.head() == {0: 20}, "rounds by a right clock go on without a pause"
    assert max(each.recorded_ms for each in bench.record().recorded) == bench.world.clock.ms


async def test_by_time_subscribers_do_not_lose_unread_data_by_a_clock_that_is_ahead(bench: Bench) -> None:
    await bench.begin(by_time(6 * PERIOD_MS, 12 * PERIOD_MS))
    await bench.subscribe()
    await rounds_by_a_right_clock(bench)
    await bench.publish({0: 15})
    assert await apply_ahead(bench, DAY_MS) is None
    assert await bench.head() == {0: 0}


async def test_requests_of_a_controller_whose_clock_is_ahead_delete_nothing_beside_rounds(bench: Bench) -> None:
    """Updates of the policy are applied by the controller that took the call, rounds by the owner of the bucket."""
    await bench.begin(by_time(12 * PERIOD_MS))
    for count in range(1, 30):
        await bench.append(10)
        await bench.apply()
        for _ in range(3):
            assert await apply_ahead(bench, 10 * DAY_MS) is None
            assert await apply_ahead(bench, -10 * DAY_MS) is None
        assert await bench.head() == {0: max(0, 10 * (count - 12))}


async def test_a_controller_that_was_down_for_days_waits_one_more_period(bench: Bench) -> None:
    await bench.begin(by_time(3 * PERIOD_MS))
    await rounds_by_a_right_clock(bench)
    await bench.append(10)
    bench.world.clock.ms += 10 * DAY_MS
    assert await bench.apply() is None
    assert bench.applied.clock_lapse_ms == 10 * DAY_MS + PERIOD_MS
    assert bench.record().applied_ms < bench.world.clock.ms, "the status shows that the policy waits"
    assert (await bench.apply()).freed_bytes == 30
    assert bench.applied.clock_lapse_ms == 0
    assert await bench.head() == {0: 60}
    record = bench.record()
    assert (record.applied_ms, record.seen_ms) == (bench.world.clock.ms, 0)
    assert record.recorded[-1].recorded_ms == bench.world.clock.ms, "what came meanwhile counts as new"


@pytest.mark.parametrize("pause_ms", [0, PERIOD_MS // 2])
async def test_a_repetition_soon_afterwards_confirms_no_time(bench: Bench, pause_ms: int) -> None:
    await bench.begin(by_time(3 * PERIOD_MS))
    await rounds_by_a_right_clock(bench)
    bench.world.clock.ms += DAY_MS
    for _ in range(3):
        bench.world.clock.ms += pause_ms // 3
        assert (await bench.api.controller.services.core.retention.apply(KEY)).truncation is None
    assert await bench.head() == {0: 30}


async def test_a_clock_that_is_ahead_stops_no_retention_by_size(bench: Bench) -> None:
    await bench.begin(by_size(25))
    await rounds_by_a_right_clock(bench)
    await bench.update(by_size(15))
    made = await apply_ahead(bench, DAY_MS)
    assert made is not None
    assert await bench.head() == {0: 40}


async def test_a_clock_that_was_ahead_for_long_is_given_up_a_period_after_it_is_right(bench: Bench) -> None:
    await bench.begin(by_time(12 * PERIOD_MS))
    await rounds_by_a_right_clock(bench, 3)
    bench.world.clock.ms += DAY_MS
    await bench.apply()
    await bench.apply()
    assert bench.record().applied_ms == bench.world.clock.ms, "the same clock a period later is believed"
    bench.world.clock.ms -= DAY_MS
    await bench.apply()
    assert bench.record().applied_ms > bench.world.clock.ms
    await bench.apply()
    assert bench.record().applied_ms == bench.world.clock.ms


async def test_rounds_that_fail_for_days_do_not_put_the_next_one_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.begin(by_time(3 * PERIOD_MS))
    await rounds_by_a_right_clock(bench, 5)

    async def refused(*_: Any) -> None:
        raise BadRequestError("planted")

    refusals = 0
    with monkeypatch.context() as patch:
        patch.setattr(bench.api.controller.services.core.streams, "check_truncation", refused)
        for _ in range(100):
            await bench.append(10)
            try:
                await bench.apply()
            except BadRequestError:
                refusals += 1
    assert refusals == 99, "one round waits; those that follow agree with each other"
    await bench.append(10)
    assert await bench.apply() is not None
    assert await bench.head() == {0: 1030}
