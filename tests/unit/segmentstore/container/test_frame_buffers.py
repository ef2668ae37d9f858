"""The buffers of log frames: reused, given back when nothing reads them, never while something does."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.log.port import Buffer
from tailrace.segmentstore.api import AppendRequest
from tailrace.segmentstore.container.arena_pool import ArenaPool
from tailrace.segmentstore.container.operation_processor import Frame, OperationProcessor, StagedAppend

FRAME_BYTES = 1000
HEADER = b"header of an append"


class HeldLog(MemoryLog):
    """A log whose frames become durable when the test says so; until then it reads their buffers."""

    def __init__(self) -> None:
        super().__init__(MemoryLogStore())
        self.waiting: list[tuple[bytes, Buffer, asyncio.Future[int]]] = []

    @property
    def frame_target_bytes(self) -> int:
        return FRAME_BYTES

    @property
    def frames_in_flight_max(self) -> int:
        return 3

    @property
    def part_frames_in_flight_max(self) -> int:
        return 2

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiting.append((b"".join(payload), payload[0], future))
        self._next_sequence += 1
        return future

    async def acknowledge(self) -> None:
        content, buffer, future = self.waiting.pop(0)
        assert content == buffer, "the buffer of a frame changed while the log wrote it"
        future.set_result(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


class Scenario:
    """An operation processor that checks each append's bytes when it commits."""

    def __init__(self, pool_bytes: int, arenas: ArenaPool | None = None) -> None:
        self.log = HeldLog()
        self.arenas = arenas or ArenaPool(pool_bytes)
        self.processor = OperationProcessor(self.log, self.arenas, 0, self._commit, self._lost)
        self.staged: list[bytes] = []
        self.committed = 0
        self.keep_from: list[tuple[int, int]] = []

    def _commit(self, frame: Frame) -> None:
        for item in frame.items:
            assert isinstance(item, StagedAppend)
            assert b"".join(piece for _, piece in item.pieces) == self.staged[self.committed]
            self.committed += 1
        self.keep_from.append((frame.sequence, frame.keep_from))

    def _lost(self, error: Exception) -> None:
        raise error

    async def stage(self, data: bytes) -> None:
        self.staged.append(data)
        request = AppendRequest("s", (data,), len(data), (), lambda _: None, lambda _, __: None)
        item = StagedAppend(request, SimpleNamespace(), 0, 0, [])  # type: ignore[arg-type]
        self.processor.stage_append(item, HEADER, request.data)
        await asyncio.sleep(0)

    async def finish(self) -> None:
        while self.log.waiting:
            await self.log.acknowledge()


def frames_in_memory() -> int:
    return sum(isinstance(each, Frame) for each in gc.get_objects())


@pytest.mark.parametrize("length_bytes", [10, 900, 2500, 8000])
async def test_frames_are_freed_without_a_garbage_collection(length_bytes: int) -> None:
    """A collection may be far away, and 25 appends of 8 MiB wait for it with all their bytes."""
    gc.collect()
    gc.disable()
    try:
        before = frames_in_memory()
        scenario = Scenario(pool_bytes=3 * FRAME_BYTES)
        for _ in range(20):
            await scenario.stage(bytes(length_bytes))
            await scenario.finish()
        assert scenario.committed == 20
        assert frames_in_memory() - before <= 2  # the one that is filled next, and the last one
    finally:
        gc.enable()


@given(
    lengths=st.lists(st.integers(0, 4000), max_size=40),
    acknowledged=st.lists(st.integers(0, 3), max_size=40),
    pool_frames=st.integers(0, 8),
)
def test_an_append_keeps_its_bytes_until_it_commits(
    lengths: list[int], acknowledged: list[int], pool_frames: int
) -> None:
    async def run() -> None:
        scenario = Scenario(pool_frames * FRAME_BYTES)
        content = random.Random(len(lengths))
        for length, count in zip(lengths, [*acknowledged, *[1] * len(lengths)], strict=False):
            await scenario.stage(content.randbytes(length))
            for _ in range(min(count, len(scenario.log.waiting))):
                await scenario.log.acknowledge()
        await scenario.finish()
        assert scenario.committed == len(lengths)
        assert scenario.processor.idle
        assert scenario.arenas.used_bytes == 0, "an idle container has no buffer"
        assert scenario.arenas.idle_bytes <= pool_frames * FRAME_BYTES
        assert all(keep_from <= sequence + 1 for sequence, keep_from in scenario.keep_from)
        assert all(keep_from == sequence + 1 for sequence, keep_from in scenario.keep_from[-1:])

    asyncio.run(run())


async def test_half_empty_frames_count_with_their_whole_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES", 10 * FRAME_BYTES)
    scenario = Scenario(pool_bytes=0)
    staged = 0
    while scenario.processor.has_room():
        await scenario.stage(bytes(FRAME_BYTES // 2 + 10))  # two do not fit one frame
        staged += 1
    assert staged == 10
    room = scenario.processor.room()
    await scenario.log.acknowledge()
    assert room.done()
    assert scenario.processor.has_room()
    await scenario.finish()


async def test_the_buffers_of_all_containers_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has three of them goes on nevertheless: no other container would wake it."""
    monkeypatch.setattr(limits, "ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES", 10 * FRAME_BYTES)
    pool = ArenaPool(0)
    first, second = Scenario(0, pool), Scenario(0, pool)
    for _ in range(6):
        for scenario in (first, second):
            if scenario.processor.has_room():
                await scenario.stage(bytes(FRAME_BYTES // 2 + 10))
    assert (len(first.staged), len(second.staged), pool.used_bytes) == (5, 5, 10 * FRAME_BYTES)
    third = Scenario(0, pool)
    while third.processor.has_room():
        await third.stage(bytes(FRAME_BYTES // 2 + 10))
    assert len(third.staged) == 4
    waits = third.processor.room()
    await third.log.acknowledge()
    assert waits.done()
    assert third.processor.has_room()
    assert not first.processor.has_room()
    for scenario in (first, second, third):
        await scenario.finish()
        assert scenario.processor.has_room()


async def test_the_buffers_of_a_stopped_processor_are_not_used_again() -> None:
    """Its log may still read them."""
    scenario = Scenario(pool_bytes=100 * FRAME_BYTES)
    for length_bytes in (100, 2500, 900, 900, 5000):
        await scenario.stage(b"x" * length_bytes)
    held = list(scenario.log.waiting)
    assert len(held) == 3
    scenario.processor.stop(UnavailableError("the test ends it"))
    assert (scenario.arenas.used_bytes, scenario.arenas.idle_bytes) == (0, 0)
    taken = [scenario.arenas.take(FRAME_BYTES) for _ in range(20)]
    for arena in taken:
        arena[:] = b"y" * FRAME_BYTES
    assert all(content == buffer for content, buffer, _ in held)


async def test_containers_share_what_is_kept_for_reuse() -> None:
    pool = ArenaPool(3 * FRAME_BYTES)
    taken = [pool.take(FRAME_BYTES) for _ in range(5)]
    assert pool.used_bytes == 5 * FRAME_BYTES
    for arena in taken:
        pool.give(arena)
    assert (pool.used_bytes, pool.idle_bytes) == (0, 3 * FRAME_BYTES)
    again = [pool.take(FRAME_BYTES) for _ in range(3)]
    assert {id(arena) for arena in again} <= {id(arena) for arena in taken}
    assert pool.idle_bytes == 0
