"""A log whose disk gets full at any moment: what was staged is written, the rest is refused, the log heals itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import structlog

from sim import SimWorld
from sim.process import SimProcess
from tailrace.common import limits
from tailrace.common.errors import DiskFullError
from tailrace.kernel import BlockCache
from tailrace.log.file import FileLog
from tailrace.log.space import FrameSpace
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts

KIB = 1024
NAME = "scope/stream/0.#epoch.0"
SIZES = (100, 5_000, 30_000, 1, 16_000, 90_000)
WRITERS = 4
ANSWER_DEADLINE_S = 120.0


class Scenario:
    """Writers of one container over a small simulated disk; Tier 2 is another one."""

    def __init__(self, world: SimWorld, container: Container) -> None:
        self.world = world
        self.container = container
        self.stored: dict[int, bytes] = {}
        self.refused = 0

    async def write(self, writer: int, count: int) -> None:
        """Append; everything is answered soon, by an acknowledgement or by a refusal."""
        for number in range(count):
            data = bytes([1 + (writer * 50 + number) % 255]) * SIZES[(number + writer) % len(SIZES)]
            try:
                async with asyncio.timeout(ANSWER_DEADLINE_S):
                    offset, _ = await self.container.append(NAME, [data])
            except DiskFullError:
                self.refused += 1
                await asyncio.sleep(0.05)
            else:
                self.stored[offset] = data

    async def check(self) -> None:
        """Everything that was acknowledged is there, and nothing else."""
        length = (await self.container.info(NAME)).length
        assert length == sum(map(len, self.stored.values()))
        for offset, data in self.stored.items():
            assert await self.container.read_exact(NAME, offset, len(data)) == data


async def opened(world: SimWorld, process: SimProcess, epoch: int, recorded: list[int]) -> Container:
    """Open the container. `recorded` are the epochs for which its log is known to have been opened."""
    log = FileLog(
        world.disk.attach(process),
        "/data/log",
        1,
        file_bytes=256 * KIB,
        max_frame_bytes=16 * KIB,
        reserve_bytes=48 * KIB,
        opened_epoch=max(recorded, default=0),
        opens_full=True,
    )
    ports = ContainerPorts(
        log=log,
        store=world.store.attach(process),
        cache=CacheManager(BlockCache(8 << 20)),
        clock=world.clock(),
        entropy=world.entropy("store"),
        cluster_id=bytes(16),
        log_opened=recorded.append,
    )
    container = Container(1, epoch, ports)
    await container.start(bytes(16))
    return container


def run_scenario(main: Callable[[Scenario], Awaitable[None]]) -> None:
    with SimWorld(3) as world:
        process = world.process("store")

        async def run() -> None:
            container = await opened(world, process, 1, [])
            await container.create_segment(NAME)
            await main(Scenario(world, container))
            await container.close()

        async def whole() -> None:
            await process.spawn(run())

        world.run(whole())


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 256 * KIB)
    monkeypatch.setattr(limits, "CONTROL_OPERATION_MAX_BYTES", 4 * KIB)


@pytest.mark.parametrize("turns", range(0, 400, 8))
def test_full_from_any_moment_on(turns: int) -> None:
    """Nothing hangs; once Tier 2 holds the bytes, the log truncates itself and takes appends again."""

    async def main(scenario: Scenario) -> None:
        writers = [asyncio.ensure_future(scenario.write(writer, 30)) for writer in range(WRITERS)]
        await asyncio.sleep(turns * 0.001)
        scenario.world.disk.capacity_bytes = scenario.world.disk.used_bytes()
        await asyncio.gather(*writers)
        assert scenario.refused
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            while True:
                try:
                    offset, _ = await scenario.container.append(NAME, [b"healed"])
                    break
                except DiskFullError:
                    await asyncio.sleep(1)
        scenario.stored[offset] = b"healed"
        await scenario.check()

    run_scenario(main)


@pytest.mark.parametrize("turns", range(0, 200, 10))
def test_full_while_tier_2_does_not_answer(turns: int) -> None:
    """Nothing gives space back: writers are refused, nothing hangs, room on the disk heals it; two lines tell of it."""

    async def main(scenario: Scenario) -> None:
        scenario.world.store.failure_chance = 1.0
        with structlog.testing.capture_logs() as lines:
            writers = [asyncio.ensure_future(scenario.write(writer, 40)) for writer in range(WRITERS)]
            await asyncio.sleep(turns * 0.001)
            scenario.world.disk.capacity_bytes = scenario.world.disk.used_bytes()
            await asyncio.gather(*writers)
            assert scenario.refused
            # The reserve is for what gives space back.
            await scenario.container.truncate(NAME, 1)
            scenario.world.disk.capacity_bytes = 1 << 40
            scenario.world.store.failure_chance = 0.0
            await asyncio.sleep(30)
            offset, _ = await scenario.container.append(NAME, [b"healed"])
        reported = [line for line in lines if str(line["event"]).startswith("log_disk")]
        assert [line["event"] for line in reported] == ["log_disk_full", "log_disk_has_room"]
        assert reported[1]["refused_operations"] == scenario.refused
        assert scenario.container.status().reason == ""
        scenario.stored[offset] = b"healed"
        first = scenario.stored.pop(0)
        assert await scenario.container.read_exact(NAME, 1, len(first) - 1) == first[1:]
        for at, data in scenario.stored.items():
            assert await scenario.container.read_exact(NAME, at, len(data)) == data

    run_scenario(main)


def test_what_was_staged_before_the_disk_was_known_to_be_full_is_written() -> None:
    """Many appends in one turn: only as many are staged as the files at hand take; the others are refused."""

    async def main(scenario: Scenario) -> None:
        scenario.world.disk.capacity_bytes = scenario.world.disk.used_bytes()
        scenario.world.store.failure_chance = 1.0
        appends = [asyncio.ensure_future(scenario.container.append(NAME, [bytes([n]) * 8_000])) for n in range(1, 120)]
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            results = await asyncio.gather(*appends, return_exceptions=True)
        refused = [result for result in results if isinstance(result, DiskFullError)]
        assert refused
        assert len(refused) < len(results)
        assert all(isinstance(result, tuple | DiskFullError) for result in results)
        scenario.world.store.failure_chance = 0.0

    run_scenario(main)


@pytest.mark.parametrize("power", [False, True])
def test_an_opening_without_any_room(power: bool) -> None:
    """Owners that die on a full disk leave nothing; the data is read meanwhile, and room lets the last one write."""
    data, recorded = b"acknowledged" * 1000, list[int]()

    async def write(world: SimWorld, process: SimProcess) -> None:
        container = await opened(world, process, 1, recorded)
        await container.create_segment(NAME)
        await container.append(NAME, [data])

    async def read(world: SimWorld, process: SimProcess, epoch: int) -> Container:
        container = await opened(world, process, epoch, recorded)
        assert await container.read_exact(NAME, 0, len(data)) == data
        assert "no space for" in container.status().reason
        with pytest.raises(DiskFullError, match="no space for"):
            await container.append(NAME, [b"refused"])
        return container

    async def write_again(world: SimWorld, process: SimProcess) -> None:
        container = await read(world, process, 5)
        await asyncio.sleep(60)  # of the simulation: background tasks wait for room, too
        assert container.status().state == "running"
        assert recorded == [1]
        world.disk.end_episodes()
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            while container.status().reason:  # noqa: ASYNC110  # the status is plain data
                await asyncio.sleep(0.1)
        await container.append(NAME, [b"more"])
        assert recorded == [1, 5]

    async def read_again(world: SimWorld, process: SimProcess) -> None:
        container = await opened(world, process, 6, recorded)
        assert await container.read_exact(NAME, 0, len(data) + 4) == data + b"more"
        await container.close()

    with SimWorld(5) as world:

        async def whole() -> None:
            owner = world.process("1")
            await owner.spawn(write(world, owner))
            for epoch in (2, 3, 4):
                world.crash(owner, power=power)
                world.disk.fill(1e9)
                owner = world.process(str(epoch))
                await owner.spawn(read(world, owner, epoch))
            for work in (write_again, read_again):
                world.crash(owner, power=power)
                owner = world.process(work.__name__)
                await owner.spawn(work(world, owner))

        world.run(whole())


@pytest.mark.parametrize("frame_bytes", [1, 7, 60, 100])
def test_what_fits_by_the_rule_fits_in_any_order(frame_bytes: int) -> None:
    """Against a packing that takes every frame at its worst moment."""
    space = FrameSpace(100, frame_bytes)
    for count in (1, 2, 3, 9):
        for length in range(1, count * frame_bytes + 1, max(1, frame_bytes // 3)):
            files = space.files_for(length, count)
            assert space.fits(length, count, 0, files)
            for room in (0, 5, 50, 99):
                for present in range(files + 1):
                    if space.fits(length, count, room, present):
                        for frames in packings(length, count, frame_bytes):
                            assert packed(frames, room, present), (length, count, room, present, frames)


def packings(length: int, count: int, largest: int) -> list[list[int]]:
    """Some ways to cut a length into so many frames."""
    result = []
    for first_small in (False, True):
        frames: list[int] = []
        left = length
        for number in range(count):
            rest = count - number - 1
            low, high = max(0, left - rest * largest), min(left, largest)
            take = low if first_small == (number % 2 == 0) else high
            frames.append(take)
            left -= take
        result.append(frames)
    return result


def packed(frames: list[int], room: int, files: int) -> bool:
    for frame in frames:
        if frame > room:
            if not files:
                return False
            files -= 1
            room = 100
        room -= frame
    return True
