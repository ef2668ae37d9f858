"""Reader groups, writers, transactions and scales of our client against the whole server, under crashes and resets."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from typing import Any

from sim.knobs import silent_logs, turned
from sim.process import SimProcess
from sim.violations import require
from sim.world import SimWorld
from tailrace.client.asyncclient import Client
from tailrace.client.groupstate.records import Position
from tailrace.client.model import ScalingPolicy, StreamConfig, StreamName, TransactionState
from tailrace.client.pool import ConnectionPool
from tailrace.client.readergroup import group_config
from tailrace.client.segments import SegmentClient
from tailrace.client.transport import error_of_status
from tailrace.client.types import Endpoint
from tailrace.client.writer import EventWriter
from tailrace.cluster.endpoints import ContainerEndpoints, EndpointMap
from tailrace.common import limits
from tailrace.common.budgets import Budgets
from tailrace.common.errors import (
    AlreadyExistsError,
    IllegalStateError,
    OverloadedError,
    TailraceError,
    UnavailableError,
    WriteConflictError,
)
from tailrace.controller.app import Controller
from tailrace.controller.metadata import TableMetadataStore
from tailrace.log.file import FileLog
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker import Worker, WorkerPorts

CONTAINERS = 2
STORE = Endpoint("127.0.0.1", 12345)
STREAM = StreamName("scope", "stream")
CLUSTER_ID = b"simulated-clustr"
LOG_FILE_BYTES = 1024 * 1024
CACHE_BYTES = 16 * limits.MIB
CALM_DEADLINE_S = 3600.0


class Node:
    """One incarnation of the server: segment store and controller in one process."""

    def __init__(self, world: SimWorld, epochs: dict[int, int]) -> None:
        self.process: SimProcess = world.process("server")
        self.dead: asyncio.Future[None] = world.loop.create_future()
        self.controller: Controller | None = None
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
        clock, entropy = self._world.clock(), self._world.entropy(self.process.name)
        store = self._world.store.attach(self.process)
        budgets = Budgets(CACHE_BYTES, 8 * limits.MIB, 4 * limits.MIB, limits.MIB, limits.MIB, limits.MIB)
        ports = WorkerPorts(store, self._open_log, self._next_epoch, clock, entropy, CLUSTER_ID)
        worker = Worker(CONTAINERS, range(CONTAINERS), budgets, ports)
        await worker.start()
        await SegmentStoreServer(worker, InFlightBudget(budgets.in_flight_bytes), clock, entropy).start(*_address())

        async def locate(_: str) -> Endpoint:
            return STORE

        segments = SegmentClient(ConnectionPool(), locate, entropy=entropy)
        endpoints = EndpointMap(CONTAINERS, {i: ContainerEndpoints(STORE) for i in range(CONTAINERS)})
        controller = Controller(TableMetadataStore(segments), segments, endpoints, clock, entropy)
        await controller.start()
        self.controller = controller


def _address() -> tuple[str, int]:
    return STORE.host, STORE.port


class SimControllerTransport:
    """Calls the controller of whichever node lives; answers may be lost."""

    def __init__(self, workload: ClusterWorkload) -> None:
        self._workload = workload

    async def call(self, method: str, request: Any, reply: type[Any], deadline_s: float) -> Any:
        """See ControllerTransport."""
        rng = self._workload.random
        await asyncio.sleep(rng.random() * 0.002)
        node = self._workload.node
        if node is None or node.controller is None or not node.process.alive:
            raise UnavailableError("the controller does not answer")
        task = node.process.spawn(node.controller.services.call(method, request))
        await asyncio.wait([task, node.dead], return_when=asyncio.FIRST_COMPLETED)
        if not task.done() or rng.random() < self._workload.lost_answers:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise UnavailableError("the controller's answer was lost")
        try:
            answer = task.result()
        except TailraceError as error:
            raise error_of_status(error.grpc_code, str(error), "controller") from error
        assert isinstance(answer, reply)
        return answer

    async def close(self) -> None:
        """See ControllerTransport."""


class ClusterWorkload:
    """One seed: clients of all kinds against a server that is killed now and then, then calm, then the check."""

    def __init__(self, seed: int) -> None:
        rng = self.random = random.Random(f"{seed}-cluster-workload")
        self.world = SimWorld(seed)
        self.node: Node | None = None
        self.steps = 0
        self.lost_answers = rng.choice([0.0, 0.0, 0.02])
        self.keys = [f"key{number}" for number in range(rng.randint(1, 8))]
        self.written: dict[str, list[bytes]] = defaultdict(list)
        self.transactions: list[tuple[list[bytes], bool | None]] = []
        self.read: list[bytes] = []
        self.turns = rng.randint(5, 150)
        self.pause_s = rng.choice([0.02, 0.2, 1.0])
        self.segments = rng.randint(1, 4)
        self.crashes = rng.randint(0, 4)
        self.network_faults = rng.random() < 0.5
        self.readers = rng.randint(1, 2)
        self.writing = True
        self.epochs: dict[int, int] = {}
        self.knobs: dict[tuple[Any, str], Any] = {
            (limits, "METADATA_BUCKETS"): 2,
            (limits, "CHECKPOINT_INTERVAL_OPERATIONS"): rng.choice([50, 100_000]),
            (limits, "FLUSH_THRESHOLD_BYTES"): rng.choice([3_000, 100_000]),
            (limits, "FLUSH_INTERVAL_S"): rng.choice([0.5, 30.0]),
            (limits, "READER_REQUEST_BYTES"): rng.choice([200, 10_000, limits.MIB]),
            (limits, "WRITER_BLOCK_MAX_BYTES"): rng.choice([300, 10_000, limits.MIB]),
            (limits, "READER_GROUP_COMPACT_BYTES"): rng.choice([500, 512 * limits.KIB]),
            (limits, "READER_GROUP_COMPACT_PROBABILITY"): rng.choice([0.05, 0.5]),
        }

    def run(self) -> None:
        """Raises Violation."""
        with silent_logs(), turned(self.knobs), self.world as world:
            world.run(self._main())

    async def _main(self) -> None:
        clients = self.world.process("clients")
        await self._start_node()
        work = clients.spawn(self._clients())
        disturbing = asyncio.create_task(self._disturb())
        for _ in range(self.crashes):
            await self._until_killed(work)
            if work.done():
                break
            await asyncio.sleep(self.random.random() ** 2 * 3)
            await self._start_node()
        disturbing.cancel()
        await asyncio.wait([disturbing])
        self.world.network.heal()
        async with asyncio.timeout(CALM_DEADLINE_S):
            await work

    async def _disturb(self) -> None:
        """Break connections, and cut the clients off for a while."""
        while self.network_faults:
            await asyncio.sleep(self.random.random() ** 2 * 3)
            if self.random.random() < 0.9:
                self.world.network.reset_some(0.5)
            else:
                self.world.network.cut("clients", "server")
                await asyncio.sleep(self.random.random() ** 3 * 60)
                self.world.network.heal()

    async def _start_node(self) -> None:
        self.node = Node(self.world, self.epochs)
        await self.node.process.spawn(self.node.serve())

    async def _until_killed(self, work: asyncio.Future[None]) -> None:
        """Kill the server at some moment, often inside an operation of its disk."""
        node = self.node
        assert node is not None
        power = self.random.random() < 0.5
        waiting: set[asyncio.Future[None]] = {work}
        if self.random.random() < 0.7:
            operations = int(self.random.random() ** 2 * 300)
            waiting.add(self.world.crash_at_disk_operation(node.process, operations, power=power))
        seconds = self.random.random() ** 2 * 10
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and node.process.alive:
            return
        if node.process.alive:
            self.world.crash(node.process, power=power)
        node.dead.set_result(None)
        self.node = None

    # -- clients ------------------------------------------------------------------------------------------------

    async def _clients(self) -> None:
        rng = self.random
        client = Client(SimControllerTransport(self), clock=self.world.clock(), entropy=self.world.entropy("clients"))
        await client.streams.create_scope(STREAM.scope)
        await client.streams.create_stream(STREAM, StreamConfig(ScalingPolicy.fixed(self.segments)))
        groups = client.reader_groups(STREAM.scope)
        checkpoint_ms = rng.choice([500, 3000])
        await groups.create("group", group_config({STREAM: None}, automatic_checkpoint_ms=checkpoint_ms))
        reading = [asyncio.create_task(self._read(client, f"reader{number}")) for number in range(self.readers)]
        async with client.writer(STREAM) as writer:
            await asyncio.gather(self._write(writer), self._scale(client), self._transact(client))
        self.writing = False
        await asyncio.gather(*reading)
        await self._check(client)
        await client.close()

    async def _write(self, writer: EventWriter) -> None:
        rng = self.random
        for _ in range(self.turns):
            key = rng.choice(self.keys)
            batch = [self._event(key) for _ in range(rng.choice([1, 1, 3, 30]))]
            await writer.ready()
            writer.write_events(batch, key)
            self.steps += len(batch)
            await asyncio.sleep(rng.random() ** 4 * self.pause_s)

    def _event(self, key: str) -> bytes:
        event = f"{key}:{len(self.written[key])}:".encode() + b"x" * self.random.choice([0, 10, 300])
        self.written[key].append(event)
        return event

    async def _scale(self, client: Client) -> None:
        for _ in range(self.random.choice([0, 1, 2, 3])):
            await asyncio.sleep(self.random.random() * 10)
            with contextlib.suppress(WriteConflictError, IllegalStateError):  # another scale, or its answer was lost
                await client.streams.scale_to(STREAM, self.random.randint(1, 4))

    async def _transact(self, client: Client) -> None:
        rng = self.random
        async with client.transactional_writer(STREAM, lease_ms=30_000) as transactions:
            for number in range(rng.choice([0, 1, 3])):
                await asyncio.sleep(rng.random() * 4)
                events = [b"txn%d:%d:" % (number, index) for index in range(rng.randint(1, 20))]
                try:
                    transaction = await transactions.begin()
                except WriteConflictError:
                    continue  # a scale waits
                outcome = None
                try:
                    for event in events:
                        transaction.write_event(event, f"txn{number}")
                    if rng.random() < 0.7:
                        await transaction.commit()
                        await transaction.wait_until_visible(600)
                        outcome = True
                    else:
                        await transaction.abort()
                        outcome = False
                except (IllegalStateError, UnavailableError):
                    state = await transaction.state()  # decided already, and the answer was lost
                    if state is TransactionState.COMMITTING:
                        await transaction.wait_until_visible(600)
                        outcome = True
                    elif state is TransactionState.COMMITTED:
                        outcome = True
                self.transactions.append((events, outcome))
                self.steps += 1

    # -- readers ------------------------------------------------------------------------------------------------

    async def _read(self, client: Client, name: str) -> None:
        """Read until everything was read; now and then die and be declared offline, or leave and come again."""
        idle = 0
        while self.writing or idle < 60:
            reader = client.reader(STREAM.scope, "group", name)
            try:
                await reader.start()
            except AlreadyExistsError:
                await self._offline(client, name, None)  # joined, and the answer was lost
                continue
            for _ in range(self.random.randint(3, 300)):
                batch = await reader.read_batch(self.random.choice([1, 10, 1000]), 500)
                idle = 0 if batch is not None and batch.events else idle + 1
                if batch is not None:
                    self.read += batch.events
                    self.steps += 1
                if not self.writing and idle >= 60:
                    break
            if self.random.random() < 0.5:
                await reader.close()
            else:
                position = reader.position
                await self._vanish(reader)
                await self._offline(client, name, position)

    @staticmethod
    async def _vanish(reader: Any) -> None:
        """What is left of a reader whose process died: nothing but its place in the group."""
        for segment in list(reader._inputs):
            await reader._drop_input(segment)

    async def _offline(self, client: Client, name: str, position: Position | None) -> None:
        with contextlib.suppress(OverloadedError):
            group = await client.reader_groups(STREAM.scope).open("group")
            await group.reader_offline(name, position)

    # -- the check ----------------------------------------------------------------------------------------------

    async def _check(self, client: Client) -> None:
        stored: list[bytes] = []
        for piece in sorted(await client.slices(STREAM)):
            async for events in client.read_slice(piece):
                stored += events
        self._check_events(stored, "stored")
        self._check_events(self.read, "read by the group")

    def _check_events(self, events: list[bytes], what: str) -> None:
        expected = [event for written in self.written.values() for event in written]
        by_transaction: dict[bytes, list[bytes]] = defaultdict(list)
        plain = []
        for event in events:
            if event.startswith(b"txn"):
                by_transaction[event.split(b":")[0]].append(event)
            else:
                plain.append(event)
        require(len(plain) == len(set(plain)), f"events were {what} twice")
        require(set(plain) == set(expected), f"{len(set(expected) - set(plain))} events were not {what}")
        if what != "stored":  # segments are listed by number, readers follow the order of the stream
            for key, written in self.written.items():
                mine = [event for event in plain if event.startswith(key.encode() + b":")]
                require(mine == written, f"events of {key} were {what} out of order")
        for sent, outcome in self.transactions:
            found = by_transaction.pop(sent[0].split(b":")[0], [])
            require(found in (sent, []), f"a transaction was {what} in part or out of order")
            require(
                outcome is None or bool(found) == outcome, f"a transaction that ended {outcome} was {what}: {found}"
            )
        require(not by_transaction, f"events were {what} that nobody wrote")
