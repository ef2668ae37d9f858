"""Recoveries that die at each of their disk operations or store requests: the next one comes to the same (I16).

The owners before it left whatever crashes leave: flushes and checkpoints under way, operations cut off.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sim.checks.copies import copied
from sim.checks.monotonic import Monotonic
from sim.checks.tiers import Contents, check_same_contents, contents
from sim.checks.undamaged import undamaged
from sim.knobs import silent_logs, turned
from sim.process import SimProcess
from sim.violations import require
from sim.workloads.container import ContainerWorkload
from sim.workloads.objectcontainer import ObjectContainerWorkload
from sim.workloads.replay import check_same_state
from sim.world import SimWorld
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.state import ContainerState

OPERATIONS_MAX = 3000
HISTORY = 3
"""Owners that died before the recovery that is looked at."""


class RecoverySweep:
    """One seed: a history, and recoveries of copies of what it left; so many die, each at another operation."""

    def __init__(self, seed: int, deaths_max: int = 12) -> None:
        self.random = random.Random(f"{seed}-recovery-sweep")
        self.workload = self.random.choice([ContainerWorkload, ObjectContainerWorkload])(seed)
        self.world = self.workload.world
        self._deaths_max = deaths_max
        self.steps = 0
        """Recoveries that died."""

    def run(self) -> None:
        """Raises Violation."""
        with silent_logs(), turned(self.workload.knobs), self.world as world:
            world.run(self._main())

    async def _main(self) -> None:
        workload = self.workload
        for _ in range(HISTORY):
            await workload._incarnation()
        before = workload._last
        workload.watch.ended()
        await asyncio.sleep(10)  # what is under way arrives
        world = copied(workload.world)
        wanted = await self._recover(world, workload.epoch + 1)
        step = 1 + (world.disk.operations + world.store.operations) // self._deaths_max
        for operations in range(self.random.randrange(step), OPERATIONS_MAX, step):
            world = copied(workload.world, operations)
            if not await self._dies_at(world, operations):
                break
            self.steps += 1
            if self.random.random() < 0.3:  # and the one after it, too
                await self._dies_at(world, self.random.randint(0, operations), workload.epoch + 2)
            power = self.random.random() < 0.5
            if power:
                world.disk.cut_power()
            found = await self._recover(world, workload.epoch + 3)
            self._compare(before, wanted, found, exactly=not power)
        else:
            require(False, "the sweep ends before the recovery does")

    def _compare(
        self,
        before: Container | None,
        wanted: tuple[ContainerState, Contents],
        found: tuple[ContainerState, Contents],
        *,
        exactly: bool,
    ) -> None:
        if exactly:
            check_same_state(wanted[0], found[0], "the recovery after a recovery that died")
            check_same_contents(wanted[1], found[1], "the recovery after a recovery that died")
        elif before is not None:  # what was not acknowledged may be lost with the power
            shown = Monotonic()
            shown.look(before.state)
            shown.look(found[0])

    async def _dies_at(self, world: SimWorld, operations: int, epoch: int = 0) -> bool:
        """Whether a recovery came to its n-th operation."""
        process = world.process("dies")
        if isinstance(self.workload, ObjectContainerWorkload):
            dead = world.crash_at_store_request(process, operations)
        else:
            dead = world.crash_at_disk_operation(process, operations, power=False)
        starting = process.spawn(self._start(world, process, epoch or self.workload.epoch + 1))
        ends: set[asyncio.Future[Any]] = {starting, dead}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            await dead
            return True
        starting.result()
        world.crash(process)
        return False

    async def _recover(self, world: SimWorld, epoch: int) -> tuple[ContainerState, Contents]:
        """The state right after a recovery, and what readers get."""
        process = world.process("recovers")
        reading = process.spawn(self._start_and_read(world, process, epoch))
        await asyncio.wait([reading])
        world.crash(process)
        return reading.result()

    async def _start(self, world: SimWorld, process: SimProcess, epoch: int) -> Container:
        there, self.workload.world = self.workload.world, world
        try:
            container = self.workload.make_container(process, epoch)
        finally:
            self.workload.world = there
        with undamaged("a recovery after others died"):
            await container.start(self.random.randbytes(16))
        return container

    async def _start_and_read(
        self, world: SimWorld, process: SimProcess, epoch: int
    ) -> tuple[ContainerState, Contents]:
        container = await self._start(world, process, epoch)
        for task in container.core.tasks:
            task.cancel()  # it flushes, deletes and sweeps nothing: the state stays as recovery left it
        return container.state, await contents(container)
