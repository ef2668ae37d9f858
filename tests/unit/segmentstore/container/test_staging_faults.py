"""An operation that cannot be staged stops the container: what it changed before is in no frame."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

import pytest

from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError, OutcomeUnknownError, TailraceError
from tailrace.segmentstore.container.arena_pool import ArenaPool
from tailrace.segmentstore.metadata import operations as ops

from ..conftest import World

NAME = "scope/stream/0.#epoch.0"
LATER = b" later" * 10_000
"""More than a checkpoint of one segment, so that the next checkpoint is due."""


@pytest.mark.parametrize("operation", ["append", "control"])
async def test_a_fault_while_staging_loses_and_damages_nothing(
    world: World, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"before"])

    def fail(*_: object) -> None:
        raise MemoryError("no memory for a buffer")

    with monkeypatch.context() as patched:
        if operation == "append":
            patched.setattr(ArenaPool, "take", fail)
            attempt: Awaitable[object] = container.append(NAME, [b"lost"])
        else:
            patched.setattr(ops.Seal, "encode", fail)
            attempt = container.seal(NAME)
        with pytest.raises((TailraceError, MemoryError)):
            await attempt
    with pytest.raises(ContainerStoppedError, match="no memory for a buffer"):
        await container.append(NAME, [b"after"])
    async with asyncio.timeout(120):
        cause = await container.wait_stopped()
    assert isinstance(cause, MemoryError)
    await container.close()
    container = await world.open()
    await container.append(NAME, [b" and after"])
    result = await container.read(NAME, 0, 100, wait=False)
    assert b"".join(result.data) == b"before and after"
    assert not (await container.info(NAME)).sealed
    await container.close()


@pytest.mark.parametrize("kind", [ops.AddChunks, ops.Checkpoint])
async def test_a_fault_while_a_background_task_stages_ends_the_container(
    world: World, kind: type[ops.AddChunks | ops.Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    monkeypatch.setattr(limits, "FLUSH_INTERVAL_S", 0.01)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 1)
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"stored"])

    def fail(*_: object) -> None:
        raise MemoryError("no memory for a buffer")

    acknowledged = False
    with monkeypatch.context() as patched:
        patched.setattr(kind, "encode", fail)
        # The background task may have staged all before; this gives it something to stage, unless it failed already.
        with contextlib.suppress(ContainerStoppedError, OutcomeUnknownError):
            await container.append(NAME, [LATER])
            acknowledged = True
        async with asyncio.timeout(120):
            cause = await container.wait_stopped()
    assert isinstance(cause, MemoryError)
    async with asyncio.timeout(120):
        await container.close()
    container = await world.open()
    assert await container.read_exact(NAME, 0, 6) == b"stored"
    if acknowledged:
        assert await container.read_exact(NAME, 6, len(LATER)) == LATER
    await container.close()
