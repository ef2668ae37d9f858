"""Small appends between merged transactions that Tier 2 holds already are flushed together."""

from __future__ import annotations

import pytest

from tailrace.common import limits
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.background.storage_writer import _jobs
from tailrace.segmentstore.metadata.segment import Segment

from ..conftest import World, flush, stored

NAME = "scope/stream/0.#epoch.0"
COUNT = 60


@pytest.mark.parametrize("length", [10, limits.FLUSH_THRESHOLD_BYTES // 2 // COUNT])
async def test_appends_between_merges_share_objects(world: World, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_FIRST_S", 3600.0)
    container = await world.open()
    await container.create_segment(NAME)
    sources = [f"{NAME}#transaction.{number:032x}" for number in range(COUNT)]
    for source in sources:
        await container.create_segment(source)
        await container.append(source, [b"transaction"])
    await flush(container)  # they are open for longer than FLUSH_INTERVAL_S
    expected = b""
    for number, source in enumerate(sources):
        own = bytes([number]) * length
        await container.append(NAME, [own])
        await container.merge(NAME, source)
        expected += own + b"transaction"
    puts = world.objects.puts
    segment = container.state.by_name[NAME]
    await container.background.writer._flush([segment])  # one pass, which is due once in 30 s
    assert not segment.pending  # one append was flushed, or eight
    assert world.objects.puts - puts <= 8
    assert await stored(world, container.state, NAME) == expected
    await container.close()
    container = await world.open()
    assert await container.read_exact(NAME, 0, len(expected)) == expected


def test_a_long_backlog_behind_small_runs_is_written_in_several_passes() -> None:
    segment = Segment(1, NAME, SegmentKind.STREAM, 0, 0)
    for number in range(limits.FLUSH_RUNS_PER_PASS_MAX):
        segment.pending.add(20 * number, 10, 0, 1)  # a merge of what Tier 2 holds lies behind each of them
    for number in range(1000):
        segment.pending.add((number + 1) * limits.MIB, limits.MIB, 0, 1)
    jobs = _jobs([segment], {})
    length_bytes = sum(run.length_bytes for job in jobs for _, run in job)
    most = limits.FLUSH_RUNS_PER_PASS_MAX * limits.FLUSH_OBJECT_MAX_BYTES
    assert most // 2 <= length_bytes <= most + limits.FLUSH_OBJECT_MAX_BYTES
