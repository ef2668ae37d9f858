"""Attributes in memory, cached pages and lookups while other changes are under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import pytest

from tailrace.common import limits
from tailrace.common.errors import BadAttributeError, UnavailableError
from tailrace.segmentstore import attributes as index
from tailrace.segmentstore.api import NULL_ATTRIBUTE, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.value_room import VALUE_BYTES

from ..conftest import Objects, World, eventually

NAME = "scope/stream/0.#epoch.0"
REPLACE, EQUALS = AttributeUpdateType.REPLACE, AttributeUpdateType.REPLACE_IF_EQUALS
LAST = b"\xff" * 16


def key_of(number: int) -> bytes:
    """Scattered over the key space, never a core attribute."""
    return (number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(16, "big")


async def put(container: Container, numbers: range, value: int | None = None) -> None:
    """Set attributes to their number, or all to one value."""
    values = [(number, number if value is None else value) for number in numbers]
    for start in range(0, len(values), 500):
        part = values[start : start + 500]
        await container.update_attributes(NAME, [AttributeUpdate(key_of(key), REPLACE, new) for key, new in part])


async def flush(container: Container) -> None:
    """Move the dirty attributes of the segment to its index."""
    segment = container.state.by_name[NAME]
    while (update := await container.storage.attributes.build_update(segment)) is not None:
        await container.core.commit_control(update.operation)
        segment.dirty.settle_items(update.items)


class SlowObjects(Objects):
    """Objects whose reads take several turns of the event loop, and wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.gets: list[tuple[str, int]] = []
        self.failing_gets = 0

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.gets.append((key, offset))
        await asyncio.sleep(0.01)
        await self.open.wait()
        if self.failing_gets:
            self.failing_gets -= 1
            raise UnavailableError("the object store does not answer")
        return await super().get_range(key, offset, length)


@pytest.fixture
def objects(world: World, monkeypatch: pytest.MonkeyPatch) -> SlowObjects:
    """Slow objects, small pages, and no flush that a test does not ask for."""
    monkeypatch.setattr(limits, "ATTRIBUTE_PAGE_MAX_BYTES", 600)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 1_000_000)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_AGED_THRESHOLD", 1_000_000)
    world.objects = SlowObjects()
    return world.objects


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of keys of each descent through an index."""
    sizes: list[int] = []
    get_many = index.get_many

    async def counted(state: index.IndexState, keys: list[bytes], pages: index.PageReader) -> dict[bytes, int]:
        sizes.append(len(keys))
        return await get_many(state, keys, pages)

    monkeypatch.setattr(index, "get_many", counted)
    return sizes


# -- eviction


async def test_values_are_evicted_while_writers_always_have_changes_in_flight(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, writers, count = 100, 8, 300
    monkeypatch.setattr(limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX", bound)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 50)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_BATCH_MAX", 100)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.001)
    # Else an index of 57 KB waits for 56 attributes, and from 50 to 55 may be left for good.
    monkeypatch.setattr(limits, "FLUSH_BYTES_PER_ATTRIBUTE_MAX", limits.MIB)
    world.log_delay_s = 0.02
    container = await world.open()
    await container.create_segment(NAME)
    segment = container.state.by_name[NAME]
    most_clean = 0

    async def write(first: int) -> None:
        nonlocal most_clean
        sent: deque[asyncio.Task[None]] = deque()
        for number in range(first, first + count, 5):
            keys = range(number, number + 5)
            updates = [AttributeUpdate(key_of(key), EQUALS, key, NULL_ATTRIBUTE) for key in keys]
            sent.append(asyncio.create_task(container.update_attributes(NAME, updates)))
            if len(sent) == 3:
                await sent.popleft()
            await asyncio.sleep(world.log_delay_s / 3)  # the next one is staged before the last one is committed
            most_clean = max(most_clean, len(segment.latest) - len(segment.dirty))
        await asyncio.gather(*sent)

    writing = [asyncio.create_task(write(writer * count)) for writer in range(writers)]
    await asyncio.gather(*writing)
    await eventually(lambda: len(segment.dirty) < 50)
    assert most_clean <= 5 * bound
    expected = sorted((key_of(number), number) for number in range(writers * count))
    assert await container.iterate_attributes(NAME, bytes(16), LAST, len(expected) + 1) == expected


async def test_a_value_in_flight_or_not_in_the_index_stays_and_the_least_recently_used_go_first(
    world: World, objects: SlowObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX", 100)
    world.log_delay_s = 0.2
    container = await world.open()
    await container.create_segment(NAME)
    await put(container, range(200))
    await flush(container)
    segment = container.state.by_name[NAME]
    await put(container, range(100, 110), 7)  # committed, not in the index
    await container.get_attributes(NAME, [key_of(0)])  # used
    changing = asyncio.create_task(put(container, range(120, 130), 8))
    await eventually(lambda: segment.inflight)
    assert len(segment.latest) == 200 + 2
    container.storage.attributes.evict(segment)
    assert len(segment.latest) == 50
    there = {number for number in range(200) if key_of(number) in segment.latest}
    assert there >= {0, *range(100, 110), *range(120, 130)}
    assert there - {0} >= set(range(190, 200))
    await changing
    found = await container.get_attributes(NAME, [key_of(number) for number in range(100, 130)])
    assert [found[key_of(number)] for number in range(100, 130)] == [7] * 10 + list(range(110, 120)) + [8] * 10
    assert not segment.held


async def test_conditions_that_fail_leave_a_bounded_number_of_values(
    objects: SlowObjects, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX", 50)
    container = await world.open()
    await container.create_segment(NAME)
    await put(container, range(10))
    await flush(container)
    segment = container.state.by_name[NAME]
    for number in range(1000, 1500):
        update = AttributeUpdate(key_of(number), EQUALS, 1, 5)
        change = container.append(NAME, [b"x"], [update]) if number % 2 else container.update_attributes(NAME, [update])
        with pytest.raises(BadAttributeError):
            await change
        assert len(segment.latest) <= 2 * 50 + 5
        assert len(segment.committed) <= 2 * 50 + 5


@pytest.mark.parametrize("appends", [False, True])
async def test_an_operation_with_more_attributes_than_the_bound_is_staged(
    world: World, objects: SlowObjects, monkeypatch: pytest.MonkeyPatch, appends: bool
) -> None:
    monkeypatch.setattr(limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX", 1)
    container = await world.open()
    await container.create_segment(NAME)
    await put(container, range(100))
    await flush(container)
    segment = container.state.by_name[NAME]
    for value in range(3):
        segment.evict_values(1000, 1000)
        await container.storage.attributes.load(segment, [key_of(0)])  # in memory, and the first to be evicted
        updates = [AttributeUpdate(key_of(n), EQUALS, 1000 + value, 999 + value if value else n) for n in range(10)]
        async with asyncio.timeout(120):
            if appends:
                await container.append(NAME, [b"x"], updates)
            else:
                await container.update_attributes(NAME, updates)
        await flush(container)
    assert not segment.held


async def test_values_of_many_segments_share_one_room(
    world: World, reopen: Callable[[], Awaitable[Container]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle and sealed segments keep no values that others need the memory for, nor do owners that ended."""
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 10)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    world.values.max_bytes = 500 * VALUE_BYTES
    container = await world.open()
    names = [f"scope/stream/{number}.#epoch.0" for number in range(20)]
    keys = [key_of(number) for number in range(100)]
    for name in names:
        await container.create_segment(name)
        await container.update_attributes(name, [AttributeUpdate(key, REPLACE, 7) for key in keys])
        await container.seal(name)

    def clean() -> int:
        return sum(segment.clean_values for segment in container.state.segments.values())

    await eventually(lambda: not any(segment.dirty for segment in container.state.segments.values()))
    await eventually(lambda: clean() <= 500)
    for name in names:
        assert await container.get_attributes(name, keys) == dict.fromkeys(keys, 7)
    await container.delete(names[-1])
    assert clean() * VALUE_BYTES == world.values.used_bytes <= world.values.max_bytes
    container = await reopen()
    assert clean() * VALUE_BYTES == world.values.used_bytes <= world.values.max_bytes
    for name in names[:-1]:
        assert await container.get_attributes(name, keys) == dict.fromkeys(keys, 7)
    await container.close()
    assert world.values.used_bytes == 0


# -- pages


async def cold(world: World, reopen: Callable[[], Awaitable[Container]], count: int) -> Container:
    """An owner that has no attribute and no page in memory."""
    container = await world.open()
    await container.create_segment(NAME)
    await put(container, range(count))
    await flush(container)
    await container.flush_to_storage()
    return await reopen()


async def test_concurrent_cold_lookups_read_each_page_once(
    world: World, objects: SlowObjects, reopen: Callable[[], Awaitable[Container]]
) -> None:
    container = await cold(world, reopen, 300)
    objects.gets.clear()
    found = await asyncio.gather(*(container.get_attributes(NAME, [key_of(number)]) for number in range(100)))
    assert found == [{key_of(number): number} for number in range(100)]
    pages = 1 + -(-300 // ((limits.ATTRIBUTE_PAGE_MAX_BYTES - 24) // 24))
    assert len(objects.gets) <= pages, "one read for each page"


async def test_a_lookup_goes_on_when_the_one_that_reads_its_page_is_cancelled_or_fails(
    world: World, objects: SlowObjects, reopen: Callable[[], Awaitable[Container]]
) -> None:
    container = await cold(world, reopen, 300)
    objects.gets.clear()
    objects.open.clear()
    asked = [asyncio.create_task(container.get_attributes(NAME, [key_of(1)])) for _ in range(5)]
    await eventually(lambda: objects.gets)
    asked[0].cancel()
    await asyncio.wait([asked[0]])
    asked[1].cancel()
    objects.open.set()
    await asyncio.wait(asked)
    assert [each.cancelled() for each in asked] == [True, True, False, False, False]
    assert [each.result() for each in asked[2:]] == [{key_of(1): 1}] * 3

    container = await reopen()
    objects.gets.clear()
    objects.failing_gets = 1
    asked = [asyncio.create_task(container.get_attributes(NAME, [key_of(1)])) for _ in range(5)]
    await asyncio.wait(asked)
    assert all(isinstance(each.exception(), UnavailableError) for each in asked)
    assert len(objects.gets) == 1
    assert await container.get_attributes(NAME, [key_of(1)]) == {key_of(1): 1}


async def test_pages_are_in_memory_once_they_are_written(world: World, objects: SlowObjects) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await put(container, range(300))
    await flush(container)
    segment = container.state.by_name[NAME]
    segment.evict_values(1000, 1000)
    assert key_of(1) not in segment.latest
    objects.gets.clear()
    keys = [key_of(number) for number in range(300)]
    assert await container.get_attributes(NAME, keys) == {key_of(number): number for number in range(300)}
    assert objects.gets == []


# -- lookups


async def test_a_lookup_is_not_repeated_when_other_parts_of_the_index_change(
    world: World, objects: SlowObjects, reopen: Callable[[], Awaitable[Container]], lookups: list[int]
) -> None:
    container = await cold(world, reopen, 300)
    numbers = sorted(range(300), key=key_of)
    # The pages that the flush below reads: the root, the lowest leaf (which it moves) and the last one.
    await container.get_attributes(NAME, [key_of(numbers[0]), key_of(numbers[-1])])
    segment = container.state.by_name[NAME]
    lookups.clear()
    objects.gets.clear()
    objects.open.clear()
    asked = asyncio.create_task(container.get_attributes(NAME, [key_of(numbers[150])]))
    loaded = asyncio.create_task(container.storage.attributes.load(segment, [key_of(numbers[151])]))
    await eventually(lambda: objects.gets)
    root = segment.index
    await container.update_attributes(NAME, [AttributeUpdate(key_of(numbers[-1]), REPLACE, 5)])
    await flush(container)
    assert segment.index is not root
    assert segment.evict_values(1, 1000)[0] == 1
    objects.open.set()
    assert await asked == {key_of(numbers[150]): numbers[150]}
    await loaded
    assert segment.latest[key_of(numbers[151])] == numbers[151]
    assert lookups == [1, 1]


async def test_a_value_that_changes_during_its_lookup_stays_in_memory_until_the_lookup_ends(
    world: World, objects: SlowObjects, reopen: Callable[[], Awaitable[Container]]
) -> None:
    container = await cold(world, reopen, 300)
    segment = container.state.by_name[NAME]
    objects.open.clear()
    asked = asyncio.create_task(container.get_attributes(NAME, [key_of(1), key_of(2)]))
    await eventually(lambda: objects.gets)
    await put(container, range(1, 2), 77)
    flushing = asyncio.create_task(flush(container))
    await eventually(lambda: not segment.inflight)
    segment.dirty.settle(container.state.committed_sequence)  # as if the index held it: only the lookup needs it
    assert segment.evict_values(100, 1000)[0] == 0
    objects.open.set()
    assert await asked == {key_of(1): 77, key_of(2): 2}
    await flushing
    assert not segment.held
