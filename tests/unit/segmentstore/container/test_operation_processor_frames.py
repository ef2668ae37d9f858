"""How many frames a processor has in flight, and when one that is not full waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import OverloadedError
from tailrace.log.file import FileLog
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.log.object import ObjectLog
from tailrace.log.port import Buffer
from tailrace.segmentstore.container import operation_processor as pipelines
from tailrace.segmentstore.container.arena_pool import ArenaPool
from tailrace.segmentstore.container.operation_processor import Frame, OperationProcessor
from tailrace.segmentstore.metadata import operations as ops

FRAME_BYTES = 1000


class HeldLog(MemoryLog):
    """A log whose frames become durable when the test says so."""

    def __init__(self, frames: int, part_frames: int) -> None:
        super().__init__(MemoryLogStore())
        self._frames, self._part_frames = frames, part_frames
        self.waiting: list[tuple[int, asyncio.Future[int]]] = []
        self.lengths: list[int] = []
        self.bytes_in_flight = 0

    @property
    def frame_target_bytes(self) -> int:
        return FRAME_BYTES

    @property
    def frames_in_flight_max(self) -> int:
        return self._frames

    @property
    def part_frames_in_flight_max(self) -> int:
        return self._part_frames

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[int]:
        length = sum(map(len, payload))
        if self.bytes_in_flight + length > limits.LOG_UNACKNOWLEDGED_MAX_BYTES:
            raise OverloadedError("too many bytes")
        self.bytes_in_flight += length
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiting.append((length, future))
        self.lengths.append(length)
        self._next_sequence += 1
        return future

    def acknowledge(self, count: int = 1) -> None:
        for _ in range(min(count, len(self.waiting))):
            length, future = self.waiting.pop(0)
            self.bytes_in_flight -= length
            future.set_result(0)


class Operation:
    """An operation of any length."""

    TYPE = ops.OperationType.SEAL

    def __init__(self, length: int) -> None:
        self._length = length

    def encode(self) -> bytes:
        return bytes(self._length)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Scenario:
    """An operation processor over a held log."""

    def __init__(self, frames: int, part_frames: int) -> None:
        self.log = HeldLog(frames, part_frames)
        self.committed: list[int] = []
        self.processor = OperationProcessor(self.log, ArenaPool(), 0, self._commit, self._lost)

    def _commit(self, frame: Frame) -> None:
        self.committed += [item.sequence for item in frame.items]

    def _lost(self, error: Exception) -> None:
        raise error

    async def stage(self, *lengths: int) -> None:
        for length in lengths:
            self.processor.stage_control(Operation(length))  # type: ignore[arg-type]
        await turns()

    async def acknowledge(self, count: int = 1) -> None:
        self.log.acknowledge(count)
        await turns()


async def test_a_part_frame_waits_while_others_are_in_flight() -> None:
    scenario = Scenario(frames=4, part_frames=2)
    await scenario.stage(10)
    await scenario.stage(10)
    assert len(scenario.log.waiting) == 2
    for _ in range(20):
        await scenario.stage(10)
    assert len(scenario.log.waiting) == 2, "it fills"
    await scenario.acknowledge()
    assert len(scenario.log.waiting) == 2, "and goes as one"
    assert scenario.log.lengths[2] > 15 * scenario.log.lengths[0]
    await scenario.acknowledge(2)
    assert scenario.committed == list(range(22))
    assert scenario.processor.idle


async def test_full_frames_go_at_once() -> None:
    scenario = Scenario(frames=4, part_frames=2)
    await scenario.stage(*[600] * 8)
    assert len(scenario.log.waiting) == 4
    await scenario.acknowledge()
    assert len(scenario.log.waiting) == 4
    while scenario.log.waiting:
        await scenario.acknowledge()
    assert scenario.committed == list(range(8))


@pytest.mark.parametrize("frames", [1, 2, 16])
async def test_unacknowledged_bytes_stay_within_the_bound(frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_UNACKNOWLEDGED_MAX_BYTES", 5 * FRAME_BYTES)
    scenario = Scenario(frames, part_frames=1)
    await scenario.stage(20_000, *[900] * 30, 20_000)  # an operation may span more frames than may be in flight
    while scenario.log.waiting:
        assert scenario.log.bytes_in_flight <= 5 * FRAME_BYTES
        assert len(scenario.log.waiting) <= frames
        await scenario.acknowledge()
    assert scenario.committed == list(range(32))
    assert scenario.processor.staged_bytes == scenario.processor.unwritten_bytes == 0


@given(
    lengths=st.lists(st.integers(0, 3000), max_size=40),
    frames=st.integers(1, 6),
    part_frames=st.integers(1, 6),
    acknowledged=st.lists(st.integers(0, 3), max_size=40),
)
def test_whatever_is_staged_is_committed_in_order(
    lengths: list[int], frames: int, part_frames: int, acknowledged: list[int]
) -> None:
    async def run() -> None:
        scenario = Scenario(frames, min(frames, part_frames))
        for length, count in zip(lengths, [*acknowledged, *[1] * len(lengths)], strict=False):
            await scenario.stage(length)
            assert len(scenario.log.waiting) <= frames
            await scenario.acknowledge(count)
        while scenario.log.waiting:
            await scenario.acknowledge()
        assert scenario.committed == list(range(len(lengths)))
        assert scenario.processor.idle

    asyncio.run(run())


def test_what_logs_want() -> None:
    """No log is handed more than it takes without an acknowledgement, and arenas are no larger than a frame may be."""
    for log in (FileLog, ObjectLog):
        handle = object.__new__(log)
        handle._max_frame_bytes = limits.LOG_FRAME_MAX_BYTES
        assert handle.part_frames_in_flight_max <= handle.frames_in_flight_max
        assert handle.frames_in_flight_max * handle.frame_target_bytes <= limits.LOG_UNACKNOWLEDGED_MAX_BYTES
        assert handle.frame_target_bytes <= pipelines._ARENA_BYTES
