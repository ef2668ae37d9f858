"""What a recovery remembers of appends that Tier 2 lacks takes little memory (docs/design.md#memory-budgets)."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from tailrace.common import limits

from ..conftest import World

NAME = "scope/stream/0.#epoch.0"
APPENDS = 20_000


async def test_a_recovery_of_small_appends_takes_little_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLUSH_INTERVAL_S", "SNAPSHOT_FIRST_S"):
        monkeypatch.setattr(limits, name, 3600.0)
    monkeypatch.setattr(limits, "FLUSH_PENDING_APPENDS_MAX", 1_000_000)  # other appends belong to other segments
    world.objects.outage = True
    container = await world.open()
    await container.create_segment(NAME)
    await asyncio.gather(*(container.append(NAME, [b"%010d" % number]) for number in range(APPENDS)))
    await container.background.checkpointer.run_if_due(force=True)
    await container.close()
    del container
    world.running.clear()
    tracemalloc.start()
    try:
        container = await world.open()
        kept, most = (size / APPENDS for size in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
    assert len(container.state.by_name[NAME].pending) == APPENDS
    expected = b"".join(b"%010d" % number for number in range(APPENDS))
    assert await container.read_exact(NAME, 0, len(expected)) == expected
    # 24 are counted, so there may be 700,000 of them. Were 191 and 508.
    assert kept < 130
    assert most < 200
