"""Five minutes after truncations Tier 2 holds little more than what is retained (docs/design.md#reclamation).

With the product's own limits, in virtual time. A real container writes to a simulated store, whose bytes are counted.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from sim.knobs import silent_logs
from sim.process import SimProcess
from sim.world import SimWorld
from tailrace.common import limits
from tailrace.common.limits import KIB, MIB
from tailrace.kernel import BlockCache
from tailrace.log.file import FileLog
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts

DEADLINE_S = 300.0
SLACK_BYTES = 8 * MIB
"""Of one container: 64 MiB for a cluster with 8, 128 MiB for one with 16."""


class Truncated:
    """Small segments that share objects and large ones with chunks of their own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"{seed}-reclaimed")
        self.world = SimWorld(seed)
        self.epoch = 0

    async def open(self, process: SimProcess) -> Container:
        self.epoch += 1
        entropy = self.world.entropy(process.name)
        ports = ContainerPorts(
            log=FileLog(
                self.world.disk.attach(process), "/log", 1, file_bytes=4 * MIB, max_frame_bytes=MIB, reserve_bytes=0
            ),
            store=self.world.store.attach(process),
            cache=CacheManager(BlockCache(64 * MIB)),
            clock=self.world.clock(),
            entropy=entropy,
            cluster_id=bytes(16),
        )
        container = Container(1, self.epoch, ports)
        await container.start(entropy.token(16))
        return container

    async def fill(self, container: Container) -> None:
        """30 MiB in 400 segments, 3 flushes, and 24 MiB in three others."""
        for number in range(400):
            await container.create_segment(f"scope/small/{number}.#epoch.0")
        for number in range(3):
            await container.create_segment(f"scope/large/{number}.#epoch.0")
        for _ in range(3):
            for number in range(400):
                await container.append(f"scope/small/{number}.#epoch.0", [bytes(25 * KIB)])
            await asyncio.sleep(limits.FLUSH_INTERVAL_S + 5)
        for number in range(3):
            for _ in range(8):
                await container.append(f"scope/large/{number}.#epoch.0", [bytes(MIB)])
        await asyncio.sleep(limits.FLUSH_INTERVAL_S + 5)

    async def truncate(self, container: Container, share: float) -> int:
        """Truncate a random part of the segments, some within a chunk; return the bytes that are retained."""
        for segment in list(container.state.segments.values()):
            if self.random.random() < share:
                cut = self.random.choice([segment.length, segment.length, segment.length - 1, segment.length // 2])
                await container.truncate(segment.name, cut)
        return sum(segment.length - segment.start_offset for segment in container.state.segments.values())

    def held_bytes(self) -> int:
        """Everything in Tier 2."""
        return sum(len(data) for data in self.world.store.objects.values())


async def _truncated_once(world: Truncated, share: float, *, dies: bool) -> tuple[int, int, int]:
    """Return the bytes held before and five minutes after truncations, and the bytes retained."""
    process = world.world.process("owner")
    container = await process.spawn(world.open(process))
    await process.spawn(world.fill(container))
    before = world.held_bytes()
    retained = await process.spawn(world.truncate(container, share))
    if dies:
        await asyncio.sleep(world.random.random() * 10)
        world.world.crash(process)
        successor = world.world.process("successor")
        await asyncio.sleep(5.0)
        await successor.spawn(world.open(successor))
        await asyncio.sleep(DEADLINE_S - 15.0)
    else:
        await asyncio.sleep(DEADLINE_S)
    return before, world.held_bytes(), retained


@pytest.mark.parametrize("dies", [False, True], ids=["one owner", "owner dies"])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_five_minutes_after_truncations(share: float, dies: bool, test_seed: int) -> None:
    """Of the objects that small segments share, most hold a survivor: without reclamation hardly any would go."""
    with silent_logs():
        world = Truncated(test_seed)
        with world.world:
            before, held, retained = world.world.run(_truncated_once(world, share, dies=dies))
    assert before > 50 * MIB
    assert held <= 1.2 * retained + SLACK_BYTES
