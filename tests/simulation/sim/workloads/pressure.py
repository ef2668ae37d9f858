"""A segment container with too little memory: a small cache, few attributes and index pages in memory, a slow Tier 2.

What is evicted, throttled, held on to and read again all the time is rare in the other workloads.
"""

from __future__ import annotations

import asyncio
import random

from sim.workloads.attributeclient import AttributeClient
from sim.workloads.container import ContainerWorkload
from sim.workloads.pressureclients import HoldingReader, LargeEvents
from sim.workloads.segment_model import SoleClient
from tailrace.common import limits
from tailrace.segmentstore import attributestore
from tailrace.segmentstore.container import Container

CACHE_BYTES = 2 * limits.MIB


class PressureWorkload(ContainerWorkload):
    """See ContainerWorkload; every seed is short of something else."""

    cache_sizes = (CACHE_BYTES,)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.random = random.Random(f"{seed}-pressure-workload")
        self.streams = []
        self.work = rng.randint(5, 40)
        bulk = rng.choice([30_000, 300_000, 300_000])
        self.sole = [SoleClient(number, rng, bulk) for number in range(rng.randint(1, 3))]
        self.large = [LargeEvents(number, rng) for number in range(rng.randint(0, 2))]
        self.heavy = [AttributeClient(number, rng, rng.choice([20, 150])) for number in range(rng.randint(0, 2))]
        names = [name for client in self.sole for name in client.names] + [each.name for each in self.large]
        self.readers = [HoldingReader(names, rng) for _ in range(rng.randint(0, 3))]
        self.world.store.slow_chance = rng.choice([0.02, 0.3])
        self.world.store.slow_max_s = rng.choice([0.5, 2.0])
        self.outages = rng.random() < 0.5
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
            (attributestore, "_PAGES_MAX_BYTES"): rng.choice([2_000, 100_000]),
            (limits, "DELETE_DELAY_S"): rng.choice([10.0, 30.0]),
            (limits, "STORAGE_READ_ALIGNMENT_BYTES"): rng.choice([8_192, 100_000, limits.MIB]),
            (limits, "CACHE_ENTRY_MAX_BYTES"): rng.choice([8_192, 50_000, 256 * limits.KIB]),
            (limits, "ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES"): rng.choice([50_000, 1_000_000]),
            (limits, "STORAGE_RETRY_MAX_S"): 1.0,
        }

    @property
    def steps(self) -> int:
        """Operations that clients did."""
        return super().steps + sum(client.steps for client in [*self.large, *self.heavy, *self.readers])

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
                await asyncio.sleep(self.random.random() * 40)  # objects that nobody needs are deleted
        finally:
            for task in background:
                task.cancel()
            for result in await asyncio.gather(*background, return_exceptions=True):
                if not isinstance(result, asyncio.CancelledError):
                    self._judge(result)

    async def _drive_calmly(self, container: Container) -> None:
        await super()._drive_calmly(container)
        for client in [*self.large, *self.heavy]:
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
            await asyncio.sleep(self.random.random() * 2)
            self.world.store.failure_chance = 1.0
            await asyncio.sleep(self.random.random() * 2)
            self._faults(on=True)
