"""A container that closes writes a checkpoint where that shortens the next recovery (docs/adr/0061)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from tailrace.common import limits
from tailrace.common.errors import DiskFullError
from tailrace.log.memory import MemoryLog
from tailrace.segmentstore.container.container import Container

from ..conftest import World

NAME = "scope/stream/0.#epoch.0"
OPERATIONS = 60
KIB = 1024


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_LAST_OPERATIONS_MIN", OPERATIONS)


def replayed(container: Container) -> int:
    """How many operations the opening replayed: what counts from the beginning for the next checkpoint."""
    return -container.background.checkpointer._operations


async def filled(world: World, operations: int = OPERATIONS) -> Container:
    container = await world.open()
    await container.create_segment(NAME)
    await append(container, operations)
    return container


async def append(container: Container, operations: int) -> None:
    """So many appends that share a few frames."""
    await asyncio.gather(*(container.append(NAME, [bytes([number])]) for number in range(operations)))


async def test_an_orderly_close_bounds_the_next_recovery(world: World) -> None:
    await (await filled(world)).close()
    container = await world.open()
    assert replayed(container) <= 3, "the checkpoint itself, and what the snapshot commits"
    assert await container.read_exact(NAME, 0, OPERATIONS) == bytes(range(OPERATIONS)), "Tier 2 lacks them"


async def test_few_operations_are_worth_no_checkpoint(world: World) -> None:
    await (await filled(world, OPERATIONS // 2)).close()
    container = await world.open()
    assert replayed(container) >= OPERATIONS // 2
    assert await container.read_exact(NAME, 0, OPERATIONS // 2) == bytes(range(OPERATIONS // 2))


async def test_fewer_operations_than_segments_are_worth_no_checkpoint(world: World) -> None:
    container = await world.open()
    for number in range(2 * OPERATIONS):
        await container.create_segment(f"scope/stream/{number}.#epoch.0")
    await container.flush_to_storage()  # with a checkpoint
    await append(container, OPERATIONS)
    await container.close()
    assert replayed(await world.open()) >= OPERATIONS


async def test_operations_that_were_replayed_count_for_the_next_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else owners that are killed early would leave ever longer logs."""
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_OPERATIONS", 2 * OPERATIONS)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 1000.0)  # no checkpoint but those of this test
    await (await filled(world)).close(at_once=True)
    container = await world.open()
    assert replayed(container) >= OPERATIONS
    await append(container, OPERATIONS)
    before = container.core.processor.operations
    await container.background.checkpointer.run_if_due()
    assert container.core.processor.operations == before + 1, "the checkpoint"
    await container.close(at_once=True)
    assert replayed(await world.open()) <= 2


async def test_a_full_log_gets_no_last_checkpoint(world: World) -> None:
    world.log.capacity_bytes = limits.LOG_RESERVE_BYTES + 256 * KIB
    container = await filled(world)
    world.objects.outage = True
    with contextlib.suppress(DiskFullError):
        while True:
            await container.append(NAME, [bytes(32 * KIB)])
    length = (await container.info(NAME)).length
    await container.close()
    world.objects.outage = False
    container = await world.open()
    assert replayed(container) >= OPERATIONS
    assert (await container.info(NAME)).length == length


async def test_a_close_does_not_wait_for_a_log_that_stores_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_LAST_DEADLINE_S", 0.01)
    monkeypatch.setattr(limits, "SNAPSHOT_LEAVE_DEADLINE_S", 0.01)
    container = await filled(world)
    assert isinstance(container.core.log, MemoryLog)
    container.core.log._delay_s = 1e6
    with capture_logs() as lines:
        async with asyncio.timeout(120):
            await container.close()
    assert [line["reason"] for line in lines if line["event"] == "last_checkpoint_not_written"] == [
        "not durable within 0.01 s"
    ]
    container = await world.open()
    assert replayed(container) >= OPERATIONS
    assert await container.read_exact(NAME, 0, OPERATIONS) == bytes(range(OPERATIONS))


async def test_an_owner_that_was_fenced_leaves_no_checkpoint(world: World) -> None:
    former = await filled(world)
    later = await world.open()
    await later.append(NAME, [b"later"])
    frames = len(world.log.frames)
    await former.close()
    assert len(world.log.frames) == frames
    assert await later.read_exact(NAME, OPERATIONS, 5) == b"later"


async def test_many_frames_make_a_checkpoint_due_without_a_flush(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a start after a kill is bounded, also while many segments have bytes that Tier 2 lacks."""
    monkeypatch.setattr(limits, "LOG_FILE_CHECKPOINT_FRAMES", OPERATIONS)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 1000.0)
    container = await world.open()
    world.objects.outage = True
    for number in range(OPERATIONS // 2):  # one frame each
        name = f"scope/stream/{number}.#epoch.0"
        await container.create_segment(name)
        await container.append(name, [b"pending"])
    assert not container.background.checkpointer.wants_flush()
    await container.background.checkpointer.run_if_due()
    await container.close(at_once=True)
    world.objects.outage = False
    container = await world.open()
    assert replayed(container) <= 2
    assert await container.read_exact("scope/stream/3.#epoch.0", 0, 7) == b"pending"
