"""A recovery takes bytes from before the last checkpoint that Tier 2 lacks into the cache, at their right place."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.kernel import BLOCK_BYTES
from tailrace.segmentstore.container.container import Container

from ..conftest import World, flush
from .test_container import NAME, content

Reopen = Callable[[], Awaitable[Container]]


def name_of(number: int) -> str:
    return f"scope/stream/{number}.#epoch.0"


async def checkpoint(container: Container) -> None:
    await container.background.checkpointer.run_if_due(force=True)


async def test_reads_and_the_first_flush_read_no_frame_again(
    world: World, reopen: Reopen, frame_reads: Counter[int]
) -> None:
    container = await world.open()
    names = [name_of(number) for number in range(50)]
    for name in names:
        await container.create_segment(name)
    world.objects.outage = True
    for turn in range(5):
        await asyncio.gather(*(container.append(name, [f"{turn} of {name};".encode()]) for name in names))
    await checkpoint(container)
    container = await reopen()
    for name in names:
        assert await content(container, name) == b"".join(f"{turn} of {name};".encode() for turn in range(5))
    world.objects.outage = False
    await container.flush_to_storage()
    assert container.status().untiered_bytes == 0
    assert not frame_reads


async def test_appends_of_many_frames_share_blocks(world: World, reopen: Reopen) -> None:
    container = await world.open()
    for name in (NAME, name_of(1)):
        await container.create_segment(name)
    world.objects.outage = True
    await container.append(name_of(1), [bytes(5)])
    for number in range(50):  # two frames each; those of one segment come to lie behind those of the other
        await container.append(NAME, [b"%099d;" % number])
        await container.append(name_of(1), [b"%099d," % number])
    await container.seal(name_of(1))
    await container.merge(NAME, name_of(1))
    await checkpoint(container)
    container = await reopen()
    index = container.state.by_name[NAME].read_index
    assert [entry.length for entry in index if entry.address >= 0] == [5000, 5005]
    cache = world.cache.cache
    assert cache.snapshot().total_blocks - cache.free_blocks == 4


async def test_early_bytes_that_a_later_flush_took_leave_room_for_the_tail(world: World, reopen: Reopen) -> None:
    container = await world.open()
    for name in (NAME, name_of(1)):
        await container.create_segment(name)
    await container.append(NAME, [bytes(1_400_000)])
    await checkpoint(container)
    await flush(container)
    world.objects.outage = True
    for number in range(10):
        await container.append(name_of(1), [bytes([number]) * 100_000])
    world.cache_bytes = 2 * limits.MIB
    container = await reopen()
    entries = list(container.state.by_name[name_of(1)].read_index)
    assert entries
    assert all(entry.address >= 0 for entry in entries)
    assert await content(container, name_of(1)) == b"".join(bytes([number]) * 100_000 for number in range(10))


@pytest.mark.parametrize("forgotten", [(), (0,), (1,), (0, 1)])
async def test_merges_that_a_checkpoint_has_forgotten_stand_in_the_log(
    world: World, reopen: Reopen, frame_reads: Counter[int], forgotten: tuple[int, ...]
) -> None:
    """The first segment is merged into the second, and that into the third."""
    container = await world.open()
    names = [name_of(number) for number in range(3)]
    for name in names:
        await container.create_segment(name)
    world.objects.outage = True
    wholes = [b"%d;" % number * (number + 3) for number in range(3)]
    for number, name in enumerate(names):
        await asyncio.gather(*(container.append(name, [b"%d;" % number]) for _ in range(number + 3)))
    state = container.state
    ids = [state.by_name[name].segment_id for name in names]
    for source, target in itertools.pairwise(names):
        await container.seal(source)
        await container.merge(target, source)
    for number in forgotten:
        del state.merged[names[number]], state.moves[ids[number]]
    await checkpoint(container)
    container = await reopen()
    assert await content(container, names[2]) == wholes[2] + wholes[1] + wholes[0]
    assert bool(frame_reads) == bool(forgotten), "what lies at an unknown place stays in the log"
    world.objects.outage = False
    await container.flush_to_storage()
    assert await content(await reopen(), names[2]) == wholes[2] + wholes[1] + wholes[0]


async def test_appends_that_span_frames_and_partly_truncated_ones(
    world: World, reopen: Reopen, frame_reads: Counter[int]
) -> None:
    container = await world.open()
    for name in (NAME, name_of(1)):
        await container.create_segment(name)
    world.objects.outage = True
    large = random.Random(1).randbytes(3 * limits.MIB)
    await asyncio.gather(
        container.append(NAME, [b"first"]), container.append(NAME, [large]), container.append(NAME, [b"last"])
    )
    await container.append(name_of(1), [large])
    await container.truncate(NAME, 1_000_000)
    await container.truncate(name_of(1), len(large))
    await checkpoint(container)
    await container.append(NAME, [b"after"])
    container = await reopen()
    assert not len(container.state.by_name[name_of(1)].read_index)
    assert await content(container) == (b"first" + large + b"last" + b"after")[1_000_000:]
    world.objects.outage = False
    await container.flush_to_storage()
    assert not frame_reads
    assert await content(await reopen()) == (b"first" + large + b"last" + b"after")[1_000_000:]


async def test_a_truncation_between_appends_of_one_frame(
    world: World, reopen: Reopen, frame_reads: Counter[int]
) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    world.objects.outage = True
    await asyncio.gather(*(container.append(NAME, [b"%099d;" % number]) for number in range(20)))
    await container.truncate(NAME, 950)
    await checkpoint(container)
    container = await reopen()
    (entry,) = container.state.by_name[NAME].read_index
    assert (entry.offset, entry.length) == (900, 1100)
    expected = b"".join(b"%099d;" % number for number in range(20))[950:]
    assert await content(container) == expected
    world.objects.outage = False
    await container.flush_to_storage()
    assert not frame_reads
    assert await content(await reopen()) == expected


class History:
    """Random operations on a container, and what its segments hold after them."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.container: Container
        self.expected: dict[str, bytes] = {}
        self.starts: dict[str, int] = {}
        self._names = 0

    async def step(self) -> None:
        actions = [self.create, self.append, self.append, self.append, self.merge, self.merge, self.truncate]
        await self.chance.choice([*actions, self.delete, self.checkpoint, self.tier])()

    def _pick(self) -> str:
        return self.chance.choice(list(self.expected))

    async def create(self) -> None:
        self._names += 1
        name = name_of(self._names)
        await self.container.create_segment(name)
        self.expected[name], self.starts[name] = b"", 0

    async def append(self) -> None:
        """Append many at once, so that frames hold several segments; some appends span frames."""
        group = []
        for _ in range(self.chance.randrange(1, 60)):
            name = self._pick()
            length = self.chance.choice((1, 7, 100, 100, 100, BLOCK_BYTES, 5000))
            data = self.chance.randbytes(3 * limits.MIB // 2 if self.chance.random() < 0.004 else length)
            self.expected[name] += data
            group.append(self.container.append(name, [data]))
        await asyncio.gather(*group)

    async def merge(self) -> None:
        sources = [name for name, start in self.starts.items() if not start]
        if len(self.expected) < 4 or not sources:
            return
        source = self.chance.choice(sources)
        target = self.chance.choice([name for name in self.expected if name != source])
        await self.container.seal(source)
        await self.container.merge(target, source)
        self.expected[target] += self.expected.pop(source)
        del self.starts[source]

    async def truncate(self) -> None:
        name = self._pick()
        start = self.chance.randint(self.starts[name], len(self.expected[name]))
        if self.chance.random() < 0.3:
            await self.container.truncate(name, start)
            self.starts[name] = start

    async def delete(self) -> None:
        if len(self.expected) > 4:
            name = self._pick()
            await self.container.delete(name)
            del self.expected[name], self.starts[name]

    async def checkpoint(self) -> None:
        await checkpoint(self.container)

    async def tier(self) -> None:
        """Flush some segments, now and then with one object in two refused."""
        objects = self.world.objects
        if self.chance.random() < 0.5:
            objects.failing_puts = {objects.puts + 1 + 2 * number for number in range(20)}
        segments = list(self.container.state.segments.values())
        some = [item for item in segments if item.pending and not item.flushing and self.chance.random() < 0.4]
        with contextlib.suppress(UnavailableError):
            await self.container.background.writer._flush(some)
        objects.failing_puts = set()

    async def check(self) -> None:
        for name, whole in self.expected.items():
            assert await content(self.container, name) == whole[self.starts[name] :], name


@pytest.mark.parametrize("remembered", [0, 3, limits.MERGED_SOURCES_REMEMBERED_MAX])
async def test_any_history_comes_back(
    world: World, frame_reads: Counter[int], monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    """Merges on both sides of checkpoints, truncations, deletions, flushes; with and without room in the cache."""
    monkeypatch.setattr(limits, "MERGED_SOURCES_REMEMBERED_MAX", remembered)
    monkeypatch.setattr(limits, "FLUSH_INTERVAL_S", 3600.0)
    monkeypatch.setattr(limits, "FLUSH_OBJECT_MAX_BYTES", limits.MIB)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    history = History(world, chance)
    history.container = await world.open()
    for _ in range(4):
        await history.create()
    for _ in range(5):
        for _ in range(chance.randrange(5, 40)):
            await history.step()
        await history.container.close()
        world.cache_bytes = chance.choice((2 * limits.MIB, 64 * limits.MIB))
        history.container = await world.open()
        await history.check()
        await history.container.close()
        world.cache_bytes = 64 * limits.MIB
        frame_reads.clear()
        history.container = await world.open()
        await history.check()
    await history.container.flush_to_storage()  # verifies the CRC of each append
    await history.check()
    await history.container.close()
    history.container = await world.open()
    await history.check()
