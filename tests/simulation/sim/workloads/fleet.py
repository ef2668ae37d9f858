"""A whole cluster as it runs on Kubernetes: workers on object logs, controllers, an operator, clients; all that may fail.

Containers move between workers that crash, stand still and wake up as owners of what is no longer theirs; every
promise that clients and operators are given is checked while that happens and when it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from sim.knobs import silent_logs, turned
from sim.kubernetes import SimKubernetes
from sim.process import SimProcess
from sim.violations import require
from sim.workloads.fleetclients import Clients, Observer
from sim.workloads.fleetfaults import Nemesis
from sim.workloads.fleetledger import Owners
from sim.workloads.fleetnodes import CONTAINERS, ControllerLink, ControllerNode, StoreNode
from sim.world import SimWorld
from tailrace.client import Client
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint, EndpointMap
from tailrace.common import limits
from tailrace.common.errors import TailraceError

CALM_DEADLINE_S = 600.0


class OperatorNode:
    def __init__(self, world: SimWorld) -> None:
        self.process: SimProcess = world.process("operator")


class FleetWorkload:
    """One seed."""

    def __init__(self, seed: int) -> None:
        rng = self.random = random.Random(f"{seed}-fleet-workload")
        self.world = SimWorld(seed)
        self.world.store.slow_chance = rng.choice([0.0, 0.02])
        self.world.store.late_max_s = 5.0
        self.kubernetes = SimKubernetes(self.world.loop, seed)
        self.owners = Owners()
        self.stores: dict[int, StoreNode] = {}
        self.controllers: dict[int, ControllerNode] = {}
        self.operator: OperatorNode
        self.store_count = rng.randint(2, 3)
        self.controller_count = rng.randint(1, 2)
        self.writers, self.users = rng.randint(1, 2), rng.randint(0, 2)
        self.segments = rng.randint(1, 3)
        self.plan: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.clients: Clients | None = None
        self.knobs: dict[tuple[Any, str], Any] = {
            (limits, "METADATA_BUCKETS"): 2,
            (limits, "CHECKPOINT_INTERVAL_OPERATIONS"): rng.choice([50, 100_000]),
            (limits, "FLUSH_THRESHOLD_BYTES"): rng.choice([3_000, 100_000]),
            (limits, "FLUSH_INTERVAL_S"): rng.choice([0.5, 30.0]),
        }
        self.nemesis = Nemesis(self, rng)

    @property
    def steps(self) -> int:
        """What was acknowledged to clients."""
        return self.clients.steps if self.clients is not None else 0

    def run(self) -> None:
        """Raises Violation."""
        with silent_logs(), turned(self.knobs), self.world as world:
            world.run(self._main())
            self.owners.check()
            require(not world.store.overwritten, f"objects were overwritten: {world.store.overwritten}")

    async def _main(self) -> None:
        for number in range(self.store_count):
            await self.restart_store(number)
        await self.restart_operator()
        for number in range(self.controller_count):
            await self.restart_controller(number)
        process = self.world.process("clients")
        course = process.spawn(self._clients())
        await asyncio.wait([course])
        course.result()

    # -- processes

    async def restart_store(self, number: int) -> None:
        """Start a segment store worker, in the place of the one that is there."""
        before = self.stores.get(number)
        if before is not None and before.process.alive:
            self.world.crash(before.process)
        node = self.stores[number] = StoreNode(self.world, number, self.owners)
        await node.process.spawn(node.serve(self._take))
        node.process.spawn(self._follow(node))

    async def restart_controller(self, number: int) -> None:
        before = self.controllers.get(number)
        if before is not None:
            self.world.crash(before.process)
            if not before.dead.done():
                before.dead.set_result(None)
        endpoints = EndpointMap(CONTAINERS)
        node = self.controllers[number] = ControllerNode(self.world, number, endpoints)
        await node.process.spawn(node.serve())
        node.process.spawn(self._publish(endpoints))

    async def restart_operator(self) -> None:
        if hasattr(self, "operator") and self.operator.process.alive:
            self.world.crash(self.operator.process)
        self.operator = OperatorNode(self.world)
        self.operator.process.spawn(self._operate())

    async def drain_store(self, number: int) -> None:
        pass

    async def _operate(self) -> None:
        while True:
            able = [n for n, s in self.stores.items() if s.process.alive and not s.process.paused and self.kubernetes.reachable(s.process)]
            if able and self.kubernetes.reachable(self.operator.process):
                for container in range(CONTAINERS):
                    if self.plan.get(container) not in able:
                        self.plan[container] = self.random.choice(able)
            await asyncio.sleep(1)

    async def _follow(self, node: StoreNode) -> None:
        worker = node.worker
        while True:
            if self.kubernetes.reachable(node.process):
                for container in range(CONTAINERS):
                    if self.plan.get(container) == node.number:
                        with contextlib.suppress(TailraceError):
                            await worker.open_container(container)
                    else:
                        await worker.release_container(container)
            await asyncio.sleep(self.random.random())

    async def _take(self, container: int, floor: int) -> int:
        await asyncio.sleep(0.01)
        self.epochs[container] = max(self.epochs.get(container, 0), floor) + 1
        return self.epochs[container]

    async def _publish(self, endpoints: EndpointMap) -> None:
        while True:
            for container, number in self.plan.items():
                endpoint = self.stores[number].endpoint
                endpoints.publish(container, ContainerEndpoints(Endpoint(endpoint.host, endpoint.port)))
            await asyncio.sleep(self.random.random())

    # -- the course

    async def _clients(self) -> None:
        world = self.world
        link = ControllerLink(world, "clients", lambda: list(self.controllers.values()))
        client = Client(link, clock=world.clock(), entropy=world.entropy("clients"))
        clients = self.clients = Clients(client, self.random, self.segments, keys=2)
        await clients.create()
        clients.start(self.writers, self.users)
        watcher = world.process("observer")
        watching = [watcher.spawn(self._observer(clients, number).run()) for number in self.stores]
        nemesis = world.spawn(self.nemesis.run())
        while not nemesis.done():
            await asyncio.wait([nemesis, *watching], timeout=1, return_when=asyncio.FIRST_COMPLETED)
            self._check(clients, watching)
        nemesis.result()
        async with asyncio.timeout(CALM_DEADLINE_S):
            await clients.stop()
            self._check(clients, watching)
            await clients.check_events()
            await clients.check_tables()
        await client.close()

    def _observer(self, clients: Clients, number: int) -> Observer:
        def well_since_s() -> float:
            return self.nemesis.well_since_s(self.stores[number].name)

        entropy = self.world.entropy(f"observer {number}")
        return Observer(clients, self.stores[number].endpoint, self.random, entropy, well_since_s)

    def _check(self, clients: Clients, watching: list[asyncio.Task[None]]) -> None:
        self.owners.check()
        clients.check_alive()
        for task in watching:
            if task.done():
                task.result()
