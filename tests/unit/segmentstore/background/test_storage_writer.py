"""The storage writer: several objects of one segment at a time, references in order (docs/design.md#tier-2)."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.segmentstore.container.container import Container

from ..conftest import Objects, World, eventually, flush

NAME = "scope/stream/0.#epoch.0"
PIECE = limits.MIB
PIECES = 5 * limits.FLUSH_OBJECT_MAX_BYTES // PIECE


@pytest.fixture
async def filled(world: World, monkeypatch: pytest.MonkeyPatch) -> Container:
    """A container whose segment has five objects' worth of bytes that Tier 2 does not hold."""
    monkeypatch.setattr(limits, "STORAGE_RETRY_MIN_S", 3600.0)  # only what the test asks for is flushed
    world.cache_bytes = 128 * limits.MIB
    container = await world.open()
    await container.create_segment(NAME)
    world.objects.outage = True
    for number in range(PIECES):
        await container.append(NAME, [bytes([number]) * PIECE])
    await eventually(lambda: container.status().reason)
    world.objects.outage = False
    return container


async def check_content(container: Container) -> None:
    for number in range(PIECES):
        offset = number * PIECE
        while offset < (number + 1) * PIECE:
            result = await container.read(NAME, offset, (number + 1) * PIECE - offset, wait=False)
            assert result.length > 0
            assert all(bytes(part).strip(bytes([number])) == b"" for part in result.data)
            offset += result.length


async def test_objects_of_one_segment_are_written_side_by_side(world: World, filled: Container) -> None:
    await filled.flush_to_storage()
    assert 2 <= world.objects.most_under_way <= limits.UPLOADS_MAX
    chunks = await filled.list_chunks(NAME)
    assert sum(chunk.length_bytes for chunk in chunks) == PIECES * PIECE
    await filled.close()
    await check_content(await world.open())


class SlowReads(Objects):
    """Objects that take some turns of the loop to be read, and count how many are read at a time."""

    reading = most_reading = 0

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        try:
            for _ in range(10):
                await asyncio.sleep(0)
            return await super().get_range(key, offset, length)
        finally:
            self.reading -= 1


async def test_chunks_are_looked_for_side_by_side_and_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPACT_TICK_S", 3600.0)
    world.objects = objects = SlowReads()
    container = await world.open()
    await container.create_segment(NAME)
    for _ in range(3 * limits.STORAGE_READS_MAX):
        await container.append(NAME, [b"chunk"])
        await flush(container)
    listed = await container.list_chunks(NAME)
    assert [chunk.start_offset for chunk in listed] == list(range(0, 15 * limits.STORAGE_READS_MAX, 5))
    assert all(chunk.exists for chunk in listed)
    assert objects.most_reading == limits.STORAGE_READS_MAX
    assert await container.list_chunks(NAME, 10, 2) == listed[2:4]
    assert await container.list_chunks(NAME, 11, 1) == listed[2:3], "it ends behind 11"
    assert await container.list_chunks(NAME, listed[-1].start_offset + 5, 2) == []


async def test_an_object_that_fails_keeps_back_no_other_one(world: World, filled: Container) -> None:
    world.objects.failing_puts = {world.objects.puts + 2}
    with pytest.raises(UnavailableError):
        await filled.flush_to_storage()
    offsets = [chunk.start_offset for chunk in await filled.list_chunks(NAME)]
    assert limits.FLUSH_OBJECT_MAX_BYTES not in offsets
    assert 2 * limits.FLUSH_OBJECT_MAX_BYTES in offsets
    await filled.flush_to_storage()
    assert sum(chunk.length_bytes for chunk in await filled.list_chunks(NAME)) == PIECES * PIECE
    await filled.close()
    await check_content(await world.open())


@pytest.mark.usefixtures("frequent_snapshots")
async def test_deletions_that_fail_keep_back_no_checkpoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is truncated nevertheless, and the objects stay recorded until they are deleted."""
    monkeypatch.setattr(limits, "FLUSH_INTERVAL_S", 0.01)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MIN_S", 0.01)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_OPERATIONS", 1)
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"deleted"])
    await eventually(lambda: not container.status().untiered_bytes)
    (doomed,) = container.state.object_uses
    world.objects.refuses_deletes = True
    await container.delete(NAME)
    await eventually(lambda: world.objects.refused_deletes >= 3)  # older snapshots count, too
    await eventually(lambda: "deletes nothing" in container.status().reason)
    await container.create_segment(NAME)
    frame = container.core.log.next_sequence
    await container.append(NAME, [b"kept"])
    await eventually(lambda: container.core.log.log_start > frame)
    assert doomed in container.state.pending_deletes
    await container.close()
    container = await world.open()
    assert doomed in container.state.pending_deletes, "the checkpoint names it"
    world.objects.refuses_deletes = False
    await eventually(lambda: not container.state.pending_deletes and not container.status().reason)
