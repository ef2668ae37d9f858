"""The processes of a simulated cluster: segment store workers on object logs, and controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from sim.process import SimProcess
from sim.store import AttachedStore, SimObjectStore
from sim.workloads.fleetledger import Owners
from sim.world import SimWorld
from tailrace.client.pool import ConnectionPool
from tailrace.client.segments import SegmentClient
from tailrace.client.transport import error_of_status
from tailrace.client.types import Endpoint
from tailrace.cluster.endpoints import EndpointMap
from tailrace.common import limits
from tailrace.common.budgets import Budgets
from tailrace.common.errors import DeadlineError, TailraceError, UnavailableError
from tailrace.controller.app import Controller
from tailrace.controller.metadata import TableMetadataStore
from tailrace.log.object import ObjectLog
from tailrace.log.port import Buffer
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker import Worker, WorkerPorts
from tailrace.storage.port import ObjectStore

CONTAINERS = 4
STORE_PORT = 12345
CLUSTER_ID = b"simulated-clustr"
BUDGETS = Budgets(16 * limits.MIB, 8 * limits.MIB, 4 * limits.MIB, limits.MIB, limits.MIB, limits.MIB)
MAX_FRAME_BYTES = 64 * 1024


class WatchedLog(ObjectLog):
    """The object log, and what its owner is told, for the ledger."""

    def __init__(self, store: ObjectStore, container: int, owner: str, owners: Owners) -> None:
        super().__init__(store, container, max_frame_bytes=MAX_FRAME_BYTES)
        self._container = container
        self._owner = owner
        self._owners = owners
        self._epoch = 0

    async def open(self, epoch: int, nonce: bytes) -> None:
        """See DurableLog.open."""
        await super().open(epoch, nonce)
        self._epoch = epoch
        self._owners.opened(self._container, epoch, self.next_sequence, self._owner)

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[int]:
        """See DurableLog.append."""
        future = super().append(payload)
        future.add_done_callback(self._told)
        return future

    def _told(self, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._owners.acknowledged(self._container, self._epoch, done.result())


class CutStore(AttachedStore):
    """The object store as one process sees it: now and then it cannot be reached from there."""

    def __init__(self, store: SimObjectStore, process: SimProcess) -> None:
        super().__init__(store, process)
        self._cut_off: asyncio.Future[None] | None = None

    def cut(self) -> None:
        """Requests and answers are lost from now on."""
        if self._cut_off is None:
            self._store.count("store cut off")
            self._cut_off = self._store.loop.create_future()

    def heal(self) -> None:
        """It can be reached again; what was under way fails."""
        if self._cut_off is not None:
            self._cut_off.set_result(None)
            self._cut_off = None

    async def _request(self, name: str, key: str, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        await self._pass(name, key)
        try:
            return await super()._request(name, key, effect, writes=writes)
        finally:
            await self._pass(name, key)

    async def _pass(self, name: str, key: str) -> None:
        if self._cut_off is not None:
            await asyncio.shield(self._cut_off)
            raise DeadlineError(f"{name} {key}: the connection to the store was lost")


class StoreNode:
    """One incarnation of a segment store worker."""

    def __init__(self, world: SimWorld, number: int, owners: Owners) -> None:
        self.name = f"store{number}"
        self.number = number
        self.endpoint = Endpoint(self.name, STORE_PORT)
        self.process: SimProcess = world.process(self.name)
        self.store = CutStore(world.store, self.process)
        self.worker: Worker | None = None
        self._world = world
        self._owners = owners

    def _open_log(self, container: int) -> ObjectLog:
        return WatchedLog(self.store, container, self.process.name, self._owners)

    async def serve(self, take: Callable[[int, int], Awaitable[int]]) -> None:
        """Listen; containers come later."""
        world = self._world
        clock, entropy = world.clock(), world.entropy(self.process.name)

        async def next_epoch(container: int, floor: int) -> int:
            epoch = await take(container, floor)
            self._owners.took(container, floor, epoch, self.process.name)
            return epoch

        ports = WorkerPorts(self.store, self._open_log, next_epoch, clock, entropy, CLUSTER_ID)
        worker = Worker(CONTAINERS, (), BUDGETS, ports)
        await worker.start()
        server = SegmentStoreServer(worker, InFlightBudget(BUDGETS.in_flight_bytes), clock, entropy)
        await server.start(self.endpoint.host, self.endpoint.port)
        self.worker = worker


class ControllerNode:
    """One incarnation of a controller."""

    def __init__(self, world: SimWorld, number: int, endpoints: EndpointMap) -> None:
        self.name = f"controller{number}"
        self.process: SimProcess = world.process(self.name)
        self.dead: asyncio.Future[None] = world.loop.create_future()
        self.controller: Controller | None = None
        self._world = world
        self._endpoints = endpoints

    async def serve(self) -> None:
        """Answer calls, as soon as the tables can be reached."""
        clock, entropy = self._world.clock(), self._world.entropy(self.process.name)

        async def locate(segment: str) -> Endpoint:
            return Endpoint(*self._endpoints.endpoint_of(segment))

        segments = SegmentClient(ConnectionPool(), locate, entropy=entropy)
        self.controller = Controller(TableMetadataStore(segments), segments, self._endpoints, clock, entropy)
        self.controller.start_when_possible()


class ControllerLink:
    """Calls from one process to whichever controller answers; answers may be late or lost."""

    def __init__(self, world: SimWorld, caller: str, controllers: Callable[[], Sequence[ControllerNode]]) -> None:
        self._world = world
        self._caller = caller
        self._controllers = controllers
        self._turn = 0
        self._tables_exist = False
        """The readiness of a controller that has never seen its tables keeps calls away from it."""

    def _serves(self, node: ControllerNode) -> bool:
        if node.controller is None:
            return False
        self._tables_exist = self._tables_exist or node.controller.ready
        return self._tables_exist and not self._world.network.are_apart(self._caller, node.name)

    async def call(self, method: str, request: Message, reply: type[Any], deadline_s: float) -> Any:
        """See ControllerTransport."""
        network = self._world.network
        await asyncio.sleep(network.latency_s())
        nodes = [node for node in self._controllers() if node.process.alive]
        if not nodes:
            raise UnavailableError("no controller can be reached")
        node = nodes[self._turn % len(nodes)]
        if not self._serves(node):
            self._turn += 1
            raise UnavailableError(f"{node.name} cannot be reached")
        assert node.controller is not None
        task = node.process.spawn(node.controller.services.call(method, request))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([task, node.dead], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(network.latency_s())
        if not task.done() or network.are_apart(self._caller, node.name):
            self._turn += 1
            raise UnavailableError(f"the answer of {node.name} was lost")
        try:
            answer = task.result()
        except TailraceError as error:
            raise error_of_status(error.grpc_code, str(error), node.name) from error
        assert isinstance(answer, reply)
        return answer

    async def close(self) -> None:
        """See ControllerTransport."""
