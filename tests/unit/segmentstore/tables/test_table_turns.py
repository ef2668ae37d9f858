"""The lock of a table: order, one turn of the loop for all that wait, sections that wait, cancellation."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tailrace.common import limits
from tailrace.segmentstore.tables.turns import Turns

DEADLINE_S = 120.0


class Scene:
    """Sections by number; those in ``slow`` wait that many turns of the loop inside."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.done: list[int] = []
        self.inside = 0
        self.slow: dict[int, int] = {}
        self.loop_turns = 0
        self.done_in: Counter[int] = Counter()

    async def section(self, number: int) -> None:
        async with self.turns:
            self.inside += 1
            assert self.inside == 1
            try:
                for _ in range(self.slow.get(number, 0)):
                    await asyncio.sleep(0)
            finally:
                self.inside -= 1
            self.done.append(number)
            self.done_in[self.loop_turns] += 1

    async def count_turns(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.loop_turns += 1


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def run(scene: Scene, count: int) -> None:
    counting = asyncio.create_task(scene.count_turns())
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(scene.section(number) for number in range(count)))
    counting.cancel()
    await asyncio.wait([counting])


async def test_what_waits_follows_within_a_few_turns(scene: Scene) -> None:
    count = 2 * limits.TABLE_TURNS_MAX
    scene.slow = {0: 3}
    await run(scene, count)
    assert scene.done == list(range(count))
    assert len(scene.done_in) <= 12, "batches of 1, 2, 4, ..."
    assert max(scene.done_in.values()) <= limits.TABLE_TURNS_MAX + 1
    assert not scene.turns.locked()


@pytest.mark.parametrize("seed", range(20))
async def test_sections_that_wait_keep_the_order(scene: Scene, seed: int) -> None:
    source = random.Random(seed)
    scene.slow = {number: source.randrange(1, 4) for number in range(120) if source.random() < 0.3}
    await run(scene, 120)
    assert scene.done == list(range(120))
    assert not scene.turns.locked()


@pytest.mark.parametrize("seed", range(40))
async def test_a_cancelled_one_delays_no_other(scene: Scene, seed: int) -> None:
    source = random.Random(seed)
    scene.slow = {number: source.randrange(1, 4) for number in range(60) if source.random() < 0.3}
    scene.slow[0] = 2
    tasks = [asyncio.create_task(scene.section(number)) for number in range(60)]
    for _ in range(12):
        for task in source.sample(tasks, 3):
            task.cancel()
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(scene.section(len(tasks))))
    async with asyncio.timeout(DEADLINE_S):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert scene.done == [number for number, outcome in enumerate(outcomes) if outcome is None]
    assert not scene.turns.locked()


async def test_a_free_one_is_entered_without_a_turn_of_the_loop(scene: Scene) -> None:
    for number in range(3):
        section = scene.section(number)
        with pytest.raises(StopIteration):
            section.send(None)
    assert scene.done == [0, 1, 2]


async def test_a_failed_section_frees_the_next(scene: Scene) -> None:
    with pytest.raises(ValueError, match="wrong"):
        async with scene.turns:
            raise ValueError("wrong")
    assert not scene.turns.locked()
