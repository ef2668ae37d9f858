"""A container with many segments leaves turns of the event loop to others, also while it takes a snapshot."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.common.real_ports import SystemClock
from tailrace.log.memory import MemoryLog
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.metadata import checkpoint, fields
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.restore.container import write_log

from ..conftest import World

SEGMENTS = 10_000


PER_TURN_MAX = 1000


class Turns:
    """Counts calls of a function in each turn of the event loop."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.calls = dict[int, int]()
        self._turn = 0
        function = getattr(owner, name)

        def counted(*arguments: object) -> object:
            self.calls[self._turn] = self.calls.get(self._turn, 0) + 1
            return function(*arguments)

        patch.setattr(owner, name, counted)

    async def count(self) -> None:
        """Count turns until cancelled."""
        while True:
            await asyncio.sleep(0)
            self._turn += 1


async def write_many_segments(world: World) -> None:
    """Make the log one of a container with many segments."""
    state = ContainerState(7)
    for number in range(1, SEGMENTS + 1):
        attributes = [(bytes([1]) * 15 + bytes([each]), each) for each in range(4)]
        create = ops.Create(number, f"scope/stream-{number}/0.#epoch.0", SegmentKind.STREAM, 0, 0, attributes)
        state.apply(number, create)
    state.epoch = next(world.epochs)
    await write_log(MemoryLog(world.log), state, SystemClock(), b"nonce-of-16-byte")


async def test_a_checkpoint_is_loaded_in_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await write_many_segments(world)
    turns = Turns(monkeypatch, checkpoint, "_load_segment")
    ticking = asyncio.ensure_future(turns.count())
    container = await world.open()
    ticking.cancel()
    assert sum(turns.calls.values()) == len(container.state.segments) == SEGMENTS
    assert max(turns.calls.values()) <= PER_TURN_MAX  # all 10,000 were loaded in one turn: 1.1 s of processor time


async def test_the_state_is_encoded_in_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: at the opening, to know how much room a checkpoint needs; and for a checkpoint."""
    await write_many_segments(world)
    turns = Turns(monkeypatch, fields.Writer, "refs")  # twice for each segment: pages, chunks
    ticking = asyncio.ensure_future(turns.count())
    container = await world.open()
    name = "scope/stream-1/0.#epoch.0"
    running = asyncio.ensure_future(container.background.checkpointer.run_if_due(force=True))
    appended = 0
    while not running.done():
        await container.append(name, [b"x"])
        appended += 1
    await running
    assert sum(turns.calls.values()) >= 2 * 2 * SEGMENTS
    assert max(turns.calls.values()) <= 2 * PER_TURN_MAX  # all 10,000 were encoded in one turn

    assert appended > 1
    turns.calls.clear()
    assert await container.background.snapshotter.take()
    ticking.cancel()
    assert sum(turns.calls.values()) >= 2 * SEGMENTS
    assert max(turns.calls.values()) <= 2 * PER_TURN_MAX
    container = await world.open()
    assert container.state.by_name[name].length == appended
