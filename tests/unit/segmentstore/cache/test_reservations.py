"""Appends reserve what they add to a segment's tail, and evict no more than that."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError
from tailrace.kernel import BLOCK_BYTES, BlockCache, blocks_needed
from tailrace.segmentstore.api import AppendRequest
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.read_index import ReadIndex

from ..conftest import World, eventually

NAME = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"
EVENT = bytes(range(100))


def has_reserved(world: World, blocks: int) -> bool:
    """Return whether so many blocks are reserved."""
    return reserved(world) == blocks


def reserved(world: World) -> int:
    """Return the number of blocks that are reserved."""
    return world.cache.cache.reserved_blocks


async def append(container: Container, name: str, data: bytes) -> None:
    await container.append(name, [data])


async def merge(container: Container, target: str, source: str) -> None:
    await container.merge(target, source)


class Appends:
    """Appends that are submitted at once, and how many of them were answered."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self.submitted = self.acknowledged = 0

    def submit(self, data: bytes, name: str = NAME) -> bool:
        """Submit an append; return whether it was staged, and need not wait for room."""
        request = AppendRequest(name, [data], len(data), (), self._completed, self._failed, -1)
        if self._container.submit_append(request) is not None:
            return False
        self.submitted += 1
        return True

    def _completed(self, _: AppendRequest) -> None:
        self.acknowledged += 1

    def _failed(self, _: AppendRequest, error: Exception) -> None:
        raise error

    async def done(self) -> None:
        """Wait until all are acknowledged."""
        await eventually(lambda: self.acknowledged == self.submitted, 60)


async def test_small_appends_reserve_the_blocks_that_they_fill(world: World) -> None:
    world.cache_bytes = 8 << 20
    world.log_delay_s = 0.1
    container = await world.open()
    await container.create_segment(NAME)
    appends = Appends(container)
    count = 20_000
    assert all(appends.submit(EVENT) for _ in range(count)), "2 MB have room in a cache of 8 MiB"
    cache = world.cache.cache
    assert cache.reserved_blocks == blocks_needed(count * len(EVENT))
    await appends.done()
    assert cache.reserved_blocks == 0
    assert not world.cache.staged
    assert await container.read_exact(NAME, 0, count * len(EVENT)) == count * EVENT


async def test_small_appends_evict_what_they_need_and_no_more(world: World) -> None:
    world.cache_bytes = 8 << 20
    world.log_delay_s = 0.1
    container = await world.open()
    await container.create_segment(OTHER)
    await container.create_segment(NAME)
    cache = world.cache.cache
    entry = limits.CACHE_ENTRY_MAX_BYTES
    while cache.available_blocks > 2 * blocks_needed(entry):
        await container.append(OTHER, [bytes(entry)])
        await container.flush_to_storage()
    read_cache = sum(1 for _ in container.state.by_name[OTHER].read_index)
    evictions = world.cache.evictions
    appends = Appends(container)
    count = 20_000
    assert all(appends.submit(EVENT) for _ in range(count))
    needed = blocks_needed(count * len(EVENT)) // blocks_needed(entry) + 1
    assert world.cache.evictions - evictions <= needed < read_cache // 2
    await appends.done()


def test_a_reservation_without_room_evicts_nothing() -> None:
    manager = CacheManager(BlockCache(2 * limits.MIB))
    index = ReadIndex()
    manager.insert_fetched(index, 0, bytes(limits.MIB))
    assert not manager.reserve(manager.cache.snapshot().total_blocks + 1)
    assert manager.evictions == 0
    assert manager.reserve(manager.cache.available_blocks + 1)
    assert manager.evictions == 1


async def test_an_append_that_fits_in_the_last_block_needs_no_room(world: World) -> None:
    world.cache_bytes = 8 << 20
    world.log_delay_s = 0.1
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [EVENT])
    cache = world.cache.cache
    left = cache.available_blocks
    assert cache.reserve(left)
    appends = Appends(container)
    while appends.submit(EVENT):
        assert appends.submitted < 1000
    assert appends.submitted == BLOCK_BYTES // len(EVENT) - 1
    await appends.done()
    cache.release_reservation(left)
    assert await container.read_exact(NAME, 0, 40 * len(EVENT)) == 40 * EVENT


async def test_a_stop_returns_what_staged_appends_and_merges_reserved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await world.open()
    monkeypatch.setattr(container.core.log, "_delay_s", 600.0)
    creating = [asyncio.create_task(container.create_segment(name)) for name in (NAME, OTHER)]
    await eventually(lambda: OTHER in container.state.staged_by_name)
    for number, name in enumerate((NAME, OTHER), 1):
        creating.append(asyncio.create_task(append(container, name, bytes(10_000))))
        blocks = number * blocks_needed(10_000)
        await eventually(partial(has_reserved, world, blocks))
    creating.append(asyncio.create_task(merge(container, NAME, OTHER)))
    await eventually(lambda: OTHER not in container.state.staged_by_name)
    creating.append(asyncio.create_task(append(container, NAME, EVENT)))
    await eventually(partial(has_reserved, world, 2 * blocks_needed(10_000) + 1))
    container.core.stop(ContainerStoppedError("the test stops it"))
    await asyncio.wait(creating)
    assert all(isinstance(task.exception(), ContainerStoppedError) for task in creating)
    assert reserved(world) == 0
    assert not world.cache.staged
