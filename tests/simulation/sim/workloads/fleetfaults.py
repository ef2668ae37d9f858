"""What goes wrong around a simulated cluster: every seed has its own choice of faults, several at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.workloads.fleetplacement import Causes
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS

if TYPE_CHECKING:
    from sim.workloads.fleet import FleetWorkload

HARMLESS = frozenset(
    {
        "no_kubernetes",
        "workers_away_from_kubernetes",
        "no_objects",
        "unsure_objects",
        "resets",
        "away_from_clients",
        "away_from_controllers",
        "away_from_objects",
        "controller",
        "operator",
    }
)
"""What is no reason to move a container, but for what `causes` says of it."""
KINDS = (
    "supplant",
    "workers_away_from_kubernetes",
    "crash",
    "crash_at_request",
    "pause",
    "pause",
    "away_from_objects",
    "away_from_kubernetes",
    "away_from_kubernetes",
    "away_from_kubernetes",
    "isolated",
    "isolated",
    "away_from_clients",
    "away_from_controllers",
    "no_kubernetes",
    "no_objects",
    "unsure_objects",
    "wipe",
    "resets",
    "drain",
    "controller",
    "operator",
)
"""Faults by name; some are more likely than others."""
LONG_S = 40.0
"""Longer than any lease."""
HALF_OPEN_MAX_S = 45.0
"""After a crash a client may wait so long for the answer of a dead process."""


class Nemesis:
    """Injects faults, one after the other and at the same time; afterwards `heal` leaves none behind."""

    def __init__(self, fleet: FleetWorkload, rng: random.Random, chosen: Sequence[str] = ()) -> None:
        self._fleet = fleet
        self._random = rng
        self.kinds = chosen or rng.sample(KINDS, rng.randint(1, 6))
        self.harmless = HARMLESS.issuperset(self.kinds)
        self.rounds = rng.randint(1, 4)
        self.least_s = 0.0
        """Whatever lasts a while lasts at least so long."""
        self._hurt_until_s: dict[str, float] = {}
        fleet.world.network.lost_answer_chance = rng.choice([0.0, 0.0, 0.002])
        self.causes = Causes(
            silences="workers_away_from_kubernetes" in self.kinds,
            blinks=not {"no_kubernetes", "operator"}.isdisjoint(self.kinds),
            unanswered="resets" in self.kinds or fleet.world.network.lost_answer_chance > 0,
        )
        fleet.world.network.half_open_chance = rng.choice([0.0, 0.0, 0.3])
        fleet.kubernetes.late_watch_chance = rng.choice([0.0, 0.0, 0.3])
        fleet.kubernetes.dead_watch_chance = rng.choice([0.0, 0.0, 0.3])
        fleet.kubernetes.closed_watch_chance = rng.choice([0.0, 0.0, 0.5])
        for number in range(fleet.store_count):  # no machine may compare the time of another one with its own
            fleet.world.jump_clock(f"store{number}", rng.choice([0, 0, rng.randint(-60_000, 60_000)]))
        if self.harmless:
            return
        fleet.kubernetes.error_chance = rng.choice([0.0, 0.0, 0.05])
        fleet.kubernetes.lost_reply_chance = rng.choice([0.0, 0.0, 0.1])
        fleet.kubernetes.own_conflict_chance = rng.choice([0.0, 0.0, 0.1])
        fleet.kubernetes.stale_list_chance = rng.choice([0.0, 0.0, 0.2])
        fleet.kubernetes.late_chance = rng.choice([0.0, 0.0, 0.05])

    async def run(self) -> None:
        """Some rounds of trouble."""
        under_way: list[asyncio.Task[None]] = []
        for _ in range(self.rounds):
            await asyncio.sleep(self._random.random() * 5)
            under_way.append(asyncio.ensure_future(getattr(self, f"_{self._random.choice(self.kinds)}")()))
        for task in under_way:
            await task
        self._fleet.kubernetes.heal()
        self._fleet.world.network.lost_answer_chance = 0.0

    def well_since_s(self, name: str) -> float:
        """Since when nothing was wrong with a process and with what it reaches."""
        return max(self._hurt_until_s.get(name, 0.0), self._hurt_until_s.get("all", 0.0))

    def _hurt(self, name: str, span_s: float) -> None:
        until_s = self._fleet.world.loop.time() + span_s
        self._hurt_until_s[name] = max(until_s, self._hurt_until_s.get(name, 0.0))

    def _span_s(self, longest_s: float = LONG_S) -> float:
        return self.least_s + float(self._random.random() ** 1.5 * longest_s)

    def _store(self) -> int:
        return self._random.randrange(self._fleet.store_count)

    # -- processes

    async def _crash(self) -> None:
        number = self._store()
        self._hurt(self._fleet.stores[number].name, HALF_OPEN_MAX_S)
        self._fleet.world.crash(self._fleet.stores[number].process)
        await asyncio.sleep(self._random.choice([0.0, self._span_s()]))
        await self._fleet.restart_store(number)

    async def _crash_at_request(self) -> None:
        number = self._store()
        process = self._fleet.stores[number].process
        self._hurt(self._fleet.stores[number].name, HALF_OPEN_MAX_S + 10)
        dead = self._fleet.world.crash_at_store_request(process, int(self._random.random() ** 2 * 200))
        await asyncio.wait([dead], timeout=10)
        if process.alive:
            self._fleet.world.crash(process)
        await asyncio.sleep(self._random.choice([0.1, self._span_s()]))
        await self._fleet.restart_store(number)

    async def _pause(self) -> None:
        span_s, node = self._span_s(), self._fleet.stores[self._store()]
        self._hurt(node.name, span_s)
        self._fleet.world.pause(node.process, span_s)
        await asyncio.sleep(span_s)

    async def _supplant(self) -> None:
        """Two processes that believe to be the same worker."""
        number = self._store()
        before = self._fleet.stores[number]
        self._hurt(before.name, LONG_S)
        span_s = self._span_s()
        if self._random.random() < 0.5:
            self._fleet.world.pause(before.process, span_s)
        else:
            self._fleet.kubernetes.cut_off(before.process, span_s)
        self._fleet.supplant_store(number)
        await asyncio.sleep(span_s)

    async def _controller(self) -> None:
        number = self._random.randrange(self._fleet.controller_count)
        if self._random.random() < 0.5:
            self._fleet.world.pause(self._fleet.controllers[number].process, self._span_s())
        else:
            await self._fleet.restart_controller(number)

    async def _operator(self) -> None:
        if self._random.random() < 0.5:
            assert self._fleet.operator is not None
            self._fleet.world.pause(self._fleet.operator.process, self._span_s())
        else:
            await asyncio.sleep(self._span_s(10))
            await self._fleet.restart_operator()

    async def _drain(self) -> None:
        number = self._store()
        node = self._fleet.stores[number]
        self._hurt(node.name, HALF_OPEN_MAX_S + 70)
        if not node.process.alive:
            return
        leaving = node.process.spawn(node.drain())
        await asyncio.wait([leaving], timeout=self._span_s(70))
        await self._fleet.restart_store(number)

    # -- networks

    async def _away_from_objects(self) -> None:
        span_s, node = self._span_s(), self._fleet.stores[self._store()]
        self._hurt(node.name, span_s)
        node.store.cut()
        self._fleet.maps.cut_off(node.name, span_s)
        await asyncio.sleep(span_s)
        node.store.heal()

    async def _away_from_kubernetes(self) -> None:
        span_s = self._span_s()
        self._fleet.kubernetes.cut_off(self._fleet.stores[self._store()].process, span_s)
        await asyncio.sleep(span_s)

    async def _isolated(self) -> None:
        """A worker that was replaced without a notification; its connections stay."""
        span_s, network, node = self._span_s(), self._fleet.world.network, self._fleet.stores[self._store()]
        self._fleet.kubernetes.cut_off(node.process, span_s)
        others = ["clients", *(controller.name for controller in self._fleet.controllers.values())]
        for other in others:
            network.cut(node.name, other)
        await asyncio.sleep(span_s)
        for other in others:
            network.join(node.name, other)

    async def _away_from_clients(self) -> None:
        await self._apart("clients")

    async def _away_from_controllers(self) -> None:
        await self._apart(f"controller{self._random.randrange(self._fleet.controller_count)}")

    async def _apart(self, other: str) -> None:
        network, name = self._fleet.world.network, f"store{self._store()}"
        one_way = self._random.random() < 0.3
        pair = self._random.sample([name, other], 2)
        network.cut(*pair, one_way=one_way)
        await asyncio.sleep(self._span_s())
        network.join(*pair, one_way=one_way)

    async def _resets(self) -> None:
        for _ in range(self._random.randint(1, 5)):
            self._fleet.world.network.reset_some(0.5)
            await asyncio.sleep(self._random.random())

    # -- what all depend on

    async def _no_kubernetes(self) -> None:
        span_s = self._span_s()
        self._fleet.kubernetes.outage(span_s)
        await asyncio.sleep(span_s)

    async def _workers_away_from_kubernetes(self) -> None:
        """All at once, and the operator sees that none of them renews its Lease."""
        span_s = self._span_s(30)
        for node in self._fleet.stores.values():
            self._fleet.kubernetes.cut_off(node.process, span_s)
        await asyncio.sleep(span_s)

    async def _no_objects(self) -> None:
        span_s, objects = self._span_s(20), self._fleet.world.store
        self._hurt("all", span_s)
        self._random.choice([objects.outage, objects.throttle])(span_s)
        await asyncio.sleep(span_s)

    async def _unsure_objects(self) -> None:
        objects = self._fleet.world.store
        names = [
            "failure_chance",
            "lost_reply_chance",
            "late_chance",
            "duplicate_chance",
            "stale_list_chance",
            "timeout_chance",
            "partial_body_chance",
        ]
        chosen = self._random.sample(names, self._random.randint(1, 3))
        for name in chosen:
            setattr(objects, name, 0.1)
        span_s = self._span_s(20)
        self._hurt("all", span_s)
        await asyncio.sleep(span_s)
        for name in chosen:
            setattr(objects, name, 0.0)

    async def _wipe(self) -> None:
        kubernetes, what = self._fleet.kubernetes, self._random.choice(["leases", "status", "everything"])
        if what != "status":
            kubernetes.wipe_all(LEASES)
            self._fleet.owners.forget_epochs()
        if what != "leases":
            for plural, name in sorted(kubernetes.core.objects):
                if plural == STREAM_CLUSTERS.plural:
                    kubernetes.wipe_status(STREAM_CLUSTERS, name)
