"""What a container measures of its segments, at times that the test sets (docs/controller.md#automatic-scaling)."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, ContainerStoppedError
from tailrace.common.names import transaction_segment_name
from tailrace.segmentstore.api import (
    EVENT_COUNT,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    AttributeUpdate,
    AttributeUpdateType,
    MeasuredSegment,
)
from tailrace.segmentstore.container.container import Container

from ..conftest import World

WINDOWS_MS = (120_000, 300_000, 600_000, 1_200_000)
KBYTES, EVENTS = 1, 2
NAME = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"
TRANSACTION = NAME + "#transaction." + "0" * 31 + "1"


class Clock:
    """Wall-clock time that only the test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms


async def create(container: Container, name: str, kind: int, rate: int = 100) -> None:
    policy = [(SCALE_POLICY_TYPE, kind), (SCALE_POLICY_RATE, rate)]
    await container.create_segment(name, attributes=policy)


async def append(container: Container, name: str, data: bytes, events: int) -> None:
    await container.append(name, [data], [AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, events)])


def measured(container: Container, now_s: float) -> dict[str, MeasuredSegment]:
    container._rates._now_s = partial(float, now_s)
    found, has_more = container.measure_rates(WINDOWS_MS, -1)
    assert not has_more
    return {each.name: each for each in found}


async def test_events_and_kilobytes_are_measured_by_the_policy(world: World) -> None:
    container = await world.open()
    await create(container, NAME, EVENTS)
    await create(container, OTHER, KBYTES, 7)
    await create(container, "scope/fixed/0.#epoch.0", 0)
    assert set(measured(container, 100.0)) == {NAME, OTHER}
    for name in (NAME, OTHER):
        await append(container, name, b"x" * 10_240, 50)
    found = measured(container, 110.0)
    events, kbytes = found[NAME], found[OTHER]
    assert (events.scale_type, events.target_rate, events.age_s) == (EVENTS, 100, 10.0)
    assert list(events.rates) == pytest.approx([5.0] * 4)
    assert (kbytes.scale_type, kbytes.target_rate, kbytes.age_s) == (KBYTES, 7, 10.0)
    assert list(kbytes.rates) == pytest.approx([1.0] * 4)


async def test_what_was_there_before_the_first_question_does_not_count(world: World) -> None:
    container = await world.open()
    await create(container, NAME, EVENTS)
    await append(container, NAME, b"x", 1_000_000)
    assert list(measured(container, 0.0)[NAME].rates) == [0.0] * 4
    assert list(measured(container, 60.0)[NAME].rates) == [0.0] * 4


async def test_averages_begin_again_under_another_policy_and_a_sealed_segment_is_left_out(world: World) -> None:
    container = await world.open()
    await create(container, NAME, EVENTS)
    measured(container, 0.0)
    await append(container, NAME, b"x" * 2048, 60)
    assert measured(container, 60.0)[NAME].rates[0] == pytest.approx(1.0)
    await container.update_attributes(NAME, [AttributeUpdate(SCALE_POLICY_TYPE, AttributeUpdateType.REPLACE, KBYTES)])
    changed = measured(container, 120.0)[NAME]
    assert (changed.scale_type, changed.age_s, list(changed.rates)) == (KBYTES, 0.0, [0.0] * 4)
    await container.seal(NAME)
    assert measured(container, 180.0) == {}


@pytest.mark.parametrize("life_s", [4, 60, 1800])
async def test_transactions_show_the_rate_at_which_they_were_written(world: World, life_s: int) -> None:
    world.clock = clock = Clock()
    container = await world.open()
    await create(container, NAME, EVENTS)
    now_s = 0.0
    measured(container, now_s)
    for _ in range(3):
        await container.create_segment(TRANSACTION)
        await append(container, TRANSACTION, b"x" * 100, 10 * life_s)
        clock.ms += 1000 * life_s
        now_s += life_s
        container._rates._now_s = partial(float, now_s)
        await container.merge(NAME, TRANSACTION)
        if life_s < 5:
            now_s += 5 - life_s  # the next sample
            clock.ms += 1000 * (5 - life_s)
    found = measured(container, now_s)[NAME]
    assert list(found.rates) == pytest.approx([10.0 * life_s / max(life_s, 5)] * 4, rel=0.01)


async def test_a_reply_is_bounded_and_continued(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RATES_PER_REPLY_MAX", 2)
    container = await world.open()
    names = [f"scope/stream/{number}.#epoch.0" for number in range(5)]
    for name in names:
        await create(container, name, EVENTS)
    found, after, has_more = [], -1, True
    while has_more:
        page, has_more = container.measure_rates(WINDOWS_MS, after)
        assert 1 <= len(page) <= 2
        found += [each.name for each in page]
        after = page[-1].segment_id
    assert found == names


async def test_segments_of_transactions_are_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes count when they are merged; controllers make them with the policy of their stream."""
    monkeypatch.setattr(limits, "RATES_PER_REPLY_MAX", 2)
    container = await world.open()
    await create(container, NAME, EVENTS)
    for number in range(5):
        await create(container, transaction_segment_name(NAME, UUID(int=number)), EVENTS)
    await create(container, OTHER, EVENTS)
    assert set(measured(container, 0.0)) == {NAME, OTHER}


@pytest.mark.parametrize("windows_ms", [[], [5], [200, 100], [10] * 9])
async def test_other_windows_are_refused(world: World, windows_ms: list[int]) -> None:
    container = await world.open()
    with pytest.raises(BadRequestError, match="window"):
        container.measure_rates(windows_ms, -1)


async def test_a_container_that_stopped_measures_nothing(world: World) -> None:
    container = await world.open()
    await container.close()
    with pytest.raises(ContainerStoppedError):
        container.measure_rates(WINDOWS_MS, -1)
