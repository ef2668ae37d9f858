"""An owner dies at its n-th request to the store, for every n, while it sweeps, compacts, reclaims and deletes.

See docs/design.md#tier-2.
"""

from __future__ import annotations

import asyncio

import pytest

from sim.checks.tidy import come_to_order
from sim.knobs import silent_logs, turned
from sim.process import SimProcess
from sim.world import SimWorld
from tailrace.common import limits
from tailrace.kernel import BlockCache
from tailrace.log.object import ObjectLog
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts

REQUESTS_MAX = 260
LONG, SHORT, PART = (f"scope/{name}/0.#epoch.0" for name in ("long", "short", "part"))
KNOBS = {
    (limits, "DELETE_DELAY_S"): 10.0,
    (limits, "FLUSH_INTERVAL_S"): 0.05,
    (limits, "FLUSH_TICK_S"): 0.05,
    (limits, "SNAPSHOT_FIRST_S"): 3.0,
    (limits, "SNAPSHOT_INTERVAL_S"): 3.0,
    (limits, "SWEEP_FIRST_AFTER_S"): 0.5,
    (limits, "SWEEP_INTERVAL_S"): 1.0,
    (limits, "COMPACT_TICK_S"): 0.2,
    (limits, "COMPACT_RUN_MIN"): 2,
    (limits, "COMPACT_GROWTH_MIN"): 2,
    (limits, "COMPACT_RUN_FORCED"): 4,
    (limits, "RECLAIM_FIRST_AFTER_S"): 0.5,
    (limits, "RECLAIM_TICK_S"): 0.2,
    (limits, "RECLAIM_SLACK_BYTES"): 0,
    (limits, "RECLAIM_DEAD_MIN_BYTES"): 1,
}


class Scene:
    """Two segments written in small pieces, truncations and merges; what readers must find is in ``content``."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.content: dict[str, bytes] = {}
        self.doubt: tuple[str, bytes | None] | None = None

    async def open(self, process: SimProcess, epoch: int) -> Container:
        """The next owner."""
        entropy = self.world.entropy(process.name)
        store = self.world.store.attach(process)
        cache = CacheManager(BlockCache(4 * limits.MIB))
        log = ObjectLog(store, 1)
        ports = ContainerPorts(
            log=log, store=store, cache=cache, clock=self.world.clock(), entropy=entropy, cluster_id=bytes(16)
        )
        container = Container(1, epoch, ports)
        await container.start(entropy.token(16))
        return container

    async def live(self, process: SimProcess, epoch: int, pieces: int) -> None:
        """Write, truncate, merge and delete, slowly enough for everything in the background; then wait for that."""
        container = await self.open(process, epoch)
        await self.check(container)
        for name in (LONG, SHORT):
            if name not in container.state.by_name:
                self.content[name] = b""
                await container.create_segment(name)
        for number in range(pieces):
            for name in (LONG, SHORT):
                await self.append(container, name, bytes([epoch * 16 + number]) * (50 + number))
            await asyncio.sleep(0.3)
            if number % 4 == 1:
                await self.merge(container, bytes([number]) * 30)
        await container.truncate(SHORT, len(self.content[SHORT]) // 2)
        await asyncio.sleep(20)
        await container.close()

    async def append(self, container: Container, name: str, data: bytes) -> None:
        self.doubt = name, data
        await container.append(name, [data])
        self.content[name] += data
        self.doubt = None

    async def merge(self, container: Container, data: bytes) -> None:
        """A transaction; what a dead owner left of one goes first."""
        if PART in container.state.by_name:
            await container.delete(PART)
        await container.create_segment(PART)
        await container.append(PART, [data])
        await asyncio.sleep(0.2)
        self.doubt = LONG, data
        await container.merge(LONG, PART)
        self.content[LONG] += data
        self.doubt = None

    async def check(self, container: Container) -> None:
        """Everything that was acknowledged is there, and at most what was in doubt besides."""
        for name, wanted in sorted(self.content.items()):
            if name not in container.state.by_name:
                assert not wanted, name
                continue
            properties = await container.info(name)
            start = properties.start_offset
            found = await container.read_exact(name, start, properties.length - start)
            possible = [wanted]
            if self.doubt is not None and self.doubt[0] == name:
                possible.append(wanted + (self.doubt[1] or b""))
            assert found in [whole[start:] for whole in possible], name
            self.content[name] = bytes(start) + found
        self.doubt = None

    async def end(self, process: SimProcess, epoch: int) -> None:
        """An owner that nothing happens to: everything comes to order, and is there when it is read from Tier 2."""
        container = await self.open(process, epoch)
        await self.check(container)
        await container.flush_to_storage()
        await come_to_order(container, self.world.store)
        for segment in container.state.segments.values():
            container.core.cache.drop_all(segment.read_index)
        await self.check(container)
        await container.close()


async def _dies_at(world: SimWorld, request: int) -> bool:
    """Whether the second owner came to its n-th request."""
    scene = Scene(world)
    first = world.process("first")
    cut_short = first.spawn(scene.live(first, 2, 6))
    await asyncio.wait([cut_short, world.crash_at_store_request(first, 60)], return_when=asyncio.FIRST_COMPLETED)
    process = world.process("dies")
    dead = world.crash_at_store_request(process, request)
    work = process.spawn(scene.live(process, 3, 8))
    await asyncio.wait({work, dead}, return_when=asyncio.FIRST_COMPLETED)
    if not dead.done() and process.alive:
        work.result()
    elif not dead.done():
        await dead
    last = world.process("last")
    await last.spawn(scene.end(last, 4))
    return dead.done()


@pytest.mark.timeout(3000)  # for a machine with other work
def test_death_at_every_request(test_profile: str, test_seed: int) -> None:
    step = 1 if test_profile == "full" else 6
    died = []
    for request in range(test_seed % step, REQUESTS_MAX, step):
        with silent_logs(), turned(KNOBS), SimWorld(test_seed + request) as world:
            died.append(world.run(_dies_at(world, request)))
    assert died[0]
    assert died.count(True) > len(died) // 2, "most of the requests are the owner's"
