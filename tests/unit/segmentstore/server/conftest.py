"""The server on a loopback socket, over the model container and over the real one, and a client that speaks frames."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import obstore
import pytest

from tailrace.common.budgets import budgets_for
from tailrace.common.errors import WrongHostError
from tailrace.common.limits import MIB
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.segmentstore.api import SegmentContainer
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.server.receiving import ReceiveRoom
from tailrace.segmentstore.server.registry import ContainerRegistry
from tailrace.segmentstore.server.unsent import UnsentReplies
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.worker.pending_containers import PendingContainers
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts
from tailrace.storage.obstore_objects import ObstoreObjects
from tailrace.wire import codec
from tailrace.wire import commands as c
from tailrace.wire.receiver import BufferPool

DEADLINE_S = 120.0
C = TypeVar("C", bound=c.Command)


def load_support(name: str) -> ModuleType:
    """A module of tests/support."""
    path = Path(__file__).parents[3] / "support" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"tests_support_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ModelContainer = load_support("model_container").ModelContainer


class ModelRegistry:
    """One model container for every segment but those of the scope ``elsewhere``."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.tables = TableService(container)
        self.pending = PendingContainers()

    def is_pending(self, segment_name: str) -> bool:
        return self.pending.expects(0)

    async def wait_opened(self, segment_name: str) -> None:
        await self.pending.wait(0)

    def container_for(self, segment_name: str) -> SegmentContainer:
        if self.pending.expects(0):
            raise WrongHostError("container 0 does not run here")
        if segment_name.startswith("elsewhere/"):
            raise WrongHostError("container 7 does not run here")
        container: SegmentContainer = self.container
        return container

    def container_by_id(self, container_id: int) -> SegmentContainer:
        if container_id != 0:
            raise WrongHostError(f"container {container_id} does not run here")
        return self.container_for("")

    def table_service(self, container: SegmentContainer) -> TableService:
        return self.tables


class Client:
    """One connection that sends and receives whole commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *commands: c.Command) -> None:
        self.writer.write(b"".join(codec.encode(command) for command in commands))

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> c.Command:
        async with asyncio.timeout(DEADLINE_S):
            code, length = codec.FRAME_HEADER.unpack(await self.reader.readexactly(8))
            return codec.decode(code, await self.reader.readexactly(length))

    async def expect(self, kind: type[C]) -> C:
        command = await self.receive()
        assert isinstance(command, kind), command
        return command

    async def call(self, command: c.Command) -> c.Command:
        self.send(command)
        return await self.receive()

    async def hello(self) -> None:
        assert await self.call(c.Hello(16, 5)) == c.Hello(16, 5)

    async def setup(self, writer_id: bytes, segment: str, request_id: int = 1) -> int:
        self.send(c.SetupAppend(request_id, writer_id, segment, ""))
        reply = await self.expect(c.AppendSetup)
        assert (reply.request_id, reply.segment, reply.writer_id) == (request_id, segment, writer_id)
        return reply.last_event_number

    async def create(self, segment: str) -> None:
        assert await self.call(c.CreateSegment(1, segment, 0, 0, "")) == c.SegmentCreated(1, segment)

    async def fill(self, segment: str, data: bytes) -> None:
        """Create a segment with these bytes."""
        writer_id = bytes(range(16))
        await self.create(segment)
        assert await self.setup(writer_id, segment) == -(2**63)
        self.send(c.AppendBlockEnd(writer_id, 0, data, 1, 1, 1))
        await self.expect(c.DataAppended)

    async def expect_silence(self) -> None:
        """Nothing else is on its way: the server echoes the next KeepAlive, and nothing came before the echo."""
        assert await self.call(c.KeepAlive()) == c.KeepAlive()

    async def expect_end(self) -> None:
        """The server closes the connection, and sends nothing before."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                assert await self.reader.read(100) == b""
            except ConnectionResetError:
                return

    async def read_all(self, segment: str) -> bytes:
        self.send(c.GetStreamSegmentInfo(1, segment, ""))
        info = await self.expect(c.StreamSegmentInfo)
        data = b""
        while len(data) < info.write_offset:
            self.send(c.ReadSegment(segment, len(data), 1 << 20, "", 2))
            read = await self.expect(c.SegmentRead)
            data += bytes(read.data)
        return data

    def close(self) -> None:
        self.writer.close()


class Setting:
    """A running server and its clients."""

    def __init__(self, registry: ContainerRegistry, *, in_flight_max_bytes: int = 48 * MIB, **bounds: Any) -> None:
        self.registry = registry
        self.in_flight = InFlightBudget(in_flight_max_bytes)
        self.accounted: list[tuple[str, int, int]] = []
        self.authorized: list[tuple[str, str, int]] = []
        self.refuse: Exception | None = None
        self.until = until
        self.turn = turn
        self.unsent: UnsentReplies
        self.receiving: ReceiveRoom
        self.server = SegmentStoreServer(
            registry,
            self.in_flight,
            SystemClock(),
            SystemEntropy(),
            authorize=self._authorize,
            account=self._account,
            **bounds,
        )
        self.clients: list[Client] = []

    def _authorize(self, principal: Any, token: str, resource: str, level: Any) -> None:
        self.authorized.append((token, resource, int(level)))
        if self.refuse is not None:
            raise self.refuse

    def _account(self, scope: str, length_bytes: int, operations: int) -> None:
        self.accounted.append((scope, length_bytes, operations))

    @property
    def model(self) -> Any:
        assert isinstance(self.registry, ModelRegistry)
        return self.registry.container

    async def start(self) -> None:
        self.host, self.port = await self.server.start("127.0.0.1", 0)

    async def connect(self, *, hello: bool = True, host: str = "127.0.0.1") -> Client:
        """Connect from that address."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 24, local_addr=(host, 0))
        client = Client(reader, writer)
        self.clients.append(client)
        if hello:
            await client.hello()
        return client

    async def close(self) -> None:
        await self.server.close()
        for client in self.clients:
            client.writer.close()
        for client in self.clients:
            try:
                await client.writer.wait_closed()
            except ConnectionError:
                continue


async def turn() -> None:
    """Let everything that is ready run once."""
    await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await turn()


async def real_worker() -> Worker:
    """A worker with real containers over a log and an object store in memory."""
    epochs: dict[int, int] = {}
    stores: dict[int, MemoryLogStore] = {}

    async def next_epoch(container_id: int, floor: int) -> int:
        epochs[container_id] = max(epochs.get(container_id, 0), floor) + 1
        return epochs[container_id]

    ports = WorkerPorts(
        ObstoreObjects(obstore.store.MemoryStore()),
        lambda container_id: MemoryLog(stores.setdefault(container_id, MemoryLogStore())),
        next_epoch,
        SystemClock(),
        SystemEntropy(),
        bytes(16),
    )
    worker = Worker(2, (0, 1), budgets_for(64 * MIB, 2), ports)
    await worker.start()
    return worker


@pytest.fixture(scope="session")
def object_runtime() -> None:
    """Starts the object store library's own threads, whose descriptors stay open, before any test counts them."""
    obstore.put(obstore.store.MemoryStore(), "warm", b"")


@pytest.fixture
async def model(no_leaks: None) -> AsyncIterator[Setting]:
    """The server over the model container alone, for what needs control over commits."""
    setting = Setting(ModelRegistry(ModelContainer()))
    await setting.start()
    yield setting
    await setting.close()


@pytest.fixture
async def few(no_leaks: None) -> AsyncIterator[Setting]:
    """The server over the model container with three connections at most."""
    setting = Setting(ModelRegistry(ModelContainer()), connections_max=3)
    await setting.start()
    yield setting
    await setting.close()


@pytest.fixture
async def tight(no_leaks: None) -> AsyncIterator[Setting]:
    """The server over the model container with little room, which looks for slow peers all the time."""
    unsent = UnsentReplies(asyncio.get_running_loop(), 8 * MIB, look_s=0.05)
    receiving = ReceiveRoom(asyncio.get_running_loop(), BufferPool(max_bytes=16 * MIB), look_s=0.05)
    setting = Setting(ModelRegistry(ModelContainer()), unsent=unsent, receiving=receiving)
    setting.unsent, setting.receiving = unsent, receiving
    await setting.start()
    yield setting
    await setting.close()
    assert unsent.total_bytes == receiving.pool.promised_bytes == 0


@pytest.fixture(params=["model", "waiting", "container"])
async def setting(request: pytest.FixtureRequest, object_runtime: None, no_leaks: None) -> AsyncIterator[Setting]:
    """The server over each container; ``waiting`` is the model that makes every third append wait for room."""
    stop: Callable[[], Awaitable[None]] | None = None
    registry: Any
    if request.param == "container":
        worker = await real_worker()
        stop, registry = worker.close, worker
    else:
        registry = ModelRegistry(ModelContainer(refuse_every=3 if request.param == "waiting" else 0))
    setting = Setting(registry)
    await setting.start()
    yield setting
    await setting.close()
    if stop is not None:
        await stop()


@pytest.fixture
async def client(setting: Setting) -> Client:
    """A connection that said hello."""
    return await setting.connect()
