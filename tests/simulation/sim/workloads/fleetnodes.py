"""The processes of a simulated cluster: segment store workers on object logs, and controllers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from google.protobuf.message import Message

from sim.checks.memory import check_container
from sim.kubernetes import SimKubernetes
from sim.process import SimProcess
from sim.store import AttachedStore, SimObjectStore
from sim.violations import require
from sim.workloads.fleetledger import Owners
from sim.world import SimWorld
from tailrace.client.connections.connection import connect
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.control.transport import error_of_status
from tailrace.client.types import Endpoint
from tailrace.cluster.endpoint_follower import EndpointFollower
from tailrace.cluster.endpoints import ContainerEndpoints, EndpointMap
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.cluster.placer import Placer
from tailrace.cluster.prober import HelloProber
from tailrace.cluster.renewal import Renewer
from tailrace.cluster.renewal_thread import RenewalThread, _Callbacks
from tailrace.common import limits
from tailrace.common.budgets import Budgets
from tailrace.common.errors import DeadlineError, NotOwnerError, TailraceError, UnavailableError
from tailrace.controller.app import Controller
from tailrace.controller.metadata.metadata_store import TableMetadataStore
from tailrace.kernel import BLOCK_BYTES
from tailrace.log.object import ObjectLog
from tailrace.log.port import Buffer
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.cluster_service import ClusterStoreService, ClusterStoreSpec
from tailrace.segmentstore.worker.worker import Worker
from tailrace.storage.port import ObjectStore

T = TypeVar("T")
CLUSTER = "main"
CONTAINERS = 4
STORE_PORT = 12345
CLUSTER_ID = b"simulated-clustr"
CLUSTER_UUID = str(uuid.UUID(bytes=CLUSTER_ID))
CONNECTIONS_MAX = 1000
BUDGETS = Budgets(16 * limits.MIB, 8 * limits.MIB, 4 * limits.MIB, limits.MIB, limits.MIB, limits.MIB)
MAX_FRAME_BYTES = 64 * 1024


class WatchedLog(ObjectLog):
    """The object log; it reports to the ledger what its owner learns."""

    def __init__(self, store: ObjectStore, container: int, owner: str, owners: Owners, **options: Any) -> None:
        super().__init__(store, container, max_frame_bytes=MAX_FRAME_BYTES, **options)
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
        future.add_done_callback(self._note_acknowledgement)
        return future

    def _note_acknowledgement(self, done: asyncio.Future[int]) -> None:
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


class TaskRenewals(RenewalThread):
    """Renewals by a task of the same process: in the simulator a process is paused as a whole. See `Renewals`."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Renewer]]) -> None:
        super().__init__(connect)
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """See Renewals.start."""
        loop = asyncio.get_running_loop()
        registered: asyncio.Future[None] = loop.create_future()

        def answer(error: TailraceError | None) -> None:
            if registered.done():
                return
            if error is None:
                registered.set_result(None)
            else:
                registered.set_exception(error)

        self._renewing = loop.create_task(self._run(_Callbacks(answer, self._left.set, self._superseded.set)))
        await registered

    async def stop(self) -> None:
        """See Renewals.stop."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])


class SmallSpec(ClusterStoreSpec):
    """The specification of a worker with the memory of the simulator."""

    @property
    def budgets(self) -> Budgets:
        """See ClusterStoreSpec.budgets."""
        return BUDGETS


class SimStoreService(ClusterStoreService):
    """The product's worker: its ways out lead into the simulated world, and the ledger sees epochs and logs."""

    def __init__(self, node: StoreNode, world: SimWorld, *, tried: bool) -> None:
        self._node = node
        self._world = world
        spec = SmallSpec(
            namespace="default",
            cluster=CLUSTER,
            cluster_id=CLUSTER_UUID,
            container_count=CONTAINERS,
            worker=node.name,
            host=node.endpoint.host,
            port=node.endpoint.port,
            tier2="s3://simulated",
            s3_endpoint=None,
            s3_region=None,
            cache_bytes=BUDGETS.cache_bytes,
            attribute_bytes=BUDGETS.attribute_bytes,
            tried=tried,
        )
        clock, entropy = world.clock(node.name), world.entropy(node.process.name)
        super().__init__(spec, clock, entropy, CONNECTIONS_MAX, lambda said: None)

    def _make_renewals(self) -> RenewalThread:
        return TaskRenewals(self._renewer)

    def _open_store(self) -> ObjectStore:
        return self._node.store

    def _connect(self) -> Any:
        return self._node.api

    async def _delete_left_overs(self) -> None:
        """Do nothing: simulated objects have no times, so none of a probe would ever be old."""

    def _open_log(self, container_id: int) -> ObjectLog:
        return WatchedLog(
            self._store,
            container_id,
            self._node.process.name,
            self._node.owners,
            opened_epoch=self._opened[container_id],
            scan_slots=self._scan_slots,
            put_window=self._put_window,
        )

    async def _next_epoch(self, container_id: int, floor: int) -> int:
        owners, owner = self._node.owners, self._node.process.name
        known, asked_at_s = owners.known(container_id), self._world.loop.time()
        epoch = await super()._next_epoch(container_id, floor)
        owners.took(container_id, floor, epoch, owner, known)
        if not self._node.named(container_id, self._node.name, asked_at_s):
            owners.unnamed(container_id, owner)
        return epoch

    async def listen(self) -> SegmentStoreServer:
        """Listen in the simulated network."""
        node = self._node
        # Another machine may have taken over the name while this one started.
        host = node.process.name if node.lost_address else node.endpoint.host
        await self.server.start(host, node.endpoint.port)
        return self.server


class StoreNode:
    """One incarnation of a segment store worker: with all that it has on Kubernetes."""

    def __init__(
        self,
        world: SimWorld,
        kubernetes: SimKubernetes,
        number: int,
        owners: Owners,
        named: Callable[[int, str, float], bool],
        *,
        tried: bool = False,
    ) -> None:
        self.name = f"store{number}"
        self.number = number
        self.endpoint = Endpoint(self.name, STORE_PORT)
        self.process: SimProcess = world.process(self.name)
        self.store = CutStore(world.store, self.process)
        self.api = kubernetes.attach(self.process)
        self.owners = owners
        self.named = named
        self.worker: Worker | None = None
        self.server: SegmentStoreServer | None = None
        self.lost_address = False
        self._world = world
        self._tried = tried
        self._leave = asyncio.Event()
        self._left = asyncio.Event()

    async def serve(self) -> None:
        """Do what the process of a worker does; returns when another process took its place."""
        service = SimStoreService(self, self._world, tried=self._tried)
        await service.start()
        self.worker = service.worker
        self.server = await service.listen()
        try:
            await service.run(self._leave)
        except NotOwnerError:
            await service.close()
            return
        await service.close()
        self._left.set()
        await asyncio.get_running_loop().create_future()  # its pod ends later

    @property
    def in_flight(self) -> InFlightBudget | None:
        """The budget of its server."""
        return self.server._context.in_flight if self.server is not None else None

    def lose_address(self) -> None:
        """New connections reach the next process that listens; existing ones stay."""
        self.lost_address = True
        listener: Any = self.server._server if self.server is not None else None
        if listener is not None:
            self._world.network.unlisten(listener)

    def runs(self, container: int) -> bool:
        """Whether the container is open here."""
        worker = self.worker
        return worker is not None and any(found.container_id == container for found in worker.containers())

    def check_memory(self) -> None:
        """Raise Violation when a budget is exceeded."""
        if self.worker is None or not self.process.alive:
            return
        cache = self.worker.cache.cache.snapshot()
        used = cache.metadata_bytes + cache.total_blocks * BLOCK_BYTES
        require(used <= BUDGETS.cache_bytes, f"a cache of {BUDGETS.cache_bytes} bytes takes {used}")
        in_flight = self.in_flight
        if in_flight is None:
            return
        outstanding, bound = in_flight.outstanding_bytes, 2 * in_flight.max_bytes
        bound += limits.CONNECTION_IN_FLIGHT_MAX_BYTES
        require(0 <= outstanding <= bound, f"{outstanding} bytes are in flight, the bound is {bound}")
        for container in self.worker.containers():
            check_container(container, limits.WRITER_BLOCK_MAX_BYTES, limits.ATTRIBUTE_PAGES_CACHED_MAX_BYTES)

    async def drain(self) -> None:
        """Hand everything over; returns when the process would end."""
        self._leave.set()
        await self._left.wait()


class ControllerNode:
    """One incarnation of a controller."""

    def __init__(self, world: SimWorld, kubernetes: SimKubernetes, number: int) -> None:
        self.name = f"controller{number}"
        self.process: SimProcess = world.process(self.name)
        self.dead: asyncio.Future[None] = world.loop.create_future()
        self.controller: Controller | None = None
        self._api = kubernetes.attach(self.process)
        self._world = world

    async def serve(self) -> None:
        """Answer calls, as soon as the tables can be reached."""
        clock, entropy = self._world.clock(self.name), self._world.entropy(self.process.name)
        follower = EndpointFollower(self._api, CLUSTER, EndpointMap(CONTAINERS))

        async def locate(segment: str) -> Endpoint:
            return Endpoint(*follower.endpoints.endpoint_of(segment))

        segments = SegmentClient(ConnectionPool(), locate, entropy=entropy)
        self.controller = Controller(TableMetadataStore(segments), segments, follower.endpoints, clock, entropy)
        self.controller.start_when_possible()
        await follower.run()


class OperatorNode:
    """One incarnation of the operator's placer."""

    def __init__(self, world: SimWorld, kubernetes: SimKubernetes, unanswered: Callable[[str], None]) -> None:
        self.process: SimProcess = world.process("operator")
        self._api = kubernetes.attach(self.process)
        self._unanswered = unanswered
        self._prober = HelloProber()

    async def serve(self) -> None:
        """Place containers for ever."""
        await Placer(self._api, CLUSTER, self).run()

    async def answers(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """See Prober.answers: whether the worker says Hello."""
        if endpoints is None:
            return False
        endpoint = Endpoint(endpoints.internal.host, endpoints.internal.port)
        try:
            async with asyncio.timeout(limits.PROBE_DEADLINE_S):
                connection = await connect(endpoint)
        except (TimeoutError, TailraceError):
            self._unanswered(worker)
            return False
        await connection.close()
        return True

    async def refuses(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """See Prober.refuses."""
        refuses = await self._prober.refuses(worker, endpoints)
        if refuses:
            self._unanswered(worker)
        return refuses


def stream_cluster() -> dict[str, Any]:
    """What a user applies."""
    kind = STREAM_CLUSTERS
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": CLUSTER},
        "spec": {"containers": CONTAINERS, "adoptClusterId": CLUSTER_UUID},
    }


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Whatever cannot be reached comes back."""
    while True:
        try:
            return await call()
        except TailraceError:
            await asyncio.sleep(0.5)


class ControllerLink:
    """Calls from one process to whichever controller answers; answers may be late or lost."""

    def __init__(
        self, world: SimWorld, caller: SimProcess, controllers: Callable[[], Sequence[ControllerNode]]
    ) -> None:
        self._world = world
        self._caller = caller
        self._controllers = controllers
        self._turn = 0

    def _serves(self, node: ControllerNode) -> bool:
        reached = not self._world.network.partitions.lies_between(self._caller, node.process)
        return node.controller is not None and reached

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
        ends: list[asyncio.Future[Any]] = [task, node.dead]
        await asyncio.wait(ends, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(network.latency_s())
        if not task.done() or network.partitions.lies_between(node.process, self._caller):
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
