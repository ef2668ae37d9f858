"""Checkpoints that are as large as a log's reserve, or as the bytes between two of them (docs/design.md#tier-1)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tailrace.common import limits
from tailrace.common.errors import DiskFullError
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.container.log_admission import LogAdmission
from tailrace.segmentstore.metadata import checkpoint

from ..conftest import World, eventually

KIB = 1024
CAPACITY_BYTES = 2048 * KIB
SEGMENTS = 1000
NAME = "scope/stream/0.#epoch.0"
HEALS_WITHIN_S = 300.0


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_RESERVE_BYTES", 96 * KIB)
    monkeypatch.setattr(limits, "CONTROL_OPERATION_MAX_BYTES", 4 * KIB)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.02)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MIN_S", 0.01)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MAX_S", 0.05)


async def opened(world: World, monkeypatch: pytest.MonkeyPatch) -> Container:
    """A container with many segments, whose checkpoint is larger than the reserve; it writes no other one."""
    container = await world.open()
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 1 << 40)
    for number in range(SEGMENTS):
        await container.create_segment(f"scope/stream/{number}.#epoch.0")
    await container.flush_to_storage()  # with a checkpoint
    assert len(checkpoint.encode(container.state)) > 1.5 * limits.LOG_RESERVE_BYTES
    return container


async def write_until_full(container: Container) -> None:
    with contextlib.suppress(DiskFullError):
        while True:
            await container.append(NAME, [bytes(32 * KIB)])


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_full_log_has_room_for_a_checkpoint_larger_than_its_reserve(
    world: World, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.capacity_bytes = CAPACITY_BYTES
    container = await opened(world, monkeypatch)
    if restarted:
        await container.close()
        container = await world.open()
    world.objects.outage = True
    await write_until_full(container)
    for number in range(100):  # these free space, so they are admitted longer
        try:
            await container.delete(f"scope/stream/{SEGMENTS - 1 - number}.#epoch.0")
        except DiskFullError:
            break
    await heals(world, container, monkeypatch)


async def heals(world: World, container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write as much as the log holds, after the outage: it truncates itself meanwhile."""
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 512 * KIB)
    world.objects.outage = False
    left = CAPACITY_BYTES
    async with asyncio.timeout(HEALS_WITHIN_S):
        while left > 0:
            try:
                await container.append(NAME, [bytes(32 * KIB)])
                left -= 32 * KIB
            except DiskFullError:
                await asyncio.sleep(0.01)
    await container.close()


async def test_a_full_log_has_room_to_flush_every_segment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush of many segments takes much of the log itself, and makes the checkpoint after it longer."""
    world.log.capacity_bytes = CAPACITY_BYTES
    container = await opened(world, monkeypatch)
    world.objects.outage = True
    for number in range(SEGMENTS):
        await container.append(f"scope/stream/{number}.#epoch.0", [b"small"])
    await write_until_full(container)
    with contextlib.suppress(DiskFullError):  # down to the last byte
        while True:
            await container.append(NAME, [bytes(1000)])
    await heals(world, container, monkeypatch)


async def test_a_checkpoint_that_was_too_long_is_tried_again_when_it_may_be_shorter(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.capacity_bytes = CAPACITY_BYTES
    container = await opened(world, monkeypatch)
    world.objects.outage = True
    with monkeypatch.context() as patched:
        patched.setattr(LogAdmission, "kept_bytes", 0)  # as if more had been written than was foreseen
        await write_until_full(container)
    world.objects.outage = False
    with pytest.raises(DiskFullError):
        await container.flush_to_storage()
    for number in range(1, SEGMENTS):
        await container.delete(f"scope/stream/{number}.#epoch.0")
    await heals(world, container, monkeypatch)


async def test_what_frees_space_is_admitted_to_a_full_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.log.capacity_bytes = CAPACITY_BYTES
    container = await opened(world, monkeypatch)
    world.objects.outage = True
    await write_until_full(container)
    for number in range(1, SEGMENTS // 2):
        await container.delete(f"scope/stream/{number}.#epoch.0")
    await heals(world, container, monkeypatch)


async def test_a_container_that_opens_on_a_full_log_checkpoints(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the former owner logged counts, though nothing more can be written."""
    world.log.capacity_bytes = CAPACITY_BYTES
    container = await opened(world, monkeypatch)
    world.objects.outage = True
    await write_until_full(container)
    await container.close()
    container = await world.open()
    with pytest.raises(DiskFullError):
        await container.append(NAME, [bytes(32 * KIB)])
    await heals(world, container, monkeypatch)


async def test_a_large_checkpoint_does_not_make_the_next_one_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await opened(world, monkeypatch)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 64 * KIB)
    processor, checkpointer = container.core.processor, container.background.checkpointer
    before = processor.operations
    for _ in range(5):
        await checkpointer.run_if_due()
    assert processor.operations == before
    body_bytes, written = len(checkpoint.encode(container.state)), processor.written_bytes
    kept = checkpointer._keep_from
    while checkpointer._keep_from == kept:
        await container.append(NAME, [bytes(16 * KIB)])
        await checkpointer.run_if_due()
    logged = processor.written_bytes - written - body_bytes
    assert body_bytes <= logged <= 3 * body_bytes, "as many bytes were logged as the checkpoint has, not many more"
    await container.close()


async def test_a_large_checkpoint_is_not_repeated_by_the_next_owner(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await opened(world, monkeypatch)
    await container.close()
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 64 * KIB)
    container = await world.open()
    for _ in range(5):
        await container.background.checkpointer.run_if_due()
    assert container.core.processor.operations == 1, "only the first operation of an owner"
    await container.close()


async def test_segments_whose_bytes_are_gone_take_no_room_in_a_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.02)
    world.objects.outage = True
    container = await world.open()
    names = [f"scope/stream/{number}.#epoch.0" for number in range(4)]
    for name in names:
        await container.create_segment(name)
        await container.append(name, [b"bytes"])
    queue = container.core.flush_queue
    assert queue.pending_segments == 4
    await container.truncate(names[0], 5)
    await container.delete(names[1])
    await container.merge(names[2], names[3])
    await eventually(lambda: queue.pending_segments == 1)
    world.objects.outage = False
    await container.flush_to_storage()
    assert queue.pending_segments == 0
    await container.close()
