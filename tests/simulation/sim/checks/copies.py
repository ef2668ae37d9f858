"""A second world with the same disk and objects, in which something may be tried that the first one never sees."""

from __future__ import annotations

import copy

from sim.disk import SimDisk
from sim.store import SimObjectStore
from sim.world import SimWorld


def copied(world: SimWorld, seed: int = 0) -> SimWorld:
    """The world's disk and objects as programs see them now, without faults; loop and processes are shared."""
    twin = copy.copy(world)
    twin.disk = SimDisk(world.loop, seed, world.disk.capacity_bytes)
    twin.disk.directories = copy.deepcopy(world.disk.directories)
    twin.store = SimObjectStore(world.loop, seed)
    twin.store.objects = dict(world.store.objects)
    return twin
