"""A real container over memory, whose Tier 2 is read without it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator

import pytest

from tailrace.cluster.segment_mapping import container_of
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.pipelines.direct import SegmentReferences, TierTwo
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.storage.obstores import open_object_store

CLUSTER = uuid.UUID(bytes=b"cluster-id-of-16")
CONTAINERS = 1


class Owned:
    """A cluster of one container: its log, its objects and its owners."""

    def __init__(self, url: str = "memory://") -> None:
        self.log = MemoryLogStore()
        self.store = open_object_store(url)
        self.tier2 = TierTwo(self.store, CLUSTER, CONTAINERS)
        self._epochs = itertools.count(1)
        self._owners: list[Container] = []

    async def open(self) -> Container:
        """Open the container; the owner before is fenced."""
        ports = ContainerPorts(
            log=MemoryLog(self.log, delay_s=0.0),
            store=self.store,
            cache=CacheManager(BlockCache(64 << 20)),
            clock=SystemClock(),
            entropy=SystemEntropy(),
            cluster_id=CLUSTER.bytes,
        )
        container = Container(0, next(self._epochs), ports)
        self._owners.append(container)
        await container.start(b"nonce-of-16-byte")
        return container

    async def snapshot(self) -> None:
        """Store a snapshot of everything that the last owner has acknowledged."""
        assert await self._owners[-1].background.snapshotter.take()

    async def references(self, segment: str) -> SegmentReferences:
        """The references of a segment in the newest snapshot."""
        assert container_of(segment, CONTAINERS) == 0
        return (await self.tier2.references([segment]))[segment]

    async def close(self) -> None:
        """End every owner."""
        for container in self._owners:
            await container.close()


@pytest.fixture
async def owned() -> AsyncIterator[Owned]:
    """An empty cluster."""
    owned = Owned()
    yield owned
    await owned.close()
