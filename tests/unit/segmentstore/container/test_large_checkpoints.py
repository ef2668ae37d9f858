"""Checkpoints that are as large as a log's reserve, or as the bytes between two of them (docs/design.md#tier-1)."""

from __future__ import annotations

import contextlib

import pytest

from tailrace.common import limits
from tailrace.common.errors import DiskFullError
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata import checkpoint

from ..conftest import World, eventually

KIB = 1024
SEGMENTS = 3000
NAME = "scope/stream/0.#epoch.0"
HEALS_WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_RESERVE_BYTES", 256 * KIB)
    monkeypatch.setattr(limits, "CONTROL_OPERATION_MAX_BYTES", 4 * KIB)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.02)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MIN_S", 0.01)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MAX_S", 0.05)


async def opened(world: World, interval_bytes: int, monkeypatch: pytest.MonkeyPatch) -> Container:
    """A container with many segments, whose checkpoint is larger than the reserve."""
    container = await world.open()
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 1 << 40)
    for number in range(SEGMENTS):
        await container.create_segment(f"scope/stream/{number}.#epoch.0")
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", interval_bytes)
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
    world.log.capacity_bytes = 4096 * KIB
    container = await opened(world, 1024 * KIB, monkeypatch)
    if restarted:
        await container.close()
        container = await world.open()
    world.objects.outage = True  # so that no checkpoint comes between
    await write_until_full(container)
    for number in range(100):  # these free space, so they are admitted longer
        try:
            await container.delete(f"scope/stream/{SEGMENTS - 1 - number}.#epoch.0")
        except DiskFullError:
            break
    full_at = world.log.next_sequence
    world.objects.outage = False
    await eventually(lambda: world.log.first_sequence >= full_at - 1, HEALS_WITHIN_S)
    await container.append(NAME, [bytes(32 * KIB)])
    await container.close()


async def test_a_large_checkpoint_does_not_make_the_next_one_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await opened(world, 64 * KIB, monkeypatch)
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
