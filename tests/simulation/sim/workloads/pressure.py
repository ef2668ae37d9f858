"""A segment container with too little memory: a small cache, few attributes and index pages in memory, a slow Tier 2.

What is evicted, throttled, held on to and read again all the time is rare in the other workloads.
"""

from __future__ import annotations

import asyncio
import enum
import random
from typing import Any

from sim.process import SimProcess
from sim.workloads.attributeclient import AttributeClient
from sim.workloads.container import ContainerWorkload
from sim.workloads.pressureclients import HoldingReader, LargeEvents
from sim.workloads.segment_model import SoleClient
from tailrace.common import limits
from tailrace.segmentstore.attributes import attribute_store
from tailrace.segmentstore.container import operation_processor
from tailrace.segmentstore.container.container import Container
from tailrace.storage.port import ObjectStore

CACHE_BYTES = 2 * limits.MIB


class Shortage(enum.Enum):
    """What a seed is short of."""

    MEMORY = "everything is small"
    ROOM = "more bytes than the cache holds come while Tier 2 is away"
    FRAMES = "operations take several frames, and owners die between those"
    ATTRIBUTES = "attributes come and go, and reading them takes long"


class SlowReads:
    """An object store that sometimes takes long to answer reads, whatever it does with writes."""

    def __init__(self, store: ObjectStore, rng: random.Random) -> None:
        self._store = store
        self._random = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        if self._random.random() < 0.2:
            await asyncio.sleep(self._random.random())
        return await self._store.get_range(key, offset, length)


class PressureWorkload(ContainerWorkload):
    """See ContainerWorkload; every seed is short of something else."""

    cache_sizes = (CACHE_BYTES,)
    calm_deadline_s = 600.0

    def __init__(self, seed: int, shortage: Shortage | None = None) -> None:
        super().__init__(seed)
        rng = self.random = random.Random(f"{seed}-pressure-workload")
        self.streams = []
        self.work = rng.randint(5, 40)
        self.shortage = shortage or rng.choice(list(Shortage))
        self.crowded = self.shortage is Shortage.ROOM
        self.inside_operations = self.shortage is Shortage.FRAMES
        self.thrifty = self.shortage is Shortage.ATTRIBUTES
        self.cut_after_return_chance = rng.choice([0.0, 0.3])
        self._owner: SimProcess | None = None
        self._dying: asyncio.Future[None] | None = None
        bulk = 800_000 if self.crowded else 1_000 if self.inside_operations else rng.choice([30_000, 300_000])
        self.sole = [SoleClient(number, rng, bulk) for number in range(rng.randint(1, 3))]
        self.large = [LargeEvents(number, rng, self._came_back) for number in range(rng.randint(0, 2))]
        pace_s = rng.choice([0.0, 0.1])
        self.heavy = [
            AttributeClient(number, rng, rng.choice([20, 150]), pace_s) for number in range(rng.randint(0, 2))
        ]
        names = [name for client in self.sole for name in client.names] + [each.name for each in self.large]
        self.readers = [HoldingReader(names, rng) for _ in range(rng.randint(0, 3))]
        self.world.store.slow_chance = rng.choice([0.02, 0.3])
        self.world.store.slow_max_s = rng.choice([0.5, 2.0])
        self.world.disk.slow_sync_chance = rng.choice([0.02, 0.3])
        self.outages = self.crowded or rng.random() < 0.4
        if self.outages:
            self.store_failure_chance = max(self.store_failure_chance, 0.05)
        self.knobs |= {
            (limits, "FLUSH_THRESHOLD_BYTES"): rng.choice([3_000, 100_000, 1_000_000]),
            (limits, "FLUSH_INTERVAL_S"): rng.choice([0.1, 1.0]),
            (limits, "FLUSH_TICK_S"): rng.choice([0.02, 0.1]),
            (limits, "FLUSH_ATTRIBUTES_THRESHOLD"): rng.choice([2, 20]),
            (limits, "FLUSH_ATTRIBUTES_AGED_THRESHOLD"): 1,
            (limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX"): rng.choice([1, 5, 50]),
            (limits, "ATTRIBUTE_PAGE_MAX_BYTES"): rng.choice([600, 2_000, 32 * limits.KIB - 1]),
            (attribute_store, "_PAGES_MAX_BYTES"): rng.choice([2_000, 100_000]),
            (limits, "DELETE_DELAY_S"): rng.choice([10.0, 30.0]),
            (limits, "STORAGE_READ_ALIGNMENT_BYTES"): rng.choice([8_192, 100_000, limits.MIB]),
            (limits, "CACHE_ENTRY_MAX_BYTES"): rng.choice([8_192, 50_000, 256 * limits.KIB]),
            (limits, "ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES"): rng.choice([50_000, 1_000_000]),
            (limits, "STORAGE_RETRY_MAX_S"): 1.0,
        }
        if self.inside_operations:
            self.knobs |= {
                (operation_processor, "_ARENA_BYTES"): 1024,
                (limits, "CHECKPOINT_INTERVAL_OPERATIONS"): 10,
                (limits, "FLUSH_ATTRIBUTES_THRESHOLD"): 1000,
                (limits, "FLUSH_ATTRIBUTES_AGED_THRESHOLD"): 1000,
            }
        if self.thrifty:
            self._be_thrifty(rng)

    def _be_thrifty(self, rng: random.Random) -> None:
        """No attribute stays in memory, index pages hardly ever, and reading them takes long."""
        self.heavy = [AttributeClient(0, rng, rng.choice([6, 12, 40]), 0.05, appends=False)]
        self.sole, self.large, self.readers = [], [], []
        self.work = rng.randint(100, 300)
        self.outages = False
        self.world.disk.slow_sync_chance = 0.02
        self.knobs |= {
            (limits, "FLUSH_TICK_S"): 0.02,
            (limits, "FLUSH_ATTRIBUTES_THRESHOLD"): 2,
            (limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX"): 1,
            (limits, "ATTRIBUTE_PAGE_MAX_BYTES"): 600,
            (attribute_store, "_PAGES_MAX_BYTES"): 0,
        }

    @property
    def steps(self) -> int:
        """Operations that clients did."""
        clients: list[LargeEvents | AttributeClient | HoldingReader] = [*self.large, *self.heavy, *self.readers]
        return super().steps + sum(client.steps for client in clients)

    def _store(self, process: SimProcess) -> ObjectStore:
        store = super()._store(process)
        return SlowReads(store, self.random) if self.thrifty else store

    async def _incarnation(self) -> None:
        self._dying = None
        await super()._incarnation()

    def _crash_point(self, process: SimProcess, operations: int, power: bool) -> asyncio.Future[None]:
        self._dying = super()._crash_point(process, operations * (5 if self.thrifty else 1), power)
        return self._dying

    def _came_back(self) -> None:
        """A client went away and got the length: the power may fail at once."""
        process = self._owner
        if process is not None and self.random.random() < self.cut_after_return_chance:
            self.world.loop.call_world(self.random.random() * 0.01, self._cut_power, process)

    def _cut_power(self, process: SimProcess) -> None:
        if not process.alive or not process.name.startswith("store"):
            return
        self.world.crash(process, power=True)
        if self._dying is not None and not self._dying.done():
            self._dying.set_result(None)

    async def _open(self, process: SimProcess) -> Container:
        container = await super()._open(process)
        self._owner = process
        if self.inside_operations:
            self.world.spawn(self._die_inside_an_operation(process, container))
        return container

    async def _die_inside_an_operation(self, process: SimProcess, container: Container) -> None:
        """Kill the owner at some moment when the log ends within an operation."""
        left = self.random.randint(0, 2)
        while process.alive and process.name.startswith("store"):
            last = container.core.committer.last_frame
            if last is not None and last.keep_from <= last.sequence:
                if not left:
                    self._cut_power(process)
                    return
                left -= 1
            await asyncio.sleep(0.0005)

    def _clients(self, container: Container) -> list[asyncio.Task[None]]:
        tasks = super()._clients(container)
        tasks += [asyncio.create_task(client.live(container, self.work // 2)) for client in self.large]
        tasks += [asyncio.create_task(client.live(container, self.work)) for client in self.heavy]
        return tasks

    async def _drive(self, container: Container) -> None:
        background = [asyncio.create_task(reader.live(container)) for reader in self.readers]
        background.append(asyncio.create_task(self._trouble()))
        try:
            await super()._drive(container)
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.random() * 40)  # objects without references are deleted
        finally:
            for task in background:
                task.cancel()
            for result in await asyncio.gather(*background, return_exceptions=True):
                if not isinstance(result, asyncio.CancelledError):
                    self._judge(result)

    async def _drive_calmly(self, container: Container) -> None:
        await super()._drive_calmly(container)
        clients: list[LargeEvents | AttributeClient] = [*self.large, *self.heavy]
        for client in clients:
            await client.live(container, 3)

    async def _check_clients(self, container: Container) -> None:
        await super()._check_clients(container)
        for large in self.large:
            await large.check(container)
        for heavy in self.heavy:
            await heavy.reconcile(container)

    async def _trouble(self) -> None:
        """Tier 2 does not answer for a while."""
        while self.outages:
            if not self.crowded:
                await asyncio.sleep(self.random.random() * 2)
            self.world.store.failure_chance = 1.0
            await asyncio.sleep(self.random.random() * (10 if self.crowded else 2))
            self._faults(on=True)
            await asyncio.sleep(self.random.random() * 2)
