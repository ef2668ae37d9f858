"""A whole cluster as it runs on Kubernetes: workers on object logs, controllers, the operator's placer, and clients.

Containers move between workers that crash, are paused and wake up as owners of what is no longer theirs; every
promise that clients and operators are given is checked while that happens and when it is over.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from typing import Any

from sim.knobs import silent_logs, turned
from sim.process import SimProcess
from sim.violations import Violation, require
from sim.workloads.fleetclients import Clients
from sim.workloads.fleetfaults import Nemesis
from sim.workloads.fleetledger import Owners
from sim.workloads.fleetnodes import (
    CLUSTER_ID,
    CONTAINERS,
    ControllerLink,
    ControllerNode,
    OperatorNode,
    StoreNode,
    stream_cluster,
)
from sim.workloads.fleetobserver import Observer
from sim.workloads.fleetplacement import MapHistory
from sim.world import SimWorld
from tailrace.client import Client
from tailrace.cluster.data_folder import Manifest
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS
from tailrace.common import limits
from tailrace.segmentstore.verify.folder import _StoreLogs, _Verification
from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore

CALM_DEADLINE_S = 600.0
PLACED_DEADLINE_S = 120.0 + limits.PLACER_BALANCE_DELAY_S + limits.PLACER_UNHELD_MAX_S
"""From the last fault until every worker has its share."""


class FleetWorkload:
    """One seed. ``faults`` are the kinds of them that there may be; none: the seed chooses."""

    def __init__(self, seed: int, faults: Sequence[str] = ()) -> None:
        rng = self.random = random.Random(f"{seed}-fleet-workload")
        self.world = SimWorld(seed)
        self.world.store.slow_chance = rng.choice([0.0, 0.02])
        self.world.store.late_max_s = 5.0
        self.kubernetes = self.world.kubernetes
        self.owners = Owners()
        self.maps = MapHistory(self.kubernetes)
        self.stores: dict[int, StoreNode] = {}
        self.controllers: dict[int, ControllerNode] = {}
        self.operator: OperatorNode | None = None
        self.store_count = rng.randint(2, 3)
        self.controller_count = rng.randint(1, 2)
        self.writers, self.users = rng.randint(1, 2), rng.randint(0, 2)
        self.segments = rng.randint(2, 4)
        self.clients: Clients | None = None
        self.given_up = 0
        """Cuts from the object store by which a worker lost its containers, as it had to."""
        self.knobs: dict[tuple[Any, str], Any] = {
            (limits, "METADATA_BUCKETS"): 2,
            (limits, "CHECKPOINT_INTERVAL_OPERATIONS"): rng.choice([50, 100_000]),
            (limits, "FLUSH_THRESHOLD_BYTES"): rng.choice([3_000, 100_000]),
            (limits, "FLUSH_INTERVAL_S"): rng.choice([0.5, 30.0]),
            (limits, "PLACER_BALANCE_DELAY_S"): random.Random(f"{seed}-fleet-calm").choice(
                [0.0, 3.0, limits.PLACER_BALANCE_DELAY_S]
            ),
        }
        frames = random.Random(f"{seed}-fleet-frames")
        self.knobs |= {
            (limits, "LOG_OBJECT_CHECKPOINT_FRAMES_MIN"): frames.choice([5, 40, 256]),
            (limits, "LOG_OBJECT_CACHE_BYTES"): frames.choice([5_000, limits.LOG_OBJECT_CACHE_BYTES]),
            (limits, "CONTAINERS_OPENING_MAX"): frames.choice([1, 2, 4]),
        }
        self.starts_from_nothing = rng.random() < 0.3
        self.verifies = True
        self.nemesis = Nemesis(self, rng, faults)

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

    async def _start(self) -> None:
        self.kubernetes.core.create(STREAM_CLUSTERS, stream_cluster())
        for number in range(self.store_count):
            await self.restart_store(number)
        await self.restart_operator()
        for number in range(self.controller_count):
            await self.restart_controller(number)

    async def _main(self) -> None:
        await self._start()
        process = self.world.process("clients")
        scenario = process.spawn(self._clients(process))
        await asyncio.wait([scenario])
        scenario.result()
        self._crash_everything()
        await asyncio.sleep(self.world.store.late_max_s)  # what was on its way to the store arrives
        if self.verifies:
            await self._verify()

    async def _verify(self) -> None:
        """Prove logs and Tier 2, as ``tailrace inspect verify`` does for a cluster that is stopped."""
        process = self.world.process("verification")
        store = ReadOnlyStore(self.world.store.attach(process))
        manifest = Manifest(str(uuid.UUID(bytes=CLUSTER_ID)), CONTAINERS, "", "object")
        work = _Verification(manifest, store, _StoreLogs(store), self.world.entropy("verification"), lambda *_: None)
        verifying = process.spawn(work.run())
        await asyncio.wait([verifying])
        report = verifying.result()
        require(report.healthy, f"{report.problem_count} problems at the end: {[str(one) for one in report.problems]}")

    # -- processes

    def _crash_everything(self) -> None:
        for process in list(self.world.processes):
            if not process.name.startswith(("clients", "observer")):
                self.world.crash(process)
        for controller in self.controllers.values():
            if not controller.dead.done():
                controller.dead.set_result(None)

    async def _start_from_nothing(self) -> None:
        """Everything in Kubernetes is lost, and all processes with it; the resource is applied again."""
        self._crash_everything()
        self.kubernetes.wipe_all(LEASES)
        self.kubernetes.wipe_all(STREAM_CLUSTERS)
        self.owners.forget_epochs()
        await self._start()

    async def restart_store(self, number: int) -> None:
        """Start a segment store worker in the place of the one that is there."""
        before = self.stores.get(number)
        if before is not None and before.process.alive:
            self.world.crash(before.process)
        self._start_store(number, tried=before is not None)

    def supplant_store(self, number: int) -> None:
        """Start a worker in the place of one that goes on, as when its machine only seems to be lost."""
        self.stores[number].lose_address()
        self._start_store(number, tried=False)

    def _start_store(self, number: int, *, tried: bool) -> None:
        """`tried`: it is a new process of the same pod, which tried out Tier 2 before."""
        node = self.stores[number] = StoreNode(
            self.world, self.kubernetes, number, self.owners, self.maps.named, tried=tried
        )
        serving = node.process.spawn(node.serve())
        serving.add_done_callback(lambda done: self._ended(node, done))

    def _ended(self, node: StoreNode, done: asyncio.Task[None]) -> None:
        """A worker that another process took the place of has ended by itself: Kubernetes starts it again."""
        if done.cancelled():
            return
        done.result()
        self.world.loop.call_world(0, self._start_again, node)

    def _start_again(self, node: StoreNode) -> None:
        if node.process.alive:
            self.world.crash(node.process)
            if self.stores[node.number] is node:
                self._start_store(node.number, tried=True)

    async def restart_controller(self, number: int) -> None:
        """Start a controller in the place of the one that is there."""
        before = self.controllers.get(number)
        if before is not None and before.process.alive:
            self.world.crash(before.process)
            before.dead.set_result(None)
        node = self.controllers[number] = ControllerNode(self.world, self.kubernetes, number)
        node.process.spawn(node.serve())

    async def restart_operator(self) -> None:
        """Start the operator, in the place of the one that is there."""
        if self.operator is not None and self.operator.process.alive:
            self.world.crash(self.operator.process)
        self.operator = OperatorNode(self.world, self.kubernetes, self.maps.unanswered)
        self.operator.process.spawn(self.operator.serve())

    # -- the scenario

    async def _clients(self, process: SimProcess) -> None:
        world = self.world
        link = ControllerLink(world, process, lambda: list(self.controllers.values()))
        client = Client(link, clock=world.clock(), entropy=world.entropy("clients"))
        clients = self.clients = Clients(client, self.random, self.segments, keys=2)
        await clients.create()
        settled_at_s = await self._settled()
        clients.start(self.writers, self.users)
        watcher = world.process("observer")
        observers = [self._observer(clients, number) for number in self.stores]
        watching = [watcher.spawn(work) for observer in observers for work in (observer.ask(), observer.wait())]
        nemesis = world.spawn(self.nemesis.run())
        while not nemesis.done():
            await asyncio.wait([nemesis, *watching], timeout=1, return_when=asyncio.FIRST_COMPLETED)
            self._check(clients, watching)
        nemesis.result()
        if self.nemesis.harmless:
            self.maps.check_stood_still(settled_at_s, self.nemesis.causes)
        if {*self.nemesis.kinds} == {"away_from_objects"}:
            names = [node.name for node in self.stores.values()]
            self.given_up = self.maps.check_cut_off(names)
        await self._settled()
        try:
            async with asyncio.timeout(CALM_DEADLINE_S):
                await self._end(clients, watching)
        except TimeoutError:
            self.owners.check()
            raise Violation(f"clients did not come to an end within {CALM_DEADLINE_S:g} s without faults") from None
        await client.close()

    async def _end(self, clients: Clients, watching: list[asyncio.Task[None]]) -> None:
        """Whatever was written is there, and every reader has seen it."""
        await clients.stop()
        self._check(clients, watching)
        await clients.check_events()
        await clients.check_tables()
        if self.starts_from_nothing:
            await self.world.spawn(self._start_from_nothing())
            await self._settled()
            await clients.check_events()
            await clients.check_tables()

    async def _settled(self) -> float:
        """Wait until the containers are spread evenly and run there; returns since when they are spread."""
        ends_at_s = self.world.loop.time() + PLACED_DEADLINE_S
        while not self.maps.is_even([node.name for node in self.stores.values()]):
            require(self.world.loop.time() < ends_at_s, f"containers are not spread evenly: {self.maps.now}")
            await asyncio.sleep(0.5)
        spread_at_s = self.world.loop.time()
        while missing := [number for number, name in self.maps.now.items() if not self._store(name).runs(number)]:
            require(self.world.loop.time() < ends_at_s, f"containers {missing} of {self.maps.now} are not served")
            await asyncio.sleep(0.5)
        return spread_at_s

    def _store(self, name: str) -> StoreNode:
        return next(node for node in self.stores.values() if node.name == name)

    def _observer(self, clients: Clients, number: int) -> Observer:
        def well_since_s() -> float:
            return self.nemesis.well_since_s(self.stores[number].name)

        return Observer(clients, self.stores[number].endpoint, self.random, well_since_s)

    def _check_nodes(self) -> None:
        """Owners and budgets of all workers."""
        self.owners.check()
        for node in self.stores.values():
            node.check_memory()

    def _check(self, clients: Clients, watching: list[asyncio.Task[None]]) -> None:
        self._check_nodes()
        clients.check_alive()
        for task in watching:
            if task.done():
                task.result()
