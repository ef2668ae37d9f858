"""Workers that own containers and do little with them: the real renewals, follower, epochs, object logs, and no data.

For tests of ownership and placement; a whole segment store in their place is the fleet workload's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Collection
from typing import Any

from sim.kubernetes import Change
from sim.process import SimProcess
from sim.violations import require
from sim.world import SimWorld
from tailrace.cluster.cluster_map import ClusterMap, read_map
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.follower import Follower
from tailrace.cluster.heartbeat import Heart
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS
from tailrace.cluster.lease_epochs import LeaseEpochs
from tailrace.cluster.leases import read_container_lease
from tailrace.cluster.placer import Placer
from tailrace.cluster.renewal import Renewer
from tailrace.common.errors import EpochTooHighError, FencedError, NotOwnerError, TailraceError, UnavailableError
from tailrace.log.object import ObjectLog

CLUSTER = "c"


class LogHost:
    """Implements ContainerHost: a container is an open object log to which a frame is appended now and then."""

    def __init__(self, owner: Owner, epochs: LeaseEpochs) -> None:
        self._owner = owner
        self._epochs = epochs
        self._keepers: dict[int, asyncio.Task[None]] = {}

    def expect_container(self, container_id: int) -> None:
        """See ContainerHost: no client asks for containers here."""

    def unexpect_container(self, container_id: int) -> None:
        """See ContainerHost."""

    async def open_container(self, container_id: int) -> None:
        """See ContainerHost."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keepers[container_id] = asyncio.get_running_loop().create_task(self._keep(container_id, opened))
        await opened

    async def release_container(self, container_id: int) -> None:
        """See ContainerHost."""
        keeper = self._keepers.pop(container_id, None)
        if keeper is not None:
            await asyncio.sleep(self._owner.entropy.uniform())  # a flush
            keeper.cancel()
            await asyncio.wait([keeper])

    def owned(self) -> Collection[int]:
        """See ContainerHost."""
        return self._keepers.keys()

    async def _keep(self, container_id: int, opened: asyncio.Future[None]) -> None:
        floor = 0
        while True:
            log = ObjectLog(self._owner.store, container_id, max_frame_bytes=1024)
            is_open = False
            try:
                asked_s = asyncio.get_running_loop().time()
                epoch = await self._epochs.take(container_id, floor)
                self._owner.fleet.took(container_id, epoch, self._owner, asked_s)
                await log.open(epoch, self._owner.entropy.token(16))
                self._owner.fleet.opened(container_id, epoch, self._owner, log.owned_at_s)
                is_open = True
                if not opened.done():
                    opened.set_result(None)
                while True:
                    await log.append([b"x"])
                    self._owner.fleet.acknowledged(container_id, epoch, self._owner)
                    await asyncio.sleep(0.5)
            except NotOwnerError as error:
                self._keepers.pop(container_id, None)
                if not opened.done():
                    opened.set_exception(error)
                return
            except TailraceError as error:
                if isinstance(error, EpochTooHighError):
                    with contextlib.suppress(UnavailableError):
                        await self._epochs.lower(container_id, error.last)
                floor = error.epoch if isinstance(error, FencedError) else 0
                if not opened.done():
                    opened.set_result(None)  # the first attempt has ended
                await asyncio.sleep(0.1)
            finally:
                await log.close()
                if is_open:
                    self._owner.fleet.closed(container_id, self._owner)


class Owner:
    """One process of a worker."""

    def __init__(self, fleet: OwnerFleet, name: str, number: int) -> None:
        world = fleet.world
        self.fleet = fleet
        self.name = name
        self.process: SimProcess = world.process(name)
        self.api = world.kubernetes.attach(self.process)
        self.store = world.store.attach(self.process)
        incarnation = f"{len(fleet.incarnations):x}"
        fleet.incarnations.append(name)
        self.entropy = world.entropy(f"{name}-{incarnation}")
        clock = world.clock()
        clock.skew_ms = world.random.randrange(-(10**9), 10**9)
        self.heart = Heart()
        endpoints = ContainerEndpoints(Endpoint(name, 12345 + number))
        self.renewer = Renewer(self.api, CLUSTER, name, incarnation, endpoints, clock, self.heart)
        self.epochs = LeaseEpochs(self.api, CLUSTER, name, incarnation, clock)
        self.host = LogHost(self, self.epochs)
        self.follower = Follower(self.api, CLUSTER, name, self.host, self.epochs, self)
        self.superseded = False
        self.drained = False
        self._beating: asyncio.Task[Any] | None = None
        self.task = self.process.spawn(self._run())

    async def _run(self) -> None:
        self._beating = asyncio.ensure_future(self.heart.beat())
        while True:
            with contextlib.suppress(TailraceError):
                await self.renewer.register()
                break
            await asyncio.sleep(1.0)
        following = asyncio.ensure_future(self.follower.run())
        try:
            await self.renewer.run()
        except NotOwnerError:
            self.superseded = True
            following.cancel()
            await asyncio.wait([following])
            self.fleet.world.loop.call_world(0, self.fleet.ended, self)

    def hang(self) -> None:
        """The loop beats no more."""
        assert self._beating is not None
        self._beating.cancel()

    def drain(self) -> asyncio.Task[None]:
        """Leave gracefully."""

        async def leave() -> None:
            await self.follower.drain()
            self.drained = True

        return self.process.spawn(leave())

    # -- Renewals, as far as the follower needs it

    def leave(self) -> None:
        """See Renewals.leave."""
        self.renewer.leave()

    async def wait_left(self) -> None:
        """See Renewals.wait_left."""
        await self.renewer.left.wait()

    async def start(self) -> None:
        """Begun already."""

    async def wait_superseded(self) -> None:
        """See Renewals.wait_superseded."""
        await asyncio.wait([self.task])

    async def stop(self) -> None:
        """Ends with the process."""


class SimProber:
    """Implements Prober: asks the world."""

    def __init__(self, fleet: OwnerFleet) -> None:
        self._fleet = fleet
        self.asked: list[str] = []

    async def answers(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """See Prober.answers."""
        self.asked.append(worker)
        await asyncio.sleep(0.01)
        owner = self._fleet.owners.get(worker)
        return owner is not None and owner.process.alive and not owner.process.paused

    async def refuses(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """See Prober.refuses."""
        await asyncio.sleep(0.01)
        owner = self._fleet.owners.get(worker)
        return owner is None or not owner.process.alive


class OwnerFleet:
    """A cluster of such workers, a placer, and what happened to its containers."""

    def __init__(self, world: SimWorld, containers: int, workers: int) -> None:
        self.world = world
        self.containers = containers
        self.incarnations: list[str] = []
        self.events: list[tuple[float, str, int, str, int]] = []
        self._looks: list[tuple[float, int, str, int]] = []
        """(time, ``open``, ``ack`` or ``close``, container, worker, epoch)"""
        self.owners: dict[str, Owner] = {}
        self.failures: list[str] = []
        """Promises that were broken, as they were seen."""
        self._stored: dict[tuple[int, int], set[tuple[str, int]]] = {}
        """By container and epoch: the Leases that ever had that epoch, by uid and how often they went back before."""
        self._lowered: Counter[int] = Counter()
        self._newest: dict[int, int] = {}
        self._returned: Counter[tuple[int, int]] = Counter()
        self._maps: list[tuple[float, dict[int, str]]] = [(0.0, {})]
        world.kubernetes.core.subscribers.append(self._on_change)
        world.store.slow_max_s = 0.2  # the store is not what is tried here
        world.kubernetes.core.create(
            STREAM_CLUSTERS, {"metadata": {"name": CLUSTER}, "spec": {"containers": containers}}
        )
        for number in range(workers):
            self.start(f"w{number}")
        self.prober = SimProber(self)
        self.placer_process = world.process("placer")
        self.decisions: list[str] = []
        self.start_placer()

    def start(self, name: str) -> Owner:
        """Start a worker, or start it again."""
        self.owners[name] = Owner(self, name, len(self.owners))
        return self.owners[name]

    def ended(self, owner: Owner) -> None:
        """A process was superseded and ends; its pod starts it again."""
        self.world.crash(owner.process)
        if self.owners[owner.name] is owner:
            self.start(owner.name)

    def start_placer(self) -> None:
        """Start the placer in a process of its own."""
        self.placer_process = self.world.process("placer")
        self.prober = SimProber(self)
        self.placer = Placer(self.world.kubernetes.attach(self.placer_process), CLUSTER, self.prober)
        self.placer_process.spawn(self.placer.run())

    # -- what happened

    def _on_change(self, event: Change) -> None:
        if event.plural == LEASES.plural:
            lease = read_container_lease(event.manifest)
            if lease is not None:
                self._lowered[lease.container_id] += lease.epoch < self._newest.get(lease.container_id, 0)
                self._newest[lease.container_id] = lease.epoch
                stored = self._stored.setdefault((lease.container_id, lease.epoch), set())
                stored.add((event.manifest["metadata"]["uid"], self._lowered[lease.container_id]))
        else:
            assignments = {} if event.kind == "DELETED" else read_map(event.manifest).assignments
            now_s = self.world.loop.time()
            self._maps.append((now_s, {number: assignment.worker for number, assignment in assignments.items()}))

    def took(self, container_id: int, epoch: int, owner: Owner, asked_s: float) -> None:
        """An epoch was returned to an owner that asked for it then."""
        key = container_id, epoch
        self._returned[key] += 1
        if self._returned[key] > len(self._stored.get(key, ())):
            self.failures.append(
                f"epoch {epoch} of container {container_id} was handed out without being stored, or twice"
            )
        since = max(index for index, (at, _) in enumerate(self._maps) if at <= asked_s)
        if owner.name not in {owners.get(container_id) for _, owners in self._maps[since:]}:
            self.failures.append(f"{owner.name} got an epoch of container {container_id} without being named for it")

    def opened(self, container_id: int, epoch: int, owner: Owner, looked_at_s: float) -> None:
        """A log was opened, by an owner that may have was paused since its last look at the claims began."""
        self.events.append((self.world.loop.time(), "open", container_id, owner.name, epoch))
        self._looks.append((looked_at_s, container_id, owner.name, epoch))

    def acknowledged(self, container_id: int, epoch: int, owner: Owner) -> None:
        """A frame was acknowledged."""
        self.events.append((self.world.loop.time(), "ack", container_id, owner.name, epoch))

    def closed(self, container_id: int, owner: Owner) -> None:
        """A log was closed."""
        self.events.append((self.world.loop.time(), "close", container_id, owner.name, 0))

    def opens(self) -> int:
        """Logs that were opened so far."""
        return sum(event[1] == "open" for event in self.events)

    def map(self) -> ClusterMap:
        """The current map."""
        return read_map(self.world.kubernetes.core.get(STREAM_CLUSTERS, CLUSTER))

    def assigned(self) -> dict[int, str]:
        """Worker by container, as the map has it."""
        return {number: assignment.worker for number, assignment in sorted(self.map().assignments.items())}

    def served(self, since_s: float) -> dict[int, str]:
        """Who acknowledged last in each container, since then."""
        found: dict[int, str] = {}
        for at, what, number, worker, _ in reversed(self.events):
            if at < since_s:
                break
            if what == "ack":
                found.setdefault(number, worker)
        return found

    def is_settled(self) -> bool:
        """Whether every container is served, within the last two seconds, by the worker that the map names."""
        assigned = self.assigned()
        served = self.served(self.world.loop.time() - 2.0)
        done = not any(assignment.handed_over_by for assignment in self.map().assignments.values())
        return done and len(assigned) == self.containers and assigned == served

    async def settle(self, within_s: float = 120.0) -> float:
        """Wait until `is_settled`; how long that took."""
        began_s = self.world.loop.time()
        while not self.is_settled():
            require(
                self.world.loop.time() - began_s <= within_s,
                f"every container is served by whom the map names within {within_s} s: map {self.map().assignments}, "
                f"served {self.served(0)}, "
                f"owned { {name: sorted(owner.host.owned()) for name, owner in self.owners.items()} }",
            )
            await asyncio.sleep(0.25)
        return self.world.loop.time() - began_s

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """The longest time without an acknowledgement in any container."""
        gaps: list[float] = []
        for number in range(self.containers):
            times = [at for at, what, its, _, _ in self.events if what == "ack" and its == number]
            times = [since_s, *(at for at in times if since_s <= at <= until_s), until_s]
            gaps.extend(b - a for a, b in itertools.pairwise(times))
        return max(gaps)

    def check(self) -> None:
        """What must hold whatever happened."""
        require(not self.failures, "; ".join(self.failures))
        greatest: dict[int, int] = {}
        for at, number, worker, epoch in sorted(self._looks):
            promise = f"a log is opened with a greater epoch than before: {worker} opened {number} with {epoch} at {at}"
            require(epoch > greatest.get(number, 0), promise)
            greatest[number] = epoch

    def sizes(self) -> list[int]:
        """How many containers the workers that have some are to have, in order."""
        return sorted(Counter(self.assigned().values()).values())
