"""Bytes that recovery leaves in the log: a read or a flush takes a frame of small appends at once."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest
import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, UnavailableError
from tailrace.kernel import BLOCK_BYTES
from tailrace.segmentstore.container.container import Container
from tailrace.storage.port import Buffer

from ..conftest import Objects, World, flush
from .test_container import NAME, content

OTHER = "scope/stream/1.#epoch.0"
FILLER = "scope/stream/2.#epoch.0"
Reopen = Callable[[], Awaitable[Container]]
APPENDS = 10_000


async def fill_cache(container: Container) -> None:
    """Append bytes that Tier 2 lacks until a recovery finds no more room in a cache of 2 MiB."""
    await container.create_segment(FILLER)
    for _ in range(2 * limits.MIB // BLOCK_BYTES):
        await container.append(FILLER, [bytes(BLOCK_BYTES)])  # alone: recovery leaves room for one


async def left_in_log(world: World, reopen: Reopen, where: str) -> Container:
    """Append with Tier 2 away, and open again so that the last bytes find no room in the cache."""
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
    world.objects.outage = True
    await asyncio.gather(*(container.append(name, [block(n)]) for n in range(APPENDS) for name in (NAME, OTHER)))
    if where == "before the checkpoint":
        await container.background.checkpointer.run_if_due(force=True)
    world.cache_bytes = 2 * limits.MIB  # of which recovery leaves a quarter free
    container = await reopen()
    entries = [entry for segment in container.core.state.segments.values() for entry in segment.read_index]
    assert any(entry.address < 0 for entry in entries)
    assert len(entries) < APPENDS / 20
    return container


def block(number: int) -> bytes:
    return number.to_bytes(4, "big") * 25


WHERE = pytest.mark.parametrize("where", ["before the checkpoint", "no checkpoint"])
EXPECTED = b"".join(map(block, range(APPENDS)))


@WHERE
async def test_reading_small_appends_reads_each_frame_a_few_times(
    world: World, reopen: Reopen, frame_reads: Counter[int], where: str
) -> None:
    container = await left_in_log(world, reopen, where)
    assert await content(container) == EXPECTED
    assert await content(container, OTHER) == EXPECTED
    # Both segments read each frame; a request that ends within a frame leaves the rest to the next one.
    assert max(frame_reads.values()) <= 4
    assert frame_reads.total() <= 2 * len(frame_reads) + 4


@WHERE
async def test_flushing_small_appends_reads_each_frame_once_for_each_segment(
    world: World, reopen: Reopen, frame_reads: Counter[int], where: str
) -> None:
    container = await left_in_log(world, reopen, where)
    world.objects.outage = False
    await container.flush_to_storage()
    assert container.status().untiered_bytes == 0
    assert max(frame_reads.values()) <= 3, "and once more where a run of a flush ends within a frame"
    container = await reopen()
    frame_reads.clear()
    assert await content(container) == await content(container, OTHER) == EXPECTED
    assert not frame_reads


async def test_any_range_of_what_is_in_the_log_and_in_the_cache_is_right(
    world: World, reopen: Reopen, frame_reads: Counter[int]
) -> None:
    """Small appends of two segments in the same frames, and some longer than a frame; a merge and truncations."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    world.cache_bytes = 128 * limits.MIB
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
    world.objects.outage = True
    expected = {NAME: b"", OTHER: b""}
    for _ in range(12):
        group = []
        lengths = chance.choices((1, 7, 100, 100, 100, 5000), k=chance.randrange(1, 200))
        lengths[chance.randrange(len(lengths))] = chance.choice((1, 3 * limits.MIB))
        for length in lengths:
            name = chance.choice((NAME, OTHER))
            data = chance.randbytes(length)
            expected[name] += data
            group.append(container.append(name, [data]))
        await asyncio.gather(*group)
        if chance.random() < 0.3:
            await container.background.checkpointer.run_if_due(force=True)
    await container.seal(OTHER)
    if chance.random() < 0.5:
        await container.merge(NAME, OTHER)
        expected[NAME] += expected.pop(OTHER)
    await container.background.checkpointer.run_if_due(force=True)
    world.cache_bytes = 2 * limits.MIB
    container = await reopen()
    for name, whole in expected.items():
        starts = [0, *(chance.randrange(len(whole)) for _ in range(30))]
        for start in starts:
            result = await container.read(name, start, chance.choice((1, 99, 10_000, 2 * limits.MIB)), wait=False)
            assert b"".join(map(bytes, result.data)) == whole[start : start + result.length], (seed, name, start)
            assert result.length > 0
        cut = chance.randrange(len(whole))
        await container.truncate(name, cut)
        assert await content(container, name) == whole[cut:], seed
        expected[name] = whole[cut:]
    assert frame_reads.total() > 0
    world.objects.outage = False
    await container.flush_to_storage()
    container = await reopen()
    for name, kept in expected.items():
        assert await content(container, name) == kept, seed


@WHERE
async def test_a_merge_may_put_bytes_behind_others_that_are_later_in_the_frame(
    world: World, reopen: Reopen, frame_reads: Counter[int], where: str
) -> None:
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
    world.objects.outage = True
    await fill_cache(container)
    await asyncio.gather(
        *(container.append(OTHER, [block(n)]) for n in range(100, 200)),
        *(container.append(NAME, [block(n)]) for n in range(100)),
    )
    await container.seal(OTHER)
    await container.merge(NAME, OTHER)
    if where == "before the checkpoint":
        await container.background.checkpointer.run_if_due(force=True)
    world.cache_bytes = 2 * limits.MIB
    container = await reopen()
    expected = b"".join(map(block, range(200)))
    for start in (0, 9_950, 9_999, 10_000):
        result = await container.read(NAME, start, len(expected), wait=False)
        assert result.length > 0
        assert b"".join(map(bytes, result.data)) == expected[start : start + result.length]
    assert frame_reads.total() > 0
    world.objects.outage = False
    await container.flush_to_storage()
    assert await content(await reopen()) == expected


async def test_one_read_takes_a_bounded_number_of_frames(
    world: World, reopen: Reopen, frame_reads: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_READ_FRAMES_MAX", 5)
    container = await world.open()
    await container.create_segment(NAME)
    world.objects.outage = True
    await fill_cache(container)
    for number in range(20):  # each in a frame of its own
        await container.append(NAME, [block(number)])
    await container.background.checkpointer.run_if_due(force=True)
    world.cache_bytes = 2 * limits.MIB
    container = await reopen()
    result = await container.read(NAME, 0, 1 << 20, wait=False)
    assert result.length == 500
    assert frame_reads.total() == 5
    assert await content(container) == b"".join(itertools.islice(map(block, itertools.count()), 20))


class FirstChunkFails(Objects):
    """Refuses the chunk that begins a segment, and takes all others."""

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        if key.startswith("c") and "/0000000000000000-" in key:
            raise UnavailableError("the first chunk is refused")
        await super().put(key, data, if_absent=if_absent)


@pytest.mark.parametrize("where", ["cached", "left in the log", "replayed to the cache", "replayed, left in the log"])
async def test_a_truncation_within_an_entry_ends_it_if_tier2_holds_the_rest(
    world: World, reopen: Reopen, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """No later chunk touches the entry: it pointed to a frame that the log no longer had, or was never evicted."""
    monkeypatch.setattr(limits, "FLUSH_OBJECT_MAX_BYTES", 1_500_000)
    world.objects = FirstChunkFails()
    world.objects.outage = True
    container = await world.open()
    await container.create_segment(NAME)
    if where == "left in the log":
        await fill_cache(container)
    expected = [block(number) * 4 for number in range(APPENDS)]
    await asyncio.gather(*(container.append(NAME, [data]) for data in expected))
    if where == "left in the log":
        await container.background.checkpointer.run_if_due(force=True)
        world.cache_bytes = 2 * limits.MIB
        container = await reopen()
        await container.delete(FILLER)
    world.objects.outage = False
    with pytest.raises(UnavailableError, match="the first chunk is refused"):
        await flush(container)
    segment = container.state.by_name[NAME]
    boundary, size = next(iter(segment.chunks)).segment_offset, len(expected[0])
    entry = segment.read_index.find(boundary)
    assert entry is not None
    assert entry.offset < boundary < entry.end - size
    await container.truncate(NAME, boundary + size)
    if "replayed" in where:
        world.cache_bytes = 2 * limits.MIB if "log" in where else world.cache_bytes
        container = await reopen()
        segment = container.state.by_name[NAME]
    await container.flush_to_storage()
    assert all(entry.evictable and entry.address >= 0 for entry in segment.read_index)
    assert await content(container) == b"".join(expected)[boundary + size :]


async def test_a_read_of_a_missing_frame_falls_back_to_tier2(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"in Tier 2"])
    await container.flush_to_storage()
    index = container.state.by_name[NAME].read_index
    world.cache.drop_all(index)
    await container.append(NAME, [b" and not"])
    world.cache.drop_all(index)
    world.cache.add_log_places(index, 0, 17, ((10_000, 0, 17),))
    with structlog.testing.capture_logs() as logs:
        result = await container.read(NAME, 3, 100, wait=False)
    assert b"".join(map(bytes, result.data)) == b"Tier 2"
    (line,) = [line for line in logs if line["event"] == "log_frame_not_readable"]
    assert (line["segment"], line["offset"]) == (NAME, 3)
    assert "log frame 10000 does not exist" in line["error"]
    with pytest.raises(CorruptionError, match=r"at 9: its bytes are in the log: log frame 10000 does not exist"):
        await container.read(NAME, 9, 100, wait=False)
