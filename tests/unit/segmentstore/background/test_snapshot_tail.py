"""What a snapshot has beside its checkpoint is of one moment, and what is flushed meanwhile is not written again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tailrace.common import limits
from tailrace.segmentstore.background.snapshot_tail import SnapshotTail, capture
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.coverage import Coverage
from tailrace.segmentstore.metadata.fields import ChunkRef

from ..conftest import World, eventually, flush, newest, stored

A, B, C = "scope/a/0.#epoch.0", "scope/b/1.#epoch.0", "scope/c/2.#epoch.0"
SMALL = bytes(range(256)) * 8
Meanwhile = Callable[[Container], Awaitable[None]]


@asynccontextmanager
async def waiting_snapshot(container: Container, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A snapshot that waits for the flush while the block runs, and is stored at its end."""
    patch.setattr(limits, "SNAPSHOT_COPY_MAX_BYTES", 0)
    patch.setattr(limits, "SNAPSHOT_FLUSH_TICK_S", 0.001)
    snapshotter = container.background.snapshotter
    await container.core.barrier()
    taking = asyncio.create_task(snapshotter._take(flush_wait_s=60.0))
    await eventually(lambda: container.core.cache.cache.pinned_blocks)
    yield
    if not taking.done():
        snapshotter._hurries += 1
    assert await taking
    assert container.core.cache.cache.pinned_blocks == 0
    assert not container.state.flush_boundaries


@pytest.fixture
async def container(world: World) -> Container:
    """A container whose segments have bytes in Tier 2 and bytes in the log alone."""
    container = await world.open()
    for name in (A, B, C):
        await container.create_segment(name)
        await container.append(name, [b"tiered "])
    await flush(container)
    for name in (A, B, C):
        await container.append(name, [SMALL])
        await container.append(name, [name.encode()])
    return container


def content(name: str) -> bytes:
    return b"tiered " + SMALL + name.encode()


async def check(world: World) -> None:
    """Nothing of what came while it waited is in the snapshot."""
    _, state = await newest(world)
    assert set(state.by_name) == {A, B, C}
    for name in (A, B, C):
        assert await stored(world, state, name) == content(name)


async def test_what_is_flushed_meanwhile_is_written_once(
    world: World, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with waiting_snapshot(container, monkeypatch):
        for name in (A, B, C):
            await container.append(name, [b"later"])  # flushed with the rest, to chunks of its own
        await flush(container)
        chunks = {item.key async for item in world.objects.list("c7")}
        await eventually(lambda: container.background.snapshotter.sequence >= 0)
    assert {item.key async for item in world.objects.list("c7")} == chunks == set(container.state.object_uses)
    assert not container.state.pending_deletes
    await check(world)


async def test_a_part_that_is_flushed_is_not_written_again(
    world: World, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = container.state.by_name[A]
    async with waiting_snapshot(container, monkeypatch):
        await container.background.writer._flush([segment])
    _, state = await newest(world)
    assert list(state.by_name[A].chunks) == list(segment.chunks)
    assert list(state.by_name[B].chunks)[1].object_key in container.state.pending_deletes
    await check(world)


async def test_one_that_is_asked_for_waits_for_no_flush(
    world: World, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FLUSH_INTERVAL_S", 1e6)
    async with waiting_snapshot(container, monkeypatch):
        async with asyncio.timeout(30):  # of the 60 that the other one would wait
            assert await container.background.snapshotter.take()
    await check(world)


async def merge(container: Container) -> None:
    await container.seal(B)
    await container.merge(A, B)
    await flush(container)


async def delete(container: Container) -> None:
    await flush(container)
    await container.delete(B)


async def truncate(container: Container) -> None:
    await container.truncate(A, len(content(A)) - 2)
    await flush(container)
    await container.truncate(C, 3)


async def delete_and_create_again(container: Container) -> None:
    await container.delete(A)
    await container.create_segment(A)
    await container.append(A, [b"of another segment, which is longer than the one before" * 100])
    await flush(container)


async def compact(container: Container) -> None:
    """Chunks become one that begins before what the snapshot lacks, and goes on behind it."""
    await container.append(A, [b"later"])
    await flush(container)
    segment = container.state.by_name[A]
    assert len(segment.chunks) == 3
    await container.background.compaction._compact(segment, list(segment.chunks))
    assert len(segment.chunks) == 1


@pytest.mark.parametrize("meanwhile", [merge, delete, truncate, delete_and_create_again, compact])
@pytest.mark.parametrize("looks", [True, False], ids=["seen at each step", "seen at the end"])
async def test_it_is_as_of_one_moment_whatever_comes_meanwhile(
    world: World, container: Container, monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile, looks: bool
) -> None:
    async with waiting_snapshot(container, monkeypatch):
        if not looks:
            monkeypatch.setattr(limits, "SNAPSHOT_FLUSH_TICK_S", 0.2)
            await asyncio.sleep(0.01)
        await meanwhile(container)
        await asyncio.sleep(0.05)
    await check(world)


@pytest.mark.parametrize("meanwhile", [merge, delete, truncate, delete_and_create_again, compact])
async def test_what_no_chunk_will_have_is_not_waited_for(
    world: World, container: Container, monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile
) -> None:
    """It would keep its room in the cache until the end of the wait."""
    async with waiting_snapshot(container, monkeypatch):
        await meanwhile(container)
        await flush(container)
        await eventually(lambda: container.background.snapshotter.sequence >= 0)
    await check(world)


async def test_what_no_chunk_will_have_is_written_while_others_are_waited_for(
    world: World, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FLUSH_THRESHOLD_BYTES", 1000)  # as much for an object
    async with waiting_snapshot(container, monkeypatch):
        pinned = container.core.cache.cache.pinned_blocks
        await container.delete(B)
        await eventually(lambda: 0 < container.core.cache.cache.pinned_blocks < pinned)
        assert container.background.snapshotter.sequence < 0
    await check(world)


async def test_what_is_flushed_is_unpinned_while_it_waits_for_a_slot(
    world: World, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Tier 2 lags others wait for the slots, too."""
    slots = container.background.snapshotter._ports.upload_slots
    async with waiting_snapshot(container, monkeypatch):
        while not slots.locked():
            await slots.acquire()
        taking = asyncio.create_task(container.background.snapshotter.take())  # nothing is waited for any more
        await asyncio.sleep(0.01)
        pinned = container.core.cache.cache.pinned_blocks
        state, segment = container.state, container.state.by_name[A]
        ref = ChunkRef("c7/flushed", 70, segment.chunks.following(0, 9)[-1].end, segment.pending.length_bytes)
        segment.chunks.add(ref)
        await eventually(lambda: container.core.cache.cache.pinned_blocks < pinned)
        segment.chunks = Coverage([each for each in segment.chunks if each is not ref])
        assert state.flush_boundaries
        for _ in range(limits.UPLOADS_MAX):
            slots.release()
        assert await taking


async def tail_of(container: Container) -> SnapshotTail:
    await container.core.barrier()
    tail = capture(container.state, container.core.cache)
    assert tail is not None
    return tail


async def test_a_chunk_within_an_append_counts_only_with_the_next(container: Container) -> None:
    """Its CRC is that of the whole append."""
    segment = container.state.by_name[A]
    tail = await tail_of(container)
    start, end = 7, len(content(A))
    before = tail.awaited_bytes
    segment.chunks.add(ChunkRef("c7/first", 70, start, 1000))
    tail.take_flushed()
    assert not tail.flushed
    assert tail.awaited_bytes == before
    segment.chunks.add(ChunkRef("c7/second", 70, start + 1000, len(SMALL) - 1000))
    tail.take_flushed()
    assert [ref.object_key for _, ref in tail.flushed] == ["c7/first", "c7/second"]
    assert tail.awaited_bytes == before - len(SMALL)
    assert not tail.next_batch(awaited_too=False)
    segment.chunks.add(ChunkRef("c7/beyond", 70, start + len(SMALL), len(A) + 1))  # compacted with what came later
    (left,) = tail.next_batch(awaited_too=False)
    assert bytes(left.section().data) == A.encode()
    assert len(tail.flushed) == 2
    assert end == start + len(SMALL) + len(A)
    tail.release()
    assert container.core.cache.cache.pinned_blocks == 0


async def test_what_is_flushed_is_unpinned_at_once(container: Container) -> None:
    """Else appends would wait for the end of the snapshot."""
    tail = await tail_of(container)
    pinned = container.core.cache.cache.pinned_blocks
    await container.background.writer._flush([container.state.by_name[A]])
    tail.take_flushed()
    assert container.core.cache.cache.pinned_blocks < pinned
    await flush(container)
    tail.take_flushed()
    assert container.core.cache.cache.pinned_blocks == tail.awaited_bytes == 0
    assert tail.next_batch(awaited_too=True) == []
    tail.release()
