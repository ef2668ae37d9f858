"""Reads of Tier 2: readers of a range share one GET, and each sequential reader finds its next range in the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError, UnavailableError
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.tier2.chunk_objects import Section

from ..conftest import Objects, World, eventually

NAME = "scope/stream/0.#epoch.0"
RANGE = limits.STORAGE_READ_ALIGNMENT_BYTES
READERS = 50
Reopen = Callable[[], Awaitable[Container]]
DATA = b"".join(number.to_bytes(4, "big") for number in range(2 * limits.MIB))


class GatedObjects(Objects):
    """Objects whose reads are counted, wait while the gate is closed, and fail on request."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.gets: list[tuple[str, int]] = []
        self.cancelled_gets = 0
        self.failing_gets = 0

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.gets.append((key, offset))
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled_gets += 1
            raise
        if self.failing_gets:
            self.failing_gets -= 1
            raise UnavailableError("the object store does not answer")
        return await super().get_range(key, offset, length)


@pytest.fixture
def objects(world: World) -> GatedObjects:
    """The objects of the world, behind a gate that is open."""
    world.objects = GatedObjects()
    return world.objects


async def cold(world: World, reopen: Reopen, objects: GatedObjects, length: int = RANGE) -> Container:
    """An owner of a segment whose bytes are in Tier 2 alone."""
    container = await world.open()
    await container.create_segment(NAME)
    for start in range(0, length, limits.MIB):
        await container.append(NAME, [DATA[start : min(start + limits.MIB, length)]])
    await container.flush_to_storage()
    container = await reopen()
    objects.gets.clear()
    return container


async def read(container: Container, offset: int, length: int) -> bytes:
    result = await container.read(NAME, offset, length, wait=False)
    assert result.offset == offset
    return b"".join(result.data)


async def idle(container: Container) -> None:
    """Wait until no read of Tier 2 is under way."""
    await eventually(lambda: not len(container.storage.tier2.shared))


# -- one read for all that need it


@pytest.mark.parametrize("has_room", [True, False])
async def test_concurrent_cold_readers_of_a_range_cost_one_read(
    world: World, objects: GatedObjects, reopen: Reopen, has_room: bool
) -> None:
    container = await cold(world, reopen, objects)
    if not has_room:
        assert world.cache.cache.reserve(world.cache.cache.available_blocks)
    offsets = [number * 1000 for number in range(READERS)]
    found = await asyncio.gather(*(read(container, offset, 5000) for offset in offsets))
    assert found == [DATA[offset : offset + 5000] for offset in offsets]
    assert len(objects.gets) == 1


async def test_a_reader_that_is_cancelled_leaves_the_read_to_the_others(
    world: World, objects: GatedObjects, reopen: Reopen
) -> None:
    container = await cold(world, reopen, objects)
    objects.open.clear()
    readers = [asyncio.create_task(read(container, 100 * number, 100)) for number in range(READERS)]
    await eventually(lambda: objects.gets)
    for number in (0, 1, READERS - 1):
        readers[number].cancel()
        await asyncio.wait([readers[number]])
    objects.open.set()
    await asyncio.wait(readers)
    left = range(2, READERS - 1)
    assert [number for number in range(READERS) if readers[number].cancelled()] == [0, 1, READERS - 1]
    assert [readers[number].result() for number in left] == [DATA[100 * n : 100 * n + 100] for n in left]
    assert (len(objects.gets), objects.cancelled_gets) == (1, 0)


async def test_a_read_that_no_reader_waits_for_any_more_ends(
    world: World, objects: GatedObjects, reopen: Reopen
) -> None:
    container = await cold(world, reopen, objects)
    objects.open.clear()
    readers = [asyncio.create_task(read(container, 0, 100)) for _ in range(3)]
    await eventually(lambda: objects.gets)
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    late = asyncio.create_task(read(container, 0, 100))  # it must not join the read that ends
    await eventually(lambda: objects.cancelled_gets == 1)
    objects.open.set()
    assert await late == DATA[:100]
    assert len(objects.gets) == 2
    await idle(container)


async def test_an_error_reaches_each_reader_once_and_is_not_kept(
    world: World, objects: GatedObjects, reopen: Reopen
) -> None:
    container = await cold(world, reopen, objects)
    objects.open.clear()
    objects.failing_gets = 1
    readers = [asyncio.create_task(read(container, 100 * number, 100)) for number in range(READERS)]
    await eventually(lambda: objects.gets)
    objects.open.set()
    await asyncio.wait(readers)
    assert all(isinstance(reader.exception(), UnavailableError) for reader in readers)
    assert len(objects.gets) == 1
    assert await read(container, 300, 100) == DATA[300:400]
    assert len(objects.gets) == 2


async def test_a_stop_ends_shared_reads_and_those_who_wait_for_them(
    world: World, objects: GatedObjects, reopen: Reopen
) -> None:
    container = await cold(world, reopen, objects)
    objects.open.clear()
    readers = [asyncio.create_task(read(container, 100 * number, 100)) for number in range(3)]
    await eventually(lambda: objects.gets)
    await container.close()
    await asyncio.wait(readers)
    assert all(isinstance(reader.exception(), ContainerStoppedError) for reader in readers)
    assert objects.cancelled_gets == 1


async def test_a_reader_takes_no_bytes_of_a_read_that_lacks_its_offset(
    world: World, objects: GatedObjects, reopen: Reopen
) -> None:
    """Two chunks become one during a read of the first: a reader behind it shares the range's start, not the bytes."""
    container = await world.open()
    await container.create_segment(NAME)
    for start in (0, 1000):
        await container.append(NAME, [DATA[start : start + 1000]])
        await container.flush_to_storage()
    container = await reopen()
    segment = container.state.by_name[NAME]
    old = list(segment.chunks)
    assert len(old) == 2
    sections = [Section(segment.segment_id, NAME, 0, DATA[:2000])]
    ((_, joined),) = await container.storage.tier2.write(sections)
    objects.gets.clear()
    objects.open.clear()
    first = asyncio.create_task(read(container, 100, 100))
    await eventually(lambda: objects.gets)
    assert segment.chunks.replace(old, [joined])
    behind = asyncio.create_task(read(container, 1500, 100))
    before = asyncio.create_task(read(container, 500, 100))
    for _ in range(10):
        await asyncio.sleep(0)
    objects.open.set()
    assert await asyncio.gather(first, behind, before) == [DATA[100:200], DATA[1500:1600], DATA[500:600]]
    assert [key for key, _ in objects.gets] == [old[0].object_key, joined.object_key]


# -- reads ahead


@pytest.mark.parametrize("length", [RANGE // 4, RANGE])
async def test_each_sequential_reader_of_a_segment_finds_its_next_range_in_the_cache(
    world: World, objects: GatedObjects, reopen: Reopen, length: int
) -> None:
    total = 8 * RANGE
    container = await cold(world, reopen, objects, total)
    positions = [0, total // 2]
    waited = 0
    while positions[0] < total // 2:
        for reader, position in enumerate(positions):
            hits = container.storage.reader.cache_hits
            found = await read(container, position, length)
            assert found == DATA[position : position + length]
            waited += container.storage.reader.cache_hits == hits
            positions[reader] += len(found)
            await idle(container)
    # A reader shows that it is sequential by its second read.
    assert waited <= 2 * (1 if length < RANGE else 2)
    assert len(objects.gets) == total // RANGE


async def test_a_reader_joins_the_read_ahead_and_gets_its_error(
    world: World, objects: GatedObjects, reopen: Reopen
) -> None:
    container = await cold(world, reopen, objects, 2 * RANGE)
    await read(container, 0, RANGE // 2)
    objects.open.clear()
    await read(container, RANGE // 2, RANGE // 4)
    await eventually(lambda: len(objects.gets) == 2)
    readers = [asyncio.create_task(read(container, RANGE + 100 * number, 100)) for number in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    readers[0].cancel()
    objects.failing_gets = 1
    objects.open.set()
    await asyncio.wait(readers)
    assert readers[0].cancelled()
    assert all(isinstance(reader.exception(), UnavailableError) for reader in readers[1:])
    assert len(objects.gets) == 2
    assert await read(container, RANGE, 100) == DATA[RANGE : RANGE + 100]
    assert container.core.phase == "running"


async def test_reads_ahead_and_remembered_positions_are_bounded(
    world: World, objects: GatedObjects, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PREFETCH_POSITIONS_MAX", 3)
    monkeypatch.setattr(limits, "STORAGE_READS_MAX", 1)
    container = await cold(world, reopen, objects, 4 * RANGE)
    for number in range(3):
        await read(container, number * RANGE, RANGE // 2)
    await idle(container)
    objects.gets.clear()
    objects.open.clear()
    for number in range(3):
        await read(container, number * RANGE + RANGE // 2, 100)  # all three are sequential; only one range is missing
    await eventually(lambda: objects.gets)
    assert len(container.storage.tier2.shared) == 1
    for number in range(10):
        await read(container, number * 10, 10)
    assert len(container.storage.reader.positions) == 3
    objects.open.set()
    await idle(container)


async def test_reads_under_way_refuse_no_flush(
    world: World, reopen: Reopen, objects: GatedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number has a bound of its own; a container that is handed over would leave its flush to the next owner."""
    monkeypatch.setattr(limits, "FLUSHES_ASKED_FOR_MAX", 1)
    container = await cold(world, reopen, objects)
    objects.open.clear()
    reading = asyncio.create_task(read(container, 0, 4))
    await eventually(lambda: objects.gets)
    await container.append(NAME, [b"more"])
    await container.flush_to_storage()
    assert not container.status().untiered_bytes
    objects.open.set()
    await reading
