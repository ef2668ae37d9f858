"""A container over memory: real container, real pipeline, memory log, memory object store."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from tailrace.common import limits
from tailrace.common.errors import ObjectNotDeletedError, UnavailableError
from tailrace.common.ports import Clock
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.metadata.value_room import ValueRoom
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects
from tailrace.segmentstore.tier2.snapshot import Snapshot, SnapshotName, parse_key
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import Buffer, ObjectInfo


async def eventually(condition: Callable[[], object], deadline_s: float = 120.0) -> None:
    """Wait until a condition of background work holds."""
    for _ in range(int(deadline_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the condition never came true")


@pytest.fixture
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that nothing references any more go at once: a snapshot supersedes the last one soon."""
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "SNAPSHOT_FIRST_S", 0.02)
    monkeypatch.setattr(limits, "SNAPSHOT_INTERVAL_S", 0.02)


class Objects:
    """An object store that can be out of reach, at once or after some more puts."""

    def __init__(self, url: str = "memory://") -> None:
        self._store = open_object_store(url)
        self.outage = False
        self.failing_puts: set[int] = set()
        self.refuses_deletes = False
        self.refused_deletes = 0
        self.protected: dict[str, None] = {}
        """Objects under retention: a deletion of several deletes the others, and names the first of these."""
        self.delete_requests: list[tuple[str, ...]] = []
        self.puts = 0
        self.under_way = 0
        self.most_under_way = 0

    def _check(self) -> None:
        if self.outage:
            raise UnavailableError("the object store does not answer")

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self._check()
        self.puts += 1
        if self.puts in self.failing_puts:
            raise UnavailableError(f"put number {self.puts} fails")
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0)
            await self._store.put(key, data, if_absent=if_absent)
        finally:
            self.under_way -= 1

    async def get(self, key: str) -> bytes:
        self._check()
        return await self._store.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._check()
        return await self._store.get_range(key, offset, length)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self._check()
        return self._store.list(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        self._check()
        if self.refuses_deletes:
            self.refused_deletes += 1
            raise UnavailableError("the object store deletes nothing")
        self.delete_requests.append(tuple(keys))
        await self._store.delete([key for key in keys if key not in self.protected])
        for key in keys:
            if key in self.protected:
                raise ObjectNotDeletedError(key, "AccessDenied: protected by object lock")

    async def close(self) -> None:
        await self._store.close()


async def take_snapshot(container: Container) -> bool:
    """Store a snapshot of everything that is staged by now; False when it must wait for a flush."""
    container.core.check_running()
    await container.core.barrier()
    return await container.background.snapshotter.take()


class World:
    """What survives a container: its log and its objects."""

    def __init__(self, cache_bytes: int = 32 << 20) -> None:
        self.log = MemoryLogStore()
        self.objects = Objects()
        self.cache_bytes = cache_bytes
        self.cache: CacheManager
        """Of the newest owner."""
        self.log_delay_s = 0.0
        self.values = ValueRoom()
        self.clock: Clock = SystemClock()
        self.epochs = itertools.count(1)
        self.running: list[Container] = []

    async def open(self) -> Container:
        """A new owner over what is there."""
        self.cache = CacheManager(BlockCache(self.cache_bytes))
        ports = ContainerPorts(
            log=MemoryLog(self.log, delay_s=self.log_delay_s),
            store=self.objects,
            cache=self.cache,
            clock=self.clock,
            entropy=SystemEntropy(),
            cluster_id=b"cluster-id-of-16",
            values=self.values,
        )
        container = Container(7, next(self.epochs), ports)
        self.running.append(container)
        await container.start(b"nonce-of-16-byte")
        return container

    async def open_beside(self, container: Container) -> Container:
        """Container 8 of the same worker, with a log of its own."""
        ports = ContainerPorts(
            log=MemoryLog(MemoryLogStore()),
            store=self.objects,
            cache=self.cache,
            clock=self.clock,
            entropy=SystemEntropy(),
            cluster_id=container.core.ports.cluster_id,
            untiered=container.core.ports.untiered,
        )
        other = Container(8, 1, ports)
        self.running.append(other)
        await other.start(b"nonce-of-16-byte")
        return other

    async def close(self) -> None:
        """End every owner."""
        for container in self.running:
            await container.close()


async def flush(container: Container) -> None:
    """Everything into Tier 2, and no snapshot."""
    await container.background.writer.flush_all(container.core.log.next_sequence - 1)


async def names(world: World) -> list[SnapshotName]:
    """The snapshots in Tier 2, the newest one last."""
    found = [parse_key(item.key) async for item in world.objects.list("s7")]
    return sorted(item[1] for item in found if item)


async def newest(world: World) -> tuple[Snapshot, ContainerState]:
    """The snapshot that a restore takes, and its state."""
    key = (await names(world))[-1].key(7)
    snapshot = Snapshot.decode(key, await world.objects.get(key))
    return snapshot, snapshot.load(key)


async def stored(world: World, state: ContainerState, name: str) -> bytes:
    """A segment's bytes as Tier 2 has them."""
    tier2 = ChunkObjects(world.objects, b"cluster-id-of-16", 7, 0, SystemEntropy())
    segment = state.by_name[name]
    content = b""
    for ref in segment.chunks:
        content += await tier2.read_exact(ref, ref.segment_offset, ref.length)
    return content


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """An empty world."""
    world = World()
    yield world
    await world.close()


@pytest.fixture
def reopen(world: World) -> Callable[[], Awaitable[Container]]:
    """Close the present owner and open the next one."""

    async def again() -> Container:
        await world.running[-1].close()
        return await world.open()

    return again


@pytest.fixture
def frame_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each frame of the log is read after its recovery."""
    found: Counter[int] = Counter()
    whole = MemoryLog.read

    async def read(self: MemoryLog, sequence: int, offset: int, length: int) -> bytes:
        found[sequence] += 1
        return await whole(self, sequence, offset, length)

    monkeypatch.setattr(MemoryLog, "read", read)
    return found
