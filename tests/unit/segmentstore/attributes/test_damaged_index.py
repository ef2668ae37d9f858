"""A damaged attribute index refuses what needs it, and nothing else (docs/design.md#attributes)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.segmentstore.api import NULL_ATTRIBUTE, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.untiered_room import ATTRIBUTE_BYTES
from tailrace.segmentstore.server.replies import Failure, failure_reply
from tailrace.wire import commands as c

from ..conftest import World, eventually

NAME, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
REPLACE, EQUALS = AttributeUpdateType.REPLACE, AttributeUpdateType.REPLACE_IF_EQUALS


def key_of(number: int) -> bytes:
    return (number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(16, "big")


def appended(key: int, value: int, expected: int) -> list[AttributeUpdate]:
    return [AttributeUpdate(key_of(key), EQUALS, value, expected)]


@pytest.fixture
async def damaged(
    world: World, reopen: Callable[[], Awaitable[Container]], monkeypatch: pytest.MonkeyPatch
) -> Container:
    """Two segments with 300 attributes each in their index, nothing in memory; every leaf of NAME is damaged."""
    monkeypatch.setattr(limits, "ATTRIBUTE_PAGE_MAX_BYTES", 600)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    monkeypatch.setattr(limits, "FLUSH_ATTRIBUTES_THRESHOLD", 10)
    monkeypatch.setattr(limits, "DAMAGE_RETRY_S", 3600.0)
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
        updates = [AttributeUpdate(key_of(number), REPLACE, number) for number in range(300)]
        await container.update_attributes(name, updates)
    await eventually(lambda: all(not segment.dirty for segment in container.state.segments.values()))
    container = await reopen()
    for segment in container.state.segments.values():
        segment.evict_values(1000, 1000)
    await damage(world, container)
    return container


async def damage(world: World, container: Container) -> None:
    """Flip a bit in each page of the index of NAME but the root; or back."""
    segment = container.state.by_name[NAME]
    root = segment.index.root_offset
    for ref in segment.index_pages:
        content = bytearray(await world.objects.get(ref.object_key))
        assert ref.segment_offset <= root < ref.end, "one object holds all pages"
        for at in range(ref.data_offset + 300, ref.data_offset + root - ref.segment_offset, 100):
            content[at] ^= 1
        await world.objects.put(ref.object_key, [bytes(content)])


async def test_only_what_needs_the_damaged_index_is_refused(damaged: Container) -> None:
    container = damaged
    segment = container.state.by_name[NAME]
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(CorruptionError, match=r"corruption in object a7/"):
                await container.append(NAME, [b"lost"], appended(1, 2, 1))
            with pytest.raises(CorruptionError, match=r"corruption in object a7/"):
                await container.update_attributes(NAME, appended(1, 2, 1))
            with pytest.raises(CorruptionError, match=r"corruption in object a7/"):
                await container.get_attributes(NAME, [key_of(1)])
            with pytest.raises(CorruptionError, match=r"corruption in object a7/"):
                await container.iterate_attributes(NAME, bytes(16), b"\xff" * 16, 10)
    assert [line["event"] for line in logs].count("attribute_index_damaged") == 1
    assert NAME in next(line["segment"] for line in logs if line["event"] == "attribute_index_damaged")

    await container.append(NAME, [b"no condition"])
    assert (await container.read(NAME, 0, 100, wait=False)).length == len(b"no condition")
    await container.append(OTHER, [b"other"], appended(1, 2, 1))
    assert await container.get_attributes(OTHER, [key_of(1), key_of(2)]) == {key_of(1): 2, key_of(2): 2}
    status = container.status()
    assert status.state == "running"
    assert status.details["damaged_segments"] == 1
    assert NAME in status.reason
    assert not segment.held


async def test_flushes_of_a_damaged_index_stop_nothing_and_values_in_memory_stay(damaged: Container) -> None:
    container = damaged
    segment, other = container.state.by_name[NAME], container.state.by_name[OTHER]
    new = range(1000, 1020)
    for name in (NAME, OTHER):
        await container.update_attributes(name, [AttributeUpdate(key_of(number), REPLACE, number) for number in new])
    await container.append(NAME, [b"bytes"] * 10)
    await eventually(lambda: segment.damage is not None and not other.dirty)
    await container.flush_to_storage()
    assert container.status().state == "running"
    assert len(segment.dirty) >= 20
    for value in range(3):  # a writer whose number is in memory appends on
        await container.append(NAME, [b"x"], appended(1000, value, value - 1 if value else 1000))
    assert await container.get_attributes(NAME, [key_of(1000), key_of(1019)]) == {key_of(1000): 2, key_of(1019): 1019}


async def test_values_that_wait_for_a_damaged_index_are_bounded(
    damaged: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX", 100)
    container = damaged
    segment = container.state.by_name[NAME]
    with pytest.raises(CorruptionError):
        await container.get_attributes(NAME, [key_of(1)])
    number = 1000
    while len(segment.dirty) < 100:
        await container.append(NAME, [b"x"], [AttributeUpdate(key_of(number), REPLACE, number)])
        number += 1
    assert number <= 1101
    with pytest.raises(CorruptionError, match=r"corruption in object a7/"):
        await container.append(NAME, [b"x"], [AttributeUpdate(key_of(number), REPLACE, number)])
    await container.append(OTHER, [b"x"], [AttributeUpdate(key_of(1000), REPLACE, 1)])


async def test_values_that_wait_for_a_damaged_index_keep_no_others_waiting(world: World, damaged: Container) -> None:
    container = damaged
    room, segment = container.core.ports.untiered, container.state.by_name[NAME]
    with pytest.raises(CorruptionError):
        await container.get_attributes(NAME, [key_of(1)])
    for number in range(1000, 1100):
        await container.append(NAME, [b"x"], [AttributeUpdate(key_of(number), REPLACE, number)])
    assert len(segment.dirty) == 100
    room.max_bytes = 50 * ATTRIBUTE_BYTES
    for number in range(1000, 1020):
        await container.append(OTHER, [b"x"], [AttributeUpdate(key_of(number), REPLACE, number)])
    await eventually(lambda: room.attribute_bytes < 20 * ATTRIBUTE_BYTES)
    await damage(world, container)  # and so undone
    assert segment.damage is not None
    segment.damage = segment.damage._replace(retry_at_s=asyncio.get_running_loop().time())
    await eventually(lambda: not segment.dirty)
    assert room.attribute_bytes == len(container.state.by_name[OTHER].dirty) * ATTRIBUTE_BYTES


async def test_a_restored_index_is_used_again(
    world: World, damaged: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = damaged
    segment = container.state.by_name[NAME]
    await container.update_attributes(NAME, [AttributeUpdate(key_of(number), REPLACE, 7) for number in range(20)])
    await eventually(lambda: segment.damage is not None)
    await damage(world, container)  # and so undone
    with pytest.raises(CorruptionError):
        await container.get_attributes(NAME, [key_of(100)])
    assert segment.damage is not None
    segment.damage = segment.damage._replace(retry_at_s=asyncio.get_running_loop().time())
    await eventually(lambda: not segment.dirty)
    assert segment.damage is None
    assert container.status().reason == ""
    found = await container.get_attributes(NAME, [key_of(number) for number in range(300)])
    assert found == {key_of(number): 7 if number < 20 else number for number in range(300)}


async def test_a_change_with_a_new_attribute_is_refused_because_the_index_may_hold_it(damaged: Container) -> None:
    with pytest.raises(CorruptionError):
        await damaged.append(NAME, [b"x"], appended(5000, 1, NULL_ATTRIBUTE))


def test_damage_of_one_segment_closes_no_connection() -> None:
    error = CorruptionError("attribute index of segment x at 5", "a wrong CRC32C")
    reply = failure_reply(Failure(error, 17, NAME, "append"))
    assert reply == c.WrongHost(17, NAME, "", "corruption in attribute index of segment x at 5: a wrong CRC32C")
