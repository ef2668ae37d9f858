"""Operations wait when the records of what Tier 2 lacks have no room, and go on after a flush."""

from __future__ import annotations

import asyncio
import random

import pytest

from tailrace.common import limits
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.background.attribute_writer import AttributeWriter
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.untiered_room import APPEND_BYTES, ATTRIBUTE_BYTES

from ..conftest import World, eventually

NAME = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"
THIRD = "scope/stream/2.#epoch.0"


def writer(number: int) -> bytes:
    return number.to_bytes(16, "big")


def update(number: int, value: int = 1) -> AttributeUpdate:
    return AttributeUpdate(writer(number), AttributeUpdateType.REPLACE, value)


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes that failed are repeated soon; none is due by its age."""
    monkeypatch.setattr(limits, "FLUSH_INTERVAL_S", 3600.0)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MAX_S", 0.01)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MIN_S", 0.01)


@pytest.mark.parametrize("what", ["appends", "attributes", "updates"])
async def test_the_records_stay_within_their_bound_while_tier_2_is_away(world: World, what: str) -> None:
    """Once 100,500 attributes became dirty in 3 s, and 800,000 small appends took 310 MiB."""
    each = APPEND_BYTES if what == "appends" else ATTRIBUTE_BYTES
    container = await world.open()
    room = container.core.ports.untiered
    room.max_bytes = 100 * each
    await container.create_segment(NAME)
    world.objects.outage = True

    async def one(number: int) -> None:
        if what == "updates":
            await container.update_attributes(NAME, [update(number)])
        else:
            await container.append(NAME, [b"x"], [update(number)] if what == "attributes" else ())

    async def clients() -> None:
        for number in range(500):
            await one(number)
            assert room.used_bytes <= room.max_bytes + each + APPEND_BYTES

    running = asyncio.create_task(clients())
    await eventually(lambda: not room.has_room)
    await asyncio.sleep(0.1)
    assert not running.done(), "operations wait"
    await container.truncate(NAME, 0)  # what frees space does not wait
    world.objects.outage = False
    await asyncio.wait_for(running, 60)
    await container.close()
    assert room.used_bytes == 0, "a container that ended counts no more"


@pytest.mark.parametrize(
    "internal", ["_system/_tables/streams", "scope/_RGgroup/0.#epoch.0", "scope/_MARKa/0.#epoch.0"]
)
async def test_internal_segments_and_changes_of_segments_go_on_while_writers_wait(world: World, internal: str) -> None:
    """Controllers and reader groups once waited for Tier 2 behind all writers."""
    container = await world.open()
    room = container.core.ports.untiered
    room.max_bytes = 1000 * ATTRIBUTE_BYTES
    for name in (NAME, internal):
        await container.create_segment(name)
    world.objects.outage = True
    writing = asyncio.create_task(write_attributes(container, NAME, 1200))
    await eventually(lambda: not room.has_room)
    updating = asyncio.create_task(container.update_attributes(NAME, [update(2000)]))
    async with asyncio.timeout(120):
        await write_attributes(container, internal, 10)
        await container.update_attributes(internal, [update(2000)])
        await container.create_segment(OTHER)
        await container.seal(OTHER)
        await container.merge(NAME, OTHER)
    assert not any(task.done() for task in (writing, updating)), "writers wait"
    flooding = asyncio.create_task(write_attributes(container, internal, 1200))
    await eventually(lambda: not room.has_internal_room)
    assert room.used_bytes <= room.max_bytes + ATTRIBUTE_BYTES + APPEND_BYTES, "the part of internal ones is bounded"
    assert not any(task.done() for task in (writing, updating, flooding))
    world.objects.outage = False
    async with asyncio.timeout(120):
        await asyncio.gather(writing, updating, flooding)
    assert len(await container.get_attributes(NAME, [writer(number) for number in range(1200)])) == 1200


async def test_who_waits_for_the_internal_part_goes_on_when_some_of_it_is_free(world: World) -> None:
    """Once only room for writers woke them, which an outage may not give for hours."""
    container = await world.open()
    room = container.core.ports.untiered
    room.max_bytes = 1000 * ATTRIBUTE_BYTES
    internal, small = "_system/_tables/streams", "_system/_tables/small"
    for name in (NAME, internal, small):
        await container.create_segment(name)
    await write_attributes(container, small, 5)
    world.objects.outage = True
    writing = asyncio.create_task(write_attributes(container, NAME, 1200))
    await eventually(lambda: not room.has_room)
    flooding = asyncio.create_task(write_attributes(container, internal, 1200))
    await eventually(lambda: not room.has_internal_room)
    flooding.cancel()
    await asyncio.wait([flooding])
    creating = asyncio.create_task(container.create_segment(OTHER))
    updating = asyncio.create_task(container.update_attributes(internal, [update(2001)]))
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in (writing, creating, updating))
    await container.delete(small)
    async with asyncio.timeout(120):
        await asyncio.gather(creating, updating)
    assert not room.has_room
    assert not writing.done(), "that room is not for writers"
    world.objects.outage = False
    async with asyncio.timeout(120):
        await writing


async def write_attributes(container: Container, segment: str, count: int) -> None:
    """Appends of one byte by so many writers."""
    for number in range(count):
        await container.append(segment, [b"x"], [update(number)])


async def test_few_dirty_attributes_are_flushed_when_all_together_are_many(world: World) -> None:
    """Fewer than 200 of a segment were never flushed: each of many segments kept its own for ever."""
    container = await world.open()
    room = container.core.ports.untiered
    segments = [f"scope/stream/{number}.#epoch.0" for number in range(20)]
    for name in segments:
        await container.create_segment(name)
    room.max_bytes = 3000 * ATTRIBUTE_BYTES
    number = 0
    while room.used_bytes < room.max_bytes // 4 - 20 * ATTRIBUTE_BYTES:
        for name in segments:
            number += 1
            await container.update_attributes(name, [update(number)])
    assert container.background.attribute_writer.flushes == 0
    for name in segments:
        await container.update_attributes(name, [update(0), update(1_000_000)])
    await eventually(lambda: room.used_bytes < room.max_bytes // 4)
    await asyncio.sleep(0.05)
    assert 0 < container.background.attribute_writer.flushes <= 10, "no more than needed"
    for name in segments:
        assert await container.get_attributes(name, [writer(0)]) == {writer(0): 1}


async def test_many_attributes_are_written_a_few_times_only(world: World) -> None:
    """A flush of a thousand rewrote the whole index: 231,250 writers' ids, 5.5 MB, once wrote 643 MiB to Tier 2."""
    container = await world.open()
    await container.create_segment(NAME)
    world.objects.outage = True
    keys = [random.Random(number).randbytes(16) for number in range(24_000)]
    for first in range(0, len(keys), 1000):
        updates = [AttributeUpdate(key, AttributeUpdateType.REPLACE, 7) for key in keys[first : first + 1000]]
        await container.update_attributes(NAME, updates)
    segment = container.state.by_name[NAME]
    assert len(segment.dirty) == len(keys)
    before = container.storage.tier2.bytes_written
    world.objects.outage = False
    await eventually(lambda: len(segment.dirty) < 1000)
    assert container.storage.tier2.bytes_written - before <= 4 * 24 * len(keys)
    sample = keys[::100]
    assert await container.get_attributes(NAME, sample) == dict.fromkeys(sample, 7)


async def test_recovery_may_exceed_the_bound_and_a_flush_follows(world: World) -> None:
    world.objects.outage = True
    container = await world.open()
    await container.create_segment(NAME)
    for number in range(50):
        await container.append(NAME, [b"x"], [update(number)])
    await container.close()
    container = await world.open()
    room = container.core.ports.untiered
    assert room.used_bytes >= 50 * (APPEND_BYTES + ATTRIBUTE_BYTES)
    room.max_bytes = 10 * ATTRIBUTE_BYTES
    waiting = asyncio.create_task(container.append(NAME, [b"y"]))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    world.objects.outage = False
    assert await asyncio.wait_for(waiting, 60) == (50, 51)


async def test_records_of_deleted_and_merged_segments_are_counted_out(world: World) -> None:
    container = await world.open()
    room = container.core.ports.untiered
    for name in (NAME, OTHER, THIRD):
        await container.create_segment(name)
        for number in range(5):
            await container.append(name, [b"x"], [update(number)])
    assert room.used_bytes == 15 * (APPEND_BYTES + ATTRIBUTE_BYTES)
    await container.seal(OTHER)
    await container.merge(NAME, OTHER)
    assert room.used_bytes == 15 * APPEND_BYTES + 10 * ATTRIBUTE_BYTES
    await container.delete(THIRD)
    assert room.used_bytes == 10 * APPEND_BYTES + 5 * ATTRIBUTE_BYTES
    await container.delete(NAME)
    assert room.used_bytes == 0


async def test_neither_writer_waits_for_the_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes were flushed one after another, and bytes after all of them."""
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 5)
    monkeypatch.setattr(limits, "FLUSH_INTERVAL_S", 0.02)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    held, begun = asyncio.Event(), 0
    build = AttributeWriter._flush_segment

    async def slow(self: AttributeWriter, segment: object) -> None:
        nonlocal begun
        begun += 1
        await held.wait()
        await build(self, segment)  # type: ignore[arg-type]

    monkeypatch.setattr(AttributeWriter, "_flush_segment", slow)
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
    for number in range(10):
        await container.append(NAME, [b"x" * 20], [update(number)])
        await container.append(OTHER, [b"x" * 20], [update(number)])
    await eventually(lambda: begun >= 1)
    await eventually(lambda: not any(segment.pending for segment in container.state.segments.values()))
    assert all(segment.dirty for segment in container.state.segments.values())
    held.set()
    await eventually(lambda: not any(len(segment.dirty) >= 5 for segment in container.state.segments.values()))
    assert begun >= 2


async def test_a_full_room_is_emptied_by_all_containers_that_share_it(world: World) -> None:
    """An idle container whose records fill the room flushes them, so that the others go on."""
    idle = await world.open()
    room = idle.core.ports.untiered
    room.max_bytes = 10 * APPEND_BYTES
    await idle.create_segment(NAME)
    busy = await world.open_beside(idle)
    await busy.create_segment(OTHER)
    for _ in range(10):
        await idle.append(NAME, [b"x"])
    async with asyncio.timeout(120):
        await busy.append(OTHER, [b"y"])
    assert not idle.status().untiered_bytes
