"""How many requests to the object store an opening takes of a container whose log is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable

import pytest

from tailrace.common.errors import NotFoundError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.kernel import BlockCache
from tailrace.log.object import ObjectLog
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts

from ..conftest import Objects

NAME = "scope/stream/0.#epoch.0"
EVENTS = 20


class CountedObjects(Objects):
    """Counts what one owner reads below the log's prefix: objects, and those that are not there."""

    def __init__(self, others: Objects | None = None) -> None:
        super().__init__()
        if others is not None:
            self._store = others._store
        self.reads: Counter[str] = Counter()

    async def get(self, key: str) -> bytes:
        return await self._counted(key, super().get(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return await self._counted(key, super().get_range(key, offset, length))

    async def _counted(self, key: str, call: Awaitable[bytes]) -> bytes:
        kind = "found" if key.startswith("log/") else "other"
        try:
            return await call
        except NotFoundError:
            kind = "missing"
            raise
        finally:
            self.reads[kind] += 1


async def opened(shared: Objects, epoch: int) -> tuple[Container, Counter[str]]:
    """An owner that knows that the epoch before was opened, as a worker does; and what it has read until it serves."""
    objects = CountedObjects(shared)
    ports = ContainerPorts(
        log=ObjectLog(objects, 7, opened_epoch=epoch - 1),
        store=objects,
        cache=CacheManager(BlockCache(32 << 20)),
        clock=SystemClock(),
        entropy=SystemEntropy(),
        cluster_id=b"c" * 16,
    )
    container = Container(7, epoch, ports)
    await container.start(b"nonce-of-16-byte")
    return container, objects.reads.copy()


@pytest.fixture
async def world() -> AsyncIterator[tuple[Objects, Container]]:
    objects = Objects()
    container, _ = await opened(objects, 1)
    await container.create_segment(NAME)
    for _ in range(EVENTS):
        await container.append(NAME, [b"event"])
    yield objects, container
    await container.close(at_once=True)
    await objects.close()


async def test_a_new_log_is_asked_for_claims_alone() -> None:
    objects = Objects()
    container, reads = await opened(objects, 1)
    assert reads == {"missing": 3}, "the own claim, and the next one after START and the first frame"
    await container.close()
    await objects.close()


async def test_a_container_that_was_closed_is_opened_with_few_reads(world: tuple[Objects, Container]) -> None:
    """Claim, START, mark and one frame; missing: own claim, next mark, next frame, and the next claim twice."""
    objects, container = world
    await container.close(flush=True)
    container, reads = await opened(objects, 2)
    assert reads == {"found": 4, "missing": 5}
    assert await container.read_exact(NAME, 0, 5 * EVENTS) == b"event" * EVENTS
    await container.close()


async def test_after_a_kill_each_frame_costs_a_read(world: tuple[Objects, Container]) -> None:
    """The owner before lives on, and appends until its next look: this is a takeover as well."""
    objects, _ = world
    container, reads = await opened(objects, 2)
    frames = 1 + 1 + EVENTS  # RECOVERED, the segment, the events
    assert reads == {"found": 2 + frames, "missing": 5}
    assert await container.read_exact(NAME, 0, 5 * EVENTS) == b"event" * EVENTS
    await container.close()
