"""Chunks of a segment are at most as long as its rollover size (docs/design.md#tier-2)."""

from __future__ import annotations

import random

import pytest

from tailrace.common import limits
from tailrace.common.limits import KIB, MIB
from tailrace.segmentstore.api import ROLLOVER_SIZE, AttributeUpdate, AttributeUpdateType, SegmentKind
from tailrace.segmentstore.background.storage_writer import _jobs
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.segment import Segment

from ..conftest import World, eventually, flush, stored

NAME = "scope/stream/0.#epoch.0"
SOURCE = f"{NAME}#transaction.{1:032x}"
SEED = 5


async def opened(world: World, rollover_bytes: int) -> Container:
    container = await world.open()
    for name in (NAME, SOURCE):
        await container.create_segment(name, attributes=[(ROLLOVER_SIZE, rollover_bytes)])
    return container


def lengths(container: Container) -> list[int]:
    return [ref.length for ref in container.state.by_name[NAME].chunks]


@pytest.mark.parametrize(
    ("rollover_bytes", "most"),
    [(0, 8 * MIB), (-1, 8 * MIB), (1, MIB), (MIB, MIB), (3 * MIB + 1, 3 * MIB + 1), (1 << 60, 8 * MIB)],
)
async def test_chunks_are_as_long_as_may_be(world: World, rollover_bytes: int, most: int) -> None:
    container = await opened(world, rollover_bytes)
    data = random.Random(SEED).randbytes(250 * KIB)
    for _ in range(80):
        await container.append(NAME, [data])
    await flush(container)
    found = lengths(container)
    assert sum(found) == 80 * len(data)
    assert max(found) <= most
    assert await stored(world, container.state, NAME) == 80 * data


async def test_one_append_becomes_several_chunks_and_a_merged_one_too(world: World) -> None:
    container = await opened(world, MIB)
    data = random.Random(SEED).randbytes(3 * MIB + 5)
    await container.append(NAME, [b"before"])
    await container.append(NAME, [data])
    await container.append(SOURCE, [data])
    await flush(container)
    await container.append(NAME, [b"behind"])
    await container.merge(NAME, SOURCE)
    await flush(container)
    found = lengths(container)
    assert max(found) == MIB
    assert found.count(MIB) == 6
    expected = b"before" + data + b"behind" + data
    assert await stored(world, container.state, NAME) == expected
    await container.close()
    container = await world.open()
    assert await container.read_exact(NAME, 0, len(expected)) == expected


async def test_compaction_keeps_the_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPACT_TICK_S", 0.01)
    monkeypatch.setattr(limits, "SNAPSHOT_FIRST_S", 3600.0)
    container = await opened(world, MIB)
    data = random.Random(SEED).randbytes(40 * KIB)
    for _ in range(64):
        await container.append(NAME, [data])
        await flush(container)  # each alone: a chunk for each
    await eventually(lambda: lengths(container).count(len(data)) < limits.COMPACT_RUN_MIN)
    assert 16 * len(data) <= max(lengths(container)) <= MIB
    assert await stored(world, container.state, NAME) == 64 * data


async def test_a_changed_size_holds_for_what_is_flushed_later(world: World) -> None:
    """The attribute may be changed over the wire; the controller never does."""
    container = await opened(world, 0)
    data = bytes(2 * MIB)
    await container.append(NAME, [data])
    await flush(container)
    await container.update_attributes(NAME, (AttributeUpdate(ROLLOVER_SIZE, AttributeUpdateType.REPLACE, MIB),))
    await container.append(NAME, [data])
    await flush(container)
    assert lengths(container) == [2 * MIB, MIB, MIB]


def test_a_long_append_behind_small_runs_shares_no_object() -> None:
    segment = Segment(1, NAME, SegmentKind.STREAM, 0, 0)
    segment.core[ROLLOVER_SIZE] = MIB
    small = limits.FLUSH_RUNS_PER_PASS_MAX * limits.FLUSH_OBJECT_MAX_BYTES // MIB
    for number in range(small):
        segment.pending.add(20 * number, 10, 0, 1)  # a merge of what Tier 2 holds lies behind each of them
    segment.pending.add(MIB, 2 * MIB, 0, 1)
    jobs = _jobs([segment], {})
    assert [len(job) for job in jobs] == [1, small]
    assert [run.length_bytes for _, run in jobs[0]] == [2 * MIB]
