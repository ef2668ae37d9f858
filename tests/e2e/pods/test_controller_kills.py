"""Three live controllers, killed one after the other under work of all kinds: nothing is lost, and nothing stays."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from harness.controllerchurn import Churn, pending
from harness.pods import Pods, until
from tailrace.client import Client, StreamName

SCOPE = "churn"
STREAMS = 6
CONTROLLERS = 3
KILLS = {"ci": 6, "full": 500}
ALIVE_S = 1.0
"""Up to how long all controllers serve between two kills."""
ENDED_WITHIN_S = 300.0
"""A generous deadline; how long it took is printed."""


KINDS = 6
"""Kinds of work, each of which must have succeeded for every stream before the end is checked."""


@pytest.mark.timeout(5400)
async def test_nothing_is_stuck_after_many_kills(pods: Pods, test_profile: str, test_seed: int) -> None:
    await pods.start(controllers=CONTROLLERS)
    chance = random.Random(test_seed)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(pods.address_of(each))) for each in pods.controllers]
        await clients[0].streams.create_scope(SCOPE)
        names = [StreamName(SCOPE, f"s{number}") for number in range(STREAMS)]
        works = [Churn(clients, name, random.Random(chance.random())) for name in names]
        async with working(works) as tasks:
            await kill_controllers(pods, chance, KILLS[test_profile], tasks)

            def is_done() -> bool:
                for task in tasks:
                    if task.done():
                        task.result()  # raises what ended it
                return all(len(work.counts) == KINDS for work in works)

            await until("work of every kind was done", is_done, ENDED_WITHIN_S)
        for work in works:
            await work.check()
            await work.remove()
        took_s = await until("no controller has listed work", lambda: nothing_pending(pods), ENDED_WITHIN_S)
        await clients[0].streams.delete_scope(SCOPE)
    counts = sum((Counter(work.counts) for work in works), Counter())
    unknown = sum(work.unknown for work in works)
    print(f"{KILLS[test_profile]} kills, {dict(counts)}, {unknown} calls of unknown outcome")
    print(f"nothing was pending {took_s:.1f} s after the last stream was deleted")


@asynccontextmanager
async def working(works: Sequence[Churn]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Work while the block runs; fails when work fails."""
    tasks = [asyncio.ensure_future(work.run()) for work in works]
    try:
        yield tasks
    finally:
        for work in works:
            work.stopped = True
        await asyncio.wait(tasks, timeout=ENDED_WITHIN_S)
        for task in tasks:
            task.cancel()  # one that has ended already is not
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        assert end is None, repr(end)


async def kill_controllers(pods: Pods, chance: random.Random, kills: int, tasks: list[asyncio.Task[None]]) -> None:
    """Kill any controller, and start it again, so many times; the others live."""
    for number in range(1, kills + 1):
        victim = chance.choice(pods.controllers)
        await asyncio.sleep(chance.uniform(0.0, ALIVE_S))
        await victim.kill()
        await victim.start()
        await victim.wait_ready()
        if any(task.done() for task in tasks):
            return
        if number % 10 == 0:
            print(f"{number} of {kills} kills")


async def nothing_pending(pods: Pods) -> bool:
    """Whether no controller has listed work."""
    return not await pending(pods)
