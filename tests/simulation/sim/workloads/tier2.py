"""The workload of a container whose owners do not die at once: paused, they go on later beside their successors.

Such a zombie flushes, compacts, sweeps and deletes until it finds out that its log has a later owner. Some clients
write so slowly that every append becomes a chunk of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from sim.checks.fencing import disturb
from sim.process import SimProcess
from sim.violations import require
from sim.workloads.objectcontainer import ObjectContainerWorkload
from sim.workloads.segment_model import Outcome, SoleClient, State
from tailrace.common import limits
from tailrace.common.errors import DataError, UnavailableError
from tailrace.segmentstore.container.container import Container

PAUSE_MAX_S = 150.0


class SlowClient(SoleClient):
    """Does now and then what a SoleClient does; what it owns is truncated, merged and deleted between two flushes."""

    def __init__(self, number: int, rng: random.Random) -> None:
        super().__init__(number, rng)
        self.pause_max_s = rng.choice([0.1, 0.5, 2.0])

    async def _one(self, container: Container) -> None:
        await asyncio.sleep(self.random.random() * self.pause_max_s)
        await super()._one(container)

    def _choose(self, container: Container, state: State) -> tuple[Callable[[], Awaitable[Any]], Outcome]:
        """More appends, more truncations, and nothing stays sealed for long."""
        name, kind = self.random.choice(self.names), self.random.random()
        segment = state.get(name)
        if segment is None or kind > 0.8:
            return super()._choose(container, state)
        if segment.sealed:
            del state[name]
            return (lambda: container.delete(name)), None
        return self._append(container, state, name) if kind < 0.6 else self._truncate(container, state, name)


class Tier2Workload(ObjectContainerWorkload):
    """See ContainerWorkload. Lives are long enough for sweeps, compactions and deletions."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.random
        self.zombies: list[SimProcess] = []
        self.owners: list[Container] = []
        self.processes: dict[SimProcess, Container] = {}
        self.zombie_chance = rng.choice([0.3, 0.8])
        self.idle_max_s = rng.choice([5.0, 60.0])
        self.asked_chance = 0.7
        """Of a zombie at each opening: clients that do not know better go on asking it."""
        self.work = rng.randint(5, 30)
        self.sole += [SlowClient(number, rng) for number in range(10, 10 + rng.randint(0, 2))]
        self.knobs |= {
            (limits, "DELETE_DELAY_S"): rng.choice([10.0, 10.0, 120.0]),
            (limits, "FLUSH_INTERVAL_S"): rng.choice([0.05, 0.3]),
            (limits, "FLUSH_TICK_S"): rng.choice([0.02, 0.3]),
            (limits, "SNAPSHOT_FIRST_S"): rng.choice([1.0, 30.0]),
            (limits, "SNAPSHOT_INTERVAL_S"): rng.choice([2.0, 60.0]),
        }

    async def _incarnation(self) -> None:
        rng = self.random
        process = self.world.process("store")
        work = process.spawn(self._serve(process))
        waiting: set[asyncio.Future[None]] = {work}
        if rng.random() < 0.4:
            waiting.add(self._crash_point(process, int(rng.random() ** 2 * 800), False))
        await asyncio.wait(waiting, timeout=rng.random() ** 2 * 60, return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            await asyncio.wait(waiting - {work})
            return
        if work.done():
            work.result()
        if rng.random() >= self.zombie_chance:
            self.world.crash(process)
            return
        work.cancel()  # its clients go elsewhere; what they asked for it may still do
        await asyncio.wait([work])
        if rng.random() < 0.8:
            self.world.pause(process, rng.random() ** 2 * PAUSE_MAX_S)
        self.zombies.append(process)

    async def _serve(self, process: SimProcess) -> None:
        try:
            container = await self._open(process)
        except UnavailableError:
            return  # the store failed, or a later owner came before its turn
        await self._drive(container)
        await asyncio.sleep(self.random.random() * self.idle_max_s)

    async def _open(self, process: SimProcess) -> Container:
        container = await super()._open(process)
        for zombie in self.zombies:
            if zombie.alive and zombie in self.processes and self.random.random() < self.asked_chance:
                zombie.spawn(disturb(self.processes[zombie], self.random))
        self.processes[process] = container
        self.owners.append(container)
        return container

    async def _calm(self, process: SimProcess) -> None:
        await super()._calm(process)
        for owner in self.owners:
            cause = owner.core.stop_cause
            require(not isinstance(cause, DataError), f"epoch {owner.epoch} takes what others did for damage: {cause}")
        zombies, self.zombies = self.zombies, []
        for zombie in zombies:
            if zombie.alive:
                self.world.crash(zombie)
