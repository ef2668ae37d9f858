"""Ownership and placement under trouble: workers, a placer, and a Kubernetes API with every fault.

See docs/design.md#ownership.

First, while nothing else is wrong, two events whose outcome is promised exactly: an outage moves nothing, a crash is
over in ten seconds, a drain fences no worker. Then everything at once; and when it stops, everything must settle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sim.owners import CLUSTER, OwnerFleet
from sim.violations import require
from sim.world import SimWorld
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS
from tailrace.common import limits

CONTAINERS = 5
WORKERS = 3
FAULTS = (
    "throttled_chance", "error_chance", "error_after_effect_chance", "lost_reply_chance", "own_conflict_chance",
    "late_chance", "slow_chance", "stale_list_chance", "dead_watch_chance", "late_watch_chance", "closed_watch_chance",
    "gone_watch_chance",
)  # fmt: skip


Event = Callable[[], Awaitable[None]]


class OwnershipWorkload:
    """One seed's run."""

    def __init__(self, seed: int) -> None:
        self.world = SimWorld(seed)
        self.random = self.world.random
        self.calm: list[str] | None = None
        self.troubles: list[str] | None = None
        """Names of what happens in calm, and of troubles, in order; None: drawn."""
        self.fleet: OwnerFleet

    @property
    def steps(self) -> int:
        """Openings, acknowledgements and closings."""
        return len(self.fleet.events)

    def run(self) -> None:
        """Raises Violation when a promise was broken."""
        with self.world:
            self.world.run(self._main())

    async def _main(self) -> None:
        self.fleet = OwnerFleet(self.world, CONTAINERS, WORKERS)
        await self.fleet.settle()
        await asyncio.sleep(10 + limits.PLACER_BALANCE_DELAY_S)
        calm: list[Event] = [
            self._outage, self._most_are_cut_off, self._status_is_wiped, self._leases_are_wiped, self._crash,
            self._drain, self._hang, self._herd,
        ]  # fmt: skip
        drawn = self.random.sample(calm, 2)
        for event in drawn if self.calm is None else _named(calm, self.calm):
            await event()
            await self.fleet.settle()
            self.fleet.check()
        await self._trouble()
        self.world.kubernetes.heal()
        await asyncio.sleep(40 + limits.PLACER_BALANCE_DELAY_S + limits.PLACER_UNHELD_MAX_S)
        await self.fleet.settle()
        self.fleet.check()
        require(self.fleet.sizes() == [1, 2, 2], f"containers are spread evenly: {self.fleet.sizes()}")
        await self._nothing_moves(30.0, "nothing happens")

    # -- events whose outcome is promised

    async def _nothing_moves(self, seconds: float, when: str, gap_s: float = 5.0) -> None:
        began_s, opens, assigned = self.world.loop.time(), self.fleet.opens(), self.fleet.assigned()
        await asyncio.sleep(seconds)
        require(self.fleet.assigned() == assigned, f"no container moves when {when}")
        require(self.fleet.opens() == opens, f"no container is opened again when {when}")
        gap = self.fleet.longest_gap_s(began_s, self.world.loop.time())
        require(gap < gap_s, f"containers go on when {when}: {gap:.1f} s without an acknowledgement")

    async def _outage(self) -> None:
        span_s = self.random.uniform(1, 90)
        self.world.kubernetes.outage(span_s)
        await self._nothing_moves(span_s + 30, "the API is away")

    async def _most_are_cut_off(self) -> None:
        span_s = self.random.uniform(12, 60)  # long enough that all of them lapse before one is back
        for name in self.random.sample(sorted(self.fleet.owners), 2):
            self.world.kubernetes.cut_off(self.fleet.owners[name].process, span_s)
        await self._nothing_moves(span_s + 30, "most workers do not reach the API")

    async def _status_is_wiped(self) -> None:
        await self._crash()  # so that containers are not where they would be placed in the first place
        await self.fleet.settle()
        owners = self.fleet.assigned()
        opens = self.fleet.opens()
        self.world.kubernetes.wipe_status(STREAM_CLUSTERS, CLUSTER)
        await asyncio.sleep(30)
        require(self.fleet.assigned() == owners, "the map is made again as it was")
        require(self.fleet.opens() == opens, "no container is opened again when the status was wiped")

    async def _leases_are_wiped(self) -> None:
        self.world.kubernetes.wipe_all(LEASES)
        await self._nothing_moves(30, "all Leases were wiped")
        held = {number for plural, number in self.world.kubernetes.core.objects if ".container." in number}
        require(len(held) == CONTAINERS, f"Leases that were wiped come back: {sorted(held)}")

    async def _crash(self) -> None:
        name = self.random.choice(sorted(self.fleet.owners))
        began_s, before = self.world.loop.time(), self.fleet.assigned()
        self.world.crash(self.fleet.owners[name].process)
        await asyncio.sleep(15)
        moved = [number for number, owner in self.fleet.assigned().items() if before[number] not in (owner, name)]
        require(not moved, f"only what the dead worker had moves: {moved}")
        gap = self.fleet.longest_gap_s(began_s, self.world.loop.time())
        require(gap < 10, f"a crash is over in ten seconds: {gap:.1f} s without an acknowledgement")
        recovered = self.fleet.assigned()
        self.fleet.start(name)
        await asyncio.sleep(limits.PLACER_BALANCE_DELAY_S - 1)
        require(self.fleet.assigned() == recovered, "a worker that is back gets nothing of what was just recovered")
        await asyncio.sleep(16)

    async def _drain(self) -> None:
        name = self.random.choice(sorted(self.fleet.owners))
        before = len(self.fleet.events)
        await self.fleet.owners[name].drain()
        await self.fleet.settle()
        events = [event for event in self.fleet.events[before:] if event[1] != "ack"]
        for number in range(CONTAINERS):
            order = [what for _, what, its, _, _ in events if its == number]
            require(order in ([], ["close", "open"]), f"a drain fences no worker: container {number} saw {order}")
        self.world.crash(self.fleet.owners[name].process)
        await asyncio.sleep(15)
        self.fleet.start(name)
        await asyncio.sleep(15 + limits.PLACER_BALANCE_DELAY_S)

    async def _hang(self) -> None:
        name = self.random.choice(sorted(self.fleet.owners))
        self.fleet.owners[name].hang()
        await asyncio.sleep(limits.HEARTBEAT_FRESH_S + limits.WORKER_LEASE_LAPSE_S + 10)
        require(name not in self.fleet.assigned().values(), "a worker whose loop hangs is given up")
        self.world.crash(self.fleet.owners[name].process)
        self.fleet.start(name)
        await asyncio.sleep(15 + limits.PLACER_BALANCE_DELAY_S)

    async def _herd(self) -> None:
        """Processes of one worker start one after the other, over a slow API; each is paused while it begins."""
        name = self.random.choice(sorted(self.fleet.owners))
        self.world.crash(self.fleet.owners[name].process)
        self.world.kubernetes.slow_chance = 0.5
        for _ in range(4):
            process = self.fleet.start(name).process
            await asyncio.sleep(self.random.uniform(1.0, 5.0))
            self.world.pause(process, self.random.uniform(5.0, 10.0))
        await asyncio.sleep(20 + limits.PLACER_BALANCE_DELAY_S)
        self.world.kubernetes.slow_chance = 0.02

    # -- everything at once

    async def _trouble(self) -> None:
        for chance in FAULTS:
            if self.random.random() < 0.5:
                most = 0.9 if "watch" in chance else 0.2  # few watches begin during the trouble
                setattr(self.world.kubernetes, chance, self.random.random() * most)
        events: list[Event] = [
            self._away, self._cut, self._wipe, self._pause, self._other_placer, self._restart, self._second_process,
        ]  # fmt: skip
        drawn = [self.random.choice(events) for _ in range(self.random.randrange(1, 6))]
        for event in drawn if self.troubles is None else _named(events, self.troubles):
            await event()
            await asyncio.sleep(self.random.random() * 15)

    def _any_worker(self) -> str:
        return self.random.choice(sorted(self.fleet.owners))

    async def _away(self) -> None:
        self.world.kubernetes.outage(self.random.random() * 20)

    async def _cut(self) -> None:
        self.world.kubernetes.cut_off(self.fleet.owners[self._any_worker()].process, self.random.random() * 20)

    async def _wipe(self) -> None:
        if self.random.random() < 0.5:
            self.world.kubernetes.wipe_status(STREAM_CLUSTERS, CLUSTER)
        else:
            self.world.kubernetes.wipe_all(LEASES)

    async def _pause(self) -> None:
        self.world.pause(self.fleet.owners[self._any_worker()].process, self.random.random() * 25)

    async def _other_placer(self) -> None:
        if self.random.random() < 0.5:
            self.world.crash(self.fleet.placer_process)
            await asyncio.sleep(self.random.random() * 8)
        self.fleet.start_placer()

    async def _restart(self) -> None:
        name = self._any_worker()
        if self.fleet.owners[name].process.alive:
            self.world.crash(self.fleet.owners[name].process)
        await asyncio.sleep(self.random.random() * 10)
        self.fleet.start(name)

    async def _second_process(self) -> None:
        self.fleet.start(self._any_worker())


def _named(events: list[Event], names: list[str]) -> list[Event]:
    return [event for name in names for event in events if event.__name__ == f"_{name}"]
