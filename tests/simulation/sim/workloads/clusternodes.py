"""The processes of the cluster workload: one segment store, and controllers that crash, are paused and come back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from sim.process import SimProcess
from sim.world import SimWorld
from tailrace.client.connections.listing import SegmentLister
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.control.transport import error_of_status
from tailrace.client.types import Endpoint
from tailrace.cluster.endpoints import ContainerEndpoints, EndpointMap
from tailrace.common import limits
from tailrace.common.budgets import Budgets
from tailrace.common.errors import ConnectionLostError, TailraceError, UnavailableError
from tailrace.common.names import TABLE_SUFFIX
from tailrace.controller.app import Controller
from tailrace.controller.metadata.metadata_store import PENDING_TABLE, TableMetadataStore
from tailrace.controller.metadata.records import PendingRecord, decode
from tailrace.controller.sweep.decision import name_by_controller
from tailrace.controller.workflows.context import ControllerConfig
from tailrace.log.file import FileLog
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts

CONTAINERS = 2
STORE = Endpoint("127.0.0.1", 12345)
CLUSTER_ID = b"simulated-clustr"
LOG_FILE_BYTES = 1024 * 1024
CACHE_BYTES = 16 * limits.MIB

STEPS: dict[str | None, int] = {
    None: 2,
    "create_segments": 1,
    "seal_segment": 1,
    "truncate_segment": 1,
    "delete_segment": 2,
    "merge_batch": 8,
    "put": 1,
    "remove": 1,
}
"""Calls to the store at which a controller may be struck, and how often each is chosen; None: any."""


class StoreNode:
    """One incarnation of the segment store."""

    def __init__(self, world: SimWorld, epochs: dict[int, int]) -> None:
        self.process: SimProcess = world.process("server")
        self._world = world
        self._epochs = epochs

    async def _next_epoch(self, container_id: int, floor: int) -> int:
        self._epochs[container_id] = max(self._epochs.get(container_id, 0), floor) + 1
        return self._epochs[container_id]

    def _open_log(self, container_id: int) -> FileLog:
        disk = self._world.disk.attach(self.process)
        return FileLog(
            disk,
            f"/data/log/{container_id}",
            container_id,
            file_bytes=LOG_FILE_BYTES,
            max_frame_bytes=256 * 1024,
            reserve_bytes=0,
        )

    async def serve(self) -> None:
        """Recover and listen."""
        clock, entropy = self._world.clock("server"), self._world.entropy(self.process.name)
        store = self._world.store.attach(self.process)
        budgets = Budgets(CACHE_BYTES, 8 * limits.MIB, 4 * limits.MIB, limits.MIB, limits.MIB, limits.MIB)
        ports = WorkerPorts(store, self._open_log, self._next_epoch, clock, entropy, CLUSTER_ID)
        worker = Worker(CONTAINERS, range(CONTAINERS), budgets, ports)
        await worker.start()
        server = SegmentStoreServer(worker, InFlightBudget(budgets.in_flight_bytes), clock, entropy)
        await server.start(STORE.host, STORE.port)


class CallGate:
    """What can happen to a controller at its calls to the store: struck at one of them; calls and answers get lost."""

    def __init__(self, world: SimWorld, rng: random.Random, lost_chance: float) -> None:
        self._world = world
        self._random = rng
        self.lost_chance = lost_chance
        self._step: str | None = None
        self._left = -1
        self._after_effect = False
        self._strike: Callable[[], None] = lambda: None
        self.struck: asyncio.Future[None] = world.loop.create_future()

    def arm(self, step: str | None, calls: int, *, after_effect: bool, strike: Callable[[], None]) -> None:
        """Strike at the n-th call of that name from now on, before it leaves or after it had its effect."""
        self._step, self._left, self._after_effect, self._strike = step, calls, after_effect, strike
        self.struck = self._world.loop.create_future()

    def disarm(self) -> None:
        """Strike no more, nor when a call that was to be struck has had its effect."""
        self._left = -1
        self._strike = _nothing

    def wrap(self, target: Any) -> Any:
        """The store with the gate in front of it."""
        return _Gated(target, self)

    async def make(self, name: str, call: Callable[[], Any]) -> Any:
        """One call, as far as it gets."""
        due = self._is_due(name)
        if due and not self._after_effect:
            await self._hit()
        lost = self._random.random()
        if lost < self.lost_chance:
            self._world.network.count("store call of a controller lost")
            raise ConnectionLostError("the call was lost")
        result = await call()
        if due and self._after_effect:
            await self._hit()
        if lost > 1 - self.lost_chance:
            self._world.network.count("store answer lost on its way to a controller")
            raise ConnectionLostError("the answer was lost")
        return result

    def _is_due(self, name: str) -> bool:
        if self._left < 0 or self._step not in (None, name):
            return False
        self._left -= 1
        return self._left < 0

    async def _hit(self) -> None:
        self._world.loop.call_world(0, self._strike)
        self._world.loop.call_world(0, _resolve, self.struck)
        await asyncio.sleep(0.001)  # a dead process never gets here, one that is paused gets here late


def _nothing() -> None:
    """No strike."""


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Gated:
    def __init__(self, target: Any, gate: CallGate) -> None:
        self._target = target
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(*args: Any, **keywords: Any) -> Any:
            return await self._gate.make(name, lambda: method(*args, **keywords))

        return call


class ControllerNode:
    """One incarnation of a controller: a process of its own, without any state."""

    def __init__(self, world: SimWorld, rng: random.Random, config: ControllerConfig, lost_chance: float) -> None:
        self.process: SimProcess = world.process("controller")
        self.given_up: asyncio.Future[None] = world.loop.create_future()
        """Done when clients stop to wait for its answers."""
        self.gate = CallGate(world, rng, lost_chance)
        self.controller: Controller | None = None
        self._world = world
        self._config = config

    async def serve(self) -> None:
        """Answer calls at once; take up what was left behind as soon as the store can be reached."""
        clock, entropy = self._world.clock("controller"), self._world.entropy(self.process.name)

        async def locate(_: str) -> Endpoint:
            return STORE

        pool = ConnectionPool()
        segments = SegmentClient(pool, locate, entropy=entropy)
        endpoints = EndpointMap(CONTAINERS, {i: ContainerEndpoints(STORE) for i in range(CONTAINERS)})
        metadata = self.gate.wrap(TableMetadataStore(segments))
        listing = SegmentLister(pool, CONTAINERS, lambda _: STORE)
        self.controller = Controller(
            metadata, self.gate.wrap(segments), endpoints, clock, entropy, self._config, listing=listing
        )
        self.controller.start_when_possible()

    def give_up(self) -> None:
        """Connections to it end."""
        _resolve(self.given_up)


class Controllers:
    """The controllers: one that is believed to live, and now and then an earlier one that still does.

    In half of the seeds a companion lives beside them all the time. Then a controller that dies has no successor for a
    while, nor at the end: the companion must finish what it left.
    """

    def __init__(self, world: SimWorld, rng: random.Random) -> None:
        self.world = world
        self._random = rng
        self.current: ControllerNode | None = None
        self.zombies: list[ControllerNode] = []
        self.companion: ControllerNode | None = None
        self._ends: list[asyncio.Task[None]] = []
        self.steps = STEPS
        self.quiet_s = 3.0
        self.lost_call_chance = rng.choice([0.0, 0.01, 0.03])
        self.config = ControllerConfig(
            idle_s=rng.choice([0.5, 10.0]),
            blocking_deadline_s=rng.choice([20.0, limits.RPC_BLOCKING_DEADLINE_S]),
            sweep_period_s=rng.choice([0.2, 5.0]),
            sweep_age_s=rng.choice([0.0, 10.0]),
        )
        self.has_companion = rng.random() < 0.5

    async def start(self) -> None:
        """Start one and send clients to it; the companion, too, at the first time."""
        self.current = await self._new_node()
        if self.has_companion and self.companion is None:
            self.companion = await self._new_node()

    async def _new_node(self) -> ControllerNode:
        node = ControllerNode(self.world, self._random, self.config, self.lost_call_chance)
        await node.process.spawn(node.serve())
        return node

    async def until_ready(self) -> None:
        """Until calls can be answered for the first time."""
        ready = False
        while not ready:
            await asyncio.sleep(0.01)
            controller = self.current.controller if self.current is not None else None
            ready = controller is not None and controller.ready

    async def pending(self) -> list[str]:
        """What is listed as pending, with the controller that runs it."""
        node = self.current or self.companion
        assert node is not None
        assert node.controller is not None
        metadata = node.controller.services.core.context.store.metadata
        entries, _ = await node.process.spawn(metadata.entries(PENDING_TABLE, 1000, b""))
        marks = [decode(PendingRecord, entry.value, "") for entry in entries]
        return [f"{mark.what} {mark.scope}/{mark.name} of {mark.instance}" for mark in marks]

    async def segments(self) -> list[str]:
        """The names of all segments but those of the controller's own tables and of key-value tables."""
        node = self.current or self.companion
        assert node is not None
        return await node.process.spawn(_listed())

    def kill(self, node: ControllerNode) -> None:
        """End a controller at once."""
        if node.process.alive:
            self.world.crash(node.process)
        node.give_up()
        if node in self.zombies:
            self.zombies.remove(node)
        if self.current is node:
            self.current = None

    def any_alive(self) -> ControllerNode | None:
        """Where a client's call goes: mostly to the current one."""
        known = [node for node in self.zombies if not node.process.paused]
        if known and self._random.random() < 0.3:
            return self._random.choice(known)
        if self.companion is not None and (self.current is None or self._random.random() < 0.3):
            return self.companion
        return self.current

    async def trouble(self) -> None:
        """Crash them, let them are paused and be replaced, until cancelled."""
        rng = self._random
        while True:
            await asyncio.sleep(rng.random() ** 2 * self.quiet_s)
            if self.current is None:
                await self.start()
            elif rng.random() < 0.55:
                await self._crash(self.current)
            else:
                await self._replace(self.current)

    async def _crash(self, node: ControllerNode) -> None:
        await self._strike(node, lambda: self.kill(node))
        self.kill(node)
        if self.companion is not None:
            self.world.network.count("controller dead without a successor")
        await asyncio.sleep(self._random.random() ** 2 * (3 if self.companion is None else 60))
        await self.start()

    async def _replace(self, node: ControllerNode) -> None:
        """It is paused and is believed dead; later it goes on, for some time beside its successor."""
        pause_s = self._random.random() ** 2 * 40
        await self._strike(node, lambda: self.world.pause(node.process, pause_s))
        if not node.process.paused:
            self.world.pause(node.process, pause_s)
        await asyncio.sleep(self._random.random() * min(pause_s, 5))
        node.give_up()
        self.zombies.append(node)
        await self.start()
        left_s = self._random.random() * 1.5 * pause_s + self._random.random() * 10
        self._ends.append(asyncio.create_task(self._end_later(node, left_s)))

    async def _end_later(self, node: ControllerNode, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.kill(node)

    async def _strike(self, node: ControllerNode, strike: Callable[[], None]) -> None:
        rng = self._random
        step = rng.choices(list(self.steps), list(self.steps.values()))[0]
        calls = int(rng.random() ** 2 * (60 if step is None else 5))
        node.gate.arm(step, calls, after_effect=rng.random() < 0.5, strike=strike)
        await asyncio.wait([node.gate.struck], timeout=rng.random() ** 2 * 10)
        node.gate.disarm()

    async def calm(self) -> None:
        """One controller, the companion if there is one, and no trouble any more."""
        for end in self._ends:
            end.cancel()
        await asyncio.gather(*self._ends, return_exceptions=True)
        for node in list(self.zombies):
            self.kill(node)
        if self.current is not None:
            self.current.gate.disarm()
            await asyncio.sleep(0.01)  # a strike may be on its way already
        if self.companion is not None and self.current is not None:
            self.kill(self.current)
        elif self.companion is None and self.current is None:
            await self.start()
        self.lost_call_chance = 0.0
        for left in (self.current, self.companion):
            if left is not None:
                left.gate.disarm()
                left.gate.lost_chance = 0.0


async def _listed() -> list[str]:
    pool = ConnectionPool()
    lister = SegmentLister(pool, CONTAINERS, lambda _: STORE)
    found: list[str] = []
    for container_id in range(CONTAINERS):
        after: int | None = -1
        while after is not None:
            names, after = await lister.page(container_id, after)
            found += names
    await pool.close()
    return [name for name in found if name_by_controller(name) is not None and TABLE_SUFFIX not in name]


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


class SimControllerTransport:
    """Calls a controller; answers may be lost."""

    def __init__(self, controllers: Controllers, rng: random.Random, lost_answers: float) -> None:
        self._controllers = controllers
        self._random = rng
        self._lost_answers = lost_answers

    async def call(self, method: str, request: Any, reply: type[Any], deadline_s: float) -> Any:
        """See ControllerTransport."""
        rng = self._random
        await asyncio.sleep(rng.random() * 0.002)
        node = self._controllers.any_alive()
        if node is None or node.controller is None or not node.process.alive:
            raise UnavailableError("the controller does not answer")
        task: asyncio.Task[Any] = node.process.spawn(node.controller.services.call(method, request))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone by then
        waiting: set[asyncio.Future[Any]] = {task, node.given_up}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        unanswered = not task.done() or task.cancelled()
        if unanswered or rng.random() < self._lost_answers:
            if not unanswered:
                self._controllers.world.network.count("controller answer lost")
            if node.process.alive:
                node.process.spawn(_cancel(task))  # it learns that no caller waits for the answer, as soon as it can
            raise UnavailableError("the controller's answer was lost")
        try:
            answer = task.result()
        except TailraceError as error:
            raise error_of_status(error.grpc_code, str(error), "controller") from error
        assert isinstance(answer, reply)
        return answer

    async def close(self) -> None:
        """See ControllerTransport."""
