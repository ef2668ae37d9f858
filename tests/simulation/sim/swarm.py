"""Which faults of the world a seed has: each seed turns a random part of them off (docs/design.md#faults).

A workload names what there is to hurt. Faults by chance are on while the swarm is; episodes (outages, pauses,
partitions...) come one after the other from `trouble`. After `end` nothing is wrong any more, and nothing will be.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from sim.process import SimProcess
from sim.world import SimWorld

CALM_SEEDS = 0.2
"""The part of the seeds without any of these faults."""
CHOSEN = 0.35
"""The part of the others that has a certain fault."""
LONG_S = 60.0
"""Longer than any lease."""

Setting: TypeAlias = tuple[Any, str, float]
"""An attribute of a part of the world and its value."""


class Swarm:
    """The faults of one seed. Which: decided when it is made; its random numbers are its own."""

    def __init__(
        self,
        world: SimWorld,
        *,
        disk: bool = False,
        store: bool = False,
        processes: Sequence[str] = (),
        clocks: Sequence[str] = (),
        connections: Sequence[tuple[str, str]] = (),
        longest_s: float = LONG_S,
        every_s: float = 2.0,
    ) -> None:
        self.world = world
        self.random = random.Random(f"{world.seed}-swarm")
        self._processes = list(processes)
        self._clocks = list(clocks)
        self._connections = list(connections)
        self._longest_s = longest_s
        self._every_s = every_s
        self._on = False
        self._before: list[Setting] = []
        chances: dict[str, list[Setting]] = {}
        episodes: dict[str, Callable[[float], None]] = {}
        if disk:
            chances["slow disk"] = [(world.disk, "slow_sync_chance", 0.3)]
            episodes["disk stall"] = world.disk.stall
            episodes["disk full"] = world.disk.fill
        if store:
            chances["slow store"] = [(world.store, "slow_chance", 0.2)]
            chances["store timeout without effect"] = [(world.store, "timeout_chance", 0.02)]
            chances["partial body"] = [(world.store, "partial_body_chance", 0.1)]
            episodes["store throttling"] = world.store.throttle
            episodes["store outage"] = world.store.outage
        if connections:
            chances["slow network"] = [(world.network, "slow_chance", 0.1), (world.network, "slow_max_s", 2.0)]
            chances["reset before the answer"] = [(world.network, "lost_answer_chance", 0.01)]
            chances["half-open connection"] = [(world.network, "half_open_chance", 0.5)]
            episodes["connection reset"] = self._resets
            episodes["partition"] = self._partition
            episodes["one-way partition"] = self._one_way
        if processes:
            episodes["pause"] = self._pause
        if clocks:
            episodes["clock jump"] = self._clock_jump
        calm = self.random.random() < CALM_SEEDS
        self._chances = {name: chances[name] for name in self._some(chances, calm)}
        self._episodes = {name: episodes[name] for name in self._some(episodes, calm)}

    def _some(self, names: Iterable[str], calm: bool) -> list[str]:
        return [name for name in names if self.random.random() < CHOSEN and not calm]

    @property
    def kinds(self) -> list[str]:
        """The faults that this seed has."""
        return [*self._chances, *self._episodes]

    def has(self, *kinds: str) -> bool:
        """Whether the seed has one of these faults."""
        return any(kind in self._chances or kind in self._episodes for kind in kinds)

    @property
    def hurts_log(self) -> bool:
        """Whether a log on the disk may be too late or without space."""
        return self.has("disk stall", "disk full", "pause")

    @property
    def hurts_store(self) -> bool:
        """Whether requests to the object store may fail."""
        return self.has("store timeout without effect", "partial body", "store throttling", "store outage")

    def begin(self) -> None:
        """Turn the faults on."""
        if self._on:
            return
        self._on = True
        self.world.enabled_episodes.update(self._episodes)
        for owner, name, value in itertools.chain(*self._chances.values()):
            self._before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def end(self) -> None:
        """Turn all faults off, also those under way; paused processes go on."""
        self._on = False
        while self._before:
            setattr(*self._before.pop())
        self.world.store.end_episodes()
        self.world.disk.end_episodes()
        self.world.network.heal()
        self.world.end_pauses()
        for machine in self._clocks:
            if self.world.clock(machine).skew_ms:
                self.world.jump_clock(machine, 0)

    async def trouble(self) -> None:
        """One episode after the other while the swarm is on, some of them at once; runs until it is cancelled."""
        names = list(self._episodes)
        while names:
            await asyncio.sleep(self.random.random() ** 2 * 3 * self._every_s)
            if not self._on:
                continue
            seconds = self.random.random() ** 3 * self._longest_s
            self._episodes[self.random.choice(names)](seconds)
            if self.random.random() < 0.8:
                await asyncio.sleep(seconds)

    # -- episodes

    def _pause(self, seconds: float) -> None:
        victims = [process for process in self.world.processes if _base(process) in self._processes]
        if victims:
            self.world.pause(self.random.choice(victims), seconds)

    def _clock_jump(self, seconds: float) -> None:
        skew_ms = int(seconds * 1000) * self.random.choice([-1, 1, 60])
        self.world.jump_clock(self.random.choice(self._clocks), skew_ms)

    def _resets(self, seconds: float) -> None:
        self.world.network.reset_some(self.random.random())

    def _partition(self, seconds: float) -> None:
        self._cut(seconds, one_way=False)

    def _one_way(self, seconds: float) -> None:
        self._cut(seconds, one_way=True)

    def _cut(self, seconds: float, *, one_way: bool) -> None:
        one, other = self.random.choice(self._connections)
        if self.random.random() < 0.5:
            one, other = other, one
        network = self.world.network
        network.cut(one, other, one_way=one_way)
        self.world.loop.call_world(seconds, lambda: network.join(one, other, one_way=one_way))


def _base(process: SimProcess) -> str:
    return process.name.partition("#")[0]
