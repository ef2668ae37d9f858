"""The whole server (store, controller, our client) over the simulated network, under crashes, power cuts and resets.

The clients and the checker are those of the tests that kill real processes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from google.protobuf.message import Message

from harness.history import History, Outcome
from harness.workload import Workload, create_stream, read_from_head
from sim.checks.serverwatch import ServerWatch
from sim.knobs import silent_logs, turned
from sim.process import SimProcess
from sim.swarm import Swarm
from sim.violations import require
from sim.workloads.serverfolder import ServerFolder
from sim.world import SimWorld
from tailrace.client import Client, StreamName
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.types import Endpoint as StoreEndpoint
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint, EndpointMap
from tailrace.common import limits
from tailrace.common.budgets import Budgets
from tailrace.common.errors import DeadlineError, TailraceError, UnavailableError
from tailrace.controller.app import Controller
from tailrace.controller.metadata.metadata_store import TableMetadataStore
from tailrace.controller.workflows.context import ControllerConfig
from tailrace.segmentstore.background import storage_writer
from tailrace.segmentstore.container import operation_processor
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.worker import Worker

CONTAINERS = 2
PORT = 12345
STREAM = StreamName("scope", "stream")
FILE_BYTES = 1024 * 1024
START_DEADLINE_S = 120.0
SETTLE_DEADLINE_S = 3600.0
BUDGETS = Budgets(
    cache_bytes=16 << 20,
    in_flight_bytes=8 << 20,
    connection_in_flight_bytes=4 << 20,
    send_buffer_bytes=4 << 20,
    upload_bytes=4 << 20,
    attribute_bytes=6 << 20,
)


class ControllerLink:
    """Calls from the clients' process to the controller of whichever server runs: late, and lost when it dies."""

    def __init__(self, workload: ServerWorkload) -> None:
        self._workload = workload
        self._under_way: dict[asyncio.Future[Any], SimProcess] = {}

    async def call(self, method: str, request: Message, reply: type[Any], deadline_s: float) -> Any:
        """See ControllerTransport."""
        world, server = self._workload.world, self._workload.server
        await asyncio.sleep(world.network.latency_s())
        if server is None or not server.alive or self._workload.controller is None:
            raise UnavailableError("the controller cannot be reached")
        services = self._workload.controller.services
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._under_way[answer] = server

        def answered(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if task.cancelled():
                error = UnavailableError("the controller ended")
            world.loop.call_world(world.network.latency_s(), self._deliver, answer, task, error)

        server.spawn(services.call(method, request)).add_done_callback(answered)
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            raise DeadlineError(f"no answer to {method}") from None
        finally:
            del self._under_way[answer]

    @staticmethod
    def _deliver(answer: asyncio.Future[Any], task: asyncio.Task[Any], error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(task.result())
        else:
            answer.set_exception(error)

    def server_died(self, server: SimProcess) -> None:
        """Fail the calls that it will never answer."""
        for answer, owner in list(self._under_way.items()):
            if owner is server and not answer.done():
                answer.set_exception(UnavailableError("the connection to the controller was lost"))

    async def close(self) -> None:
        """See ControllerTransport."""


class ServerWorkload:
    """One seed: clients write and commit all the time while the server dies some times; then calm, then the check."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"{seed}-server-workload")
        self.random = rng
        self.world = SimWorld(seed)
        self.seed = seed
        self.server: SimProcess | None = None
        self.controller: Controller | None = None
        self.worker: Worker | None = None
        self.watch = ServerWatch(self.world.loop, CONTAINERS)
        self.history = History()
        self.folder = ServerFolder(self.world, range(CONTAINERS))
        self.power_cuts = rng.random() < 0.7
        self.sync_error_chance = rng.choice([0.0, 0.0, 0.0, 0.001])
        self.store_failure_chance = rng.choice([0.0, 0.0, 0.1])
        self.store_loss_chance = rng.choice([0.0, 0.0, 0.1])
        if self.folder.kind == "object":  # a start sends dozens of requests and fails when one of them does
            self.store_failure_chance = min(self.store_failure_chance, 0.005)
            self.store_loss_chance = min(self.store_loss_chance, 0.005)
        self.reset_chance = rng.choice([0.0, 0.2, 0.5])
        self.segments = rng.randint(1, 4)
        max_frame_bytes = rng.choice([16 * 1024, 64 * 1024])
        self.swarm = Swarm(
            self.world,
            disk=True,
            store=True,
            processes=["server", "clients"],
            clocks=["server", "clients"],
            connections=[("clients", "server")],
            longest_s=15.0,
        )
        self.link = ControllerLink(self)
        self.knobs = {
            (limits, "METADATA_BUCKETS"): 2,
            (limits, "LOG_FILE_BYTES"): FILE_BYTES,
            (limits, "LOG_FRAME_MAX_BYTES"): max_frame_bytes,
            (limits, "LOG_RESERVE_BYTES"): 0,
            (limits, "CHECKPOINT_INTERVAL_OPERATIONS"): rng.choice([50, 1000]),
            (limits, "FLUSH_THRESHOLD_BYTES"): rng.choice([20_000, 1_000_000]),
            (limits, "FLUSH_INTERVAL_S"): rng.choice([0.5, 5.0]),
            (limits, "FLUSH_ATTRIBUTES_THRESHOLD"): rng.choice([4, 1000]),
            (limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX"): rng.choice([4, 4096]),
            (storage_writer, "_SHARED_MAX_BYTES"): 100_000,
            (operation_processor, "_ARENA_BYTES"): rng.choice([65_536, 1024 * 1024]),
        }

    @property
    def steps(self) -> int:
        """Events that were acknowledged."""
        return self.history.acknowledged

    def run(self) -> None:
        """Raises Violation."""
        with silent_logs(), turned(self.knobs), self.world as world:
            try:
                world.run(self._main())
            finally:
                if self.worker is not None:
                    self.folder.opened(self.worker)
                self.folder.check()
            require(not world.store.overwritten, f"objects were overwritten: {world.store.overwritten}")

    async def _main(self) -> None:
        await self._start_server()
        clients = self.world.process("clients")
        scenario = clients.spawn(self._clients())
        await asyncio.wait([scenario])
        scenario.result()

    # -- the server

    async def _start_server(self) -> None:
        """Start a server despite the faults; when they never leave it the time to start, without them."""
        try:
            await self._start_within(START_DEADLINE_S)
        except TimeoutError:
            require(self._faulty(), f"the server did not start within {START_DEADLINE_S:.0f} s")
            self._kill(power=False)
            self._faults(on=False)
            await self._start_within(START_DEADLINE_S)
            self._faults(on=True)

    async def _start_within(self, seconds: float) -> None:
        """Start a server, again when it dies while it starts of its disk's or its store's errors."""
        async with asyncio.timeout(seconds):
            while True:
                process = self.server = self.world.process("server")
                starting = process.spawn(self._serve(process))
                await asyncio.wait([starting])
                if starting.exception() is None:
                    return
                require(self._faulty(), f"the server did not start: {starting.exception()!r}")
                self._kill(power=False)
                await asyncio.sleep(1)

    def _faulty(self) -> bool:
        failing = self.sync_error_chance or self.store_failure_chance or self.store_loss_chance
        return bool(failing) or self.swarm.hurts_log or self.swarm.hurts_store

    async def _serve(self, process: SimProcess) -> None:
        world = self.world
        entropy, clock = world.entropy(process.name), world.clock("server")
        self.worker = Worker(CONTAINERS, range(CONTAINERS), BUDGETS, await self.folder.ports(process))
        await self.worker.start()
        self.folder.opened(self.worker)
        store = SegmentStoreServer(self.worker, InFlightBudget(BUDGETS.in_flight_bytes), clock, entropy)
        await store.start("127.0.0.1", PORT)
        self.watch.follow(self.worker, store)

        async def locate(segment: str) -> StoreEndpoint:
            return StoreEndpoint("127.0.0.1", PORT)

        segments = SegmentClient(ConnectionPool(), locate, entropy=entropy)
        published = ContainerEndpoints(Endpoint("127.0.0.1", PORT))
        containers = EndpointMap(CONTAINERS, dict.fromkeys(range(CONTAINERS), published))
        config = ControllerConfig(sole=True)
        controller = Controller(TableMetadataStore(segments), segments, containers, clock, entropy, config)
        await controller.start()
        self.controller = controller

    def _kill(self, *, power: bool) -> None:
        assert self.server is not None
        server, self.controller = self.server, None
        self.watch.ended()
        self.world.crash(server, power=power)
        self.link.server_died(server)

    # -- the scenario

    async def _clients(self) -> None:
        client = Client(self.link, clock=self.world.clock("clients"), entropy=self.world.entropy("client"))
        await create_stream(client, STREAM, self.segments)
        workload = Workload(
            *(client, STREAM, self.history, self.seed),
            writers=2,
            transactors=1,
            bytes_per_second=100_000,
            writers_give_up=True,  # outages of the store and partitions may come one after the other for minutes
        )
        async with workload.running():
            nemesis = self._in_world(self._trouble())
            while not nemesis.done():
                await asyncio.wait([nemesis], timeout=5)
                workload.check_alive()
            nemesis.result()
            await asyncio.sleep(self.random.random() * 3)
        async with asyncio.timeout(SETTLE_DEADLINE_S):
            await workload.settle()
            await self._check(client)
            await self._in_world(self._flush_and_restart())
            await self._check(client)
        await client.close()
        await self._in_world(self._lose_logs())
        outcomes = Counter(record.outcome for record in self.history.transactions.values())
        require(not outcomes[Outcome.UNKNOWN], f"transactions without an outcome: {outcomes}")

    def _in_world(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task without an owner: the clients' process only waits for it."""
        return self.world.spawn(work)

    async def _check(self, client: Client) -> None:
        broken = self.history.check(await read_from_head(client, STREAM))
        require(not broken, f"{Counter(item.kind.value for item in broken)}: {broken[:5]}")

    def _faults(self, *, on: bool) -> None:
        if on:
            self.swarm.begin()
        else:
            self.swarm.end()
        self.world.disk.sync_error_chance = self.sync_error_chance if on else 0.0
        self.world.store.failure_chance = self.store_failure_chance if on else 0.0
        self.world.store.lost_reply_chance = self.store_loss_chance if on else 0.0

    async def _trouble(self) -> None:
        """Kill the server some times, also while it starts; break connections in between."""
        rng = self.random
        self._faults(on=True)
        swarming = asyncio.create_task(self.swarm.trouble())
        for _ in range(rng.randint(1, 5)):
            power = self.power_cuts and rng.random() < 0.6
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(rng.random() * 2)
                self.world.network.reset_some(self.reset_chance)
            await asyncio.sleep(rng.random() * 2)
            self._kill(power=power)
            self.folder.lose_epochs()
            await asyncio.sleep(rng.random())
            if rng.random() < 0.4:
                process = self.server = self.world.process("server")
                starting = process.spawn(self._serve(process))
                await asyncio.sleep(rng.random() * 0.5)
                if starting.done() and starting.exception() is not None:
                    require(self._faulty(), f"the server did not start: {starting.exception()!r}")
                self._kill(power=power)
            await self._start_server()
        for _ in range(rng.randint(0, 8)):  # what the last server holds for connections that break must come back
            await asyncio.sleep(rng.random() * 0.5)
            self.world.network.reset_some(self.reset_chance)
        swarming.cancel()
        self._faults(on=False)

    async def _flush_and_restart(self) -> None:
        assert self.server is not None
        assert self.worker is not None
        flushing = self.server.spawn(self._flush(self.worker))
        await asyncio.wait([flushing])
        flushing.result()
        await self.watch.idle()
        self._kill(power=True)
        await self._start_server()

    async def _lose_logs(self) -> None:
        self._kill(power=False)
        self.folder.lose_logs()
        process = self.server = self.world.process("server")
        starting = process.spawn(self._start_without_logs(process))
        await asyncio.wait([starting])
        starting.result()

    async def _start_without_logs(self, process: SimProcess) -> None:
        worker = Worker(CONTAINERS, range(CONTAINERS), BUDGETS, await self.folder.ports(process))
        await worker.start()
        self.folder.check_refused(worker)
        await worker.close()

    async def _flush(self, worker: Worker) -> None:
        for container in range(CONTAINERS):
            while True:
                try:
                    await worker.container_by_id(container).flush_to_storage()
                    break
                except TailraceError:
                    await asyncio.sleep(1)  # it is being opened again after the last fault
