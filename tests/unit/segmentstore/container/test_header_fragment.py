"""A long append whose first log frame holds only (a part of) its header is recovered twice."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.common import limits
from tailrace.log.base import SequencedLog
from tailrace.segmentstore.metadata import operation_log

from ..conftest import World

NAME = "scope/stream/0.#epoch.0"
FILLER = "scope/filler/0.#epoch.0"
FRAME_BYTES = 64 * 1024
HEADER_PART_BYTES = 20  # of the 27 bytes of an append's header without attributes


async def test_the_log_keeps_the_begin_of_an_append_after_a_recovery(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequencedLog, "frame_target_bytes", property(lambda _: FRAME_BYTES))  # 4 or 8 MiB in servers
    for name in ("FLUSH_INTERVAL_S", "SNAPSHOT_FIRST_S"):
        monkeypatch.setattr(limits, name, 3600.0)
    world.objects.outage = True  # nothing of this is flushed
    container = await world.open()
    await container.create_segment(NAME)
    await container.create_segment(FILLER)
    filler = FRAME_BYTES - 2 * operation_log.RECORD.size - HEADER_PART_BYTES - 27
    data = bytes(range(250)) * 600
    await asyncio.gather(container.append(FILLER, [bytes(filler)]), container.append(NAME, [data]))
    await container.delete(FILLER)
    for _ in range(2):  # a checkpoint behind the append, and the truncation of the log after it; then a new owner
        await container.background.checkpointer.run_if_due(force=True)
        await container.close()
        container = await world.open()  # raised DataLossError: bytes are neither in the log nor in Tier 2
        assert await container.read_exact(NAME, 0, len(data)) == data
