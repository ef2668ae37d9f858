"""Objects that are only partly retained are freed, and what is retained stays (docs/design.md#reclamation)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from harness.filesizes import bytes_in_files
from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.common.limits import KIB, MIB
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.tier2.chunk_objects import Section
from tailrace.storage.port import ObjectInfo

from ..conftest import Objects, World, eventually, take_snapshot
from .test_chunk_compaction import Replayed, compacted, deleted, merged, read_cold, refs_of

# -- the operation ---------------------------------------------------------------------------------------------------


def move(segment: Segment, old: ChunkRef, key: str = "new") -> ops.ChunkMove:
    start = max(old.segment_offset, segment.start_offset)
    return ops.ChunkMove(segment.segment_id, old, ChunkRef(key, 70, start, old.end - start))


def test_an_object_goes_when_its_last_reference_is_moved() -> None:
    replayed = Replayed()
    first, second = replayed.segment("a", [10], shared="x"), replayed.segment("b", [20], shared="x")
    replayed.apply(ops.Truncate(second.segment_id, 15))
    moves = [move(first, *first.chunks), move(second, *second.chunks)]
    replayed.apply(ops.MoveChunks(moves))
    assert list(first.chunks) == [ChunkRef("new", 70, 0, 10)]
    assert list(second.chunks) == [ChunkRef("new", 70, 15, 5)]
    assert replayed.state.object_uses == {"new": 2}
    assert list(replayed.state.pending_deletes) == ["x"]


def truncated(replayed: Replayed, segment: Segment) -> None:
    replayed.apply(ops.Truncate(segment.segment_id, 10))


@pytest.mark.parametrize("meanwhile", [truncated, merged, deleted, compacted])
@pytest.mark.parametrize("order", [1, -1])
def test_moves_of_other_segments_apply_when_one_does_not(
    meanwhile: Callable[[Replayed, Segment], None], order: int
) -> None:
    """Whichever comes first, the new object stays while a move applied, and is never listed to be deleted before."""
    replayed = Replayed()
    first, second = replayed.segment("a", [10, 7], shared="x"), replayed.segment("b", [20], shared="x")
    moves = [move(first, next(iter(first.chunks))), move(second, *second.chunks)][::order]
    meanwhile(replayed, first)
    before = [ref for segment in replayed.state.segments.values() if segment is not second for ref in segment.chunks]
    replayed.apply(ops.MoveChunks(moves))
    after = [ref for segment in replayed.state.segments.values() if segment is not second for ref in segment.chunks]
    assert after == before
    assert list(second.chunks) == [ChunkRef("new", 70, 0, 20)]
    assert replayed.state.object_uses["new"] == 1
    assert "new" not in replayed.state.pending_deletes


def test_an_object_that_no_move_needs_waits_to_be_deleted() -> None:
    replayed = Replayed()
    segment = replayed.segment("a", [10])
    operation = ops.MoveChunks([move(segment, *segment.chunks)])
    replayed.apply(ops.Delete(segment.segment_id))
    replayed.apply(operation)
    assert list(replayed.state.pending_deletes) == ["a-0", "new"]
    assert not replayed.state.object_uses


@pytest.mark.parametrize(("start", "length"), [(4, 6), (0, 9), (0, 11), (10, 0)])
def test_a_move_that_loses_bytes_is_no_operation_of_ours(start: int, length: int) -> None:
    replayed = Replayed()
    segment = replayed.segment("a", [10])
    replayed.apply(ops.Truncate(segment.segment_id, 3))
    (old,) = segment.chunks
    with pytest.raises(CorruptionError, match="MOVE_CHUNKS"):
        replayed.apply(ops.MoveChunks([ops.ChunkMove(segment.segment_id, old, ChunkRef("new", 70, start, length))]))


def test_a_truncation_during_a_flush_is_noticed() -> None:
    replayed = Replayed()
    segment = replayed.segment("a", [])
    replayed.apply(ops.Append(segment.segment_id, 0, 0, [], memoryview(bytes(10))))
    replayed.apply(ops.Truncate(segment.segment_id, 9))
    before = replayed.state.releases
    replayed.apply(ops.AddChunks([(segment.segment_id, ChunkRef("x", 70, 0, 10))]))
    assert replayed.state.releases > before


# -- a container -----------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RECLAIM_FIRST_AFTER_S", "RECLAIM_TICK_S", "FLUSH_TICK_S", "SNAPSHOT_TICK_S"):
        monkeypatch.setattr(limits, name, 0.01)
    monkeypatch.setattr(limits, "SNAPSHOT_FIRST_S", 0.02)
    monkeypatch.setattr(limits, "SNAPSHOT_DELETES_WAIT_S", 0.05)
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "RECLAIM_BYTES_PER_S", 1 << 40)


async def held_bytes(world: World) -> int:
    return sum([info.length_bytes async for info in world.objects.list("c7/")])


def retained_bytes(container: Container) -> int:
    return sum(segment.length - segment.start_offset for segment in container.state.segments.values())


async def filled(container: Container, segments: int, length: int) -> dict[str, bytes]:
    """Segments whose chunks share objects, by name."""
    contents = {f"scope/stream/{number}.#epoch.0": bytes([number % 251 + 1]) * length for number in range(segments)}
    for name, data in contents.items():
        await container.create_segment(name)
        await container.append(name, [data])
    await container.flush_to_storage()
    return contents


@pytest.mark.usefixtures("quick")
async def test_one_tiny_survivor_keeps_no_shared_object(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not before all are truncated: an object with two survivors of which one dies is not worth a move.
    monkeypatch.setattr(limits, "RECLAIM_FIRST_AFTER_S", 3600.0)
    container = await world.open()
    contents = await filled(container, 100, 40 * KIB)
    (shared,) = container.state.object_uses
    survivor = "scope/stream/57.#epoch.0"
    for name in contents:
        if name != survivor:
            await container.truncate(name, len(contents[name]))
    assert await container.background.reclamation.reclaim()
    assert shared not in container.state.object_uses
    await eventually(lambda: not container.state.pending_deletes)
    assert shared not in {info.key async for info in world.objects.list("c7/")}
    assert await held_bytes(world) < 41 * KIB
    assert await read_cold(container, survivor) == contents[survivor]


@pytest.mark.usefixtures("quick")
async def test_a_large_chunk_is_cut_where_the_segment_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # No chunk spans where a snapshot found the segment's end: one between the appends would leave two small chunks.
    monkeypatch.setattr(limits, "SNAPSHOT_FIRST_S", 3600.0)
    container = await world.open()
    name = "scope/stream/0.#epoch.0"
    await container.create_segment(name)
    for number in range(4):
        await container.append(name, [bytes([number]) * MIB])
    await container.flush_to_storage()
    assert [ref.length for ref in refs_of(container, name)] == [4 * MIB]
    whole = await read_cold(container, name)
    await container.truncate(name, 3 * MIB + 5)
    await eventually(lambda: refs_of(container, name)[0].segment_offset == 3 * MIB + 5)
    await eventually(lambda: not container.state.pending_deletes)
    assert await held_bytes(world) < 1.01 * MIB
    assert await read_cold(container, name) == whole[3 * MIB + 5 :]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("owner", ["same", "next"])
async def test_the_bytes_held_follow_truncations_at_random(
    world: World,
    reopen: Callable[[], Awaitable[Container]],
    owner: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Counts the bytes in the files of a store, whose objects the owner wrote itself or has to list."""
    world.objects = Objects(tmp_path.as_uri())
    rng = random.Random(7)
    monkeypatch.setattr(limits, "RECLAIM_SLACK_BYTES", 100_000)
    if owner == "next":
        monkeypatch.setattr(limits, "RECLAIM_FIRST_AFTER_S", 3600.0)
    container = await world.open()
    contents: dict[str, bytes] = {}
    for _ in range(3):
        for name, data in (await filled_more(container, contents, rng)).items():
            contents[name] = contents.get(name, b"") + data
    starts = {name: rng.choice([0, len(data) // 2, len(data) - 1, len(data)]) for name, data in contents.items()}
    for name, start in starts.items():
        await container.truncate(name, start)
    monkeypatch.setattr(limits, "RECLAIM_FIRST_AFTER_S", 0.01)
    if owner == "next":
        before = await held_bytes(world)
        assert before > 1.5 * retained_bytes(container)
        container = await reopen()
    bound = (1 + limits.RECLAIM_DEAD_SHARE) * 1.01 * retained_bytes(container) + limits.RECLAIM_SLACK_BYTES
    for _ in range(6000):  # each object is synced to the disk, which others may keep busy for seconds
        held = bytes_in_files(tmp_path / "c7")
        if held <= bound:
            break
        await asyncio.sleep(0.02)
    assert held <= bound
    for name, start in starts.items():
        assert await read_cold(container, name) == contents[name][start:]
    container = await reopen()
    for name, start in starts.items():
        assert await read_cold(container, name) == contents[name][start:]


async def filled_more(container: Container, known: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    """One flush of 60 segments, which share objects."""
    added = {f"scope/stream/{number}.#epoch.0": rng.randbytes(rng.randint(1, 60_000)) for number in range(60)}
    for name, data in added.items():
        if name not in known:
            await container.create_segment(name)
        await container.append(name, [data])
    await container.flush_to_storage()
    return added


@pytest.mark.usefixtures("quick")
async def test_damage_is_not_moved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged chunk stays, so that a reader gets the error; its object is reported once and others are reclaimed."""
    monkeypatch.setattr(limits, "RECLAIM_FIRST_AFTER_S", 3600.0)
    container = await world.open()
    contents = await filled(container, 100, 40 * KIB)
    names = list(contents)
    (shared,) = container.state.object_uses
    content = bytearray(await world.objects.get(shared))
    content[refs_of(container, names[3])[0].data_offset + 5] ^= 1
    await world.objects.put(shared, [content])
    for name in names[10:]:
        await container.truncate(name, len(contents[name]))
    assert await container.background.reclamation.reclaim()
    assert not await container.background.reclamation.reclaim()
    with pytest.raises(CorruptionError, match="CRC32C"):
        await read_cold(container, names[3])
    assert list(container.background.reclamation._refused) == [shared]
    assert [refs_of(container, name)[0].object_key == shared for name in names[:10]] == [n == 3 for n in range(10)]
    assert await read_cold(container, names[4]) == contents[names[4]]
    assert container.status().state == "running"


@pytest.mark.usefixtures("quick")
async def test_the_newest_snapshot_keeps_what_it_needs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that was left by moves is deleted after a newer snapshot only (docs/adr/0012)."""
    monkeypatch.setattr(limits, "SNAPSHOT_DELETES_WAIT_S", 3600.0)
    monkeypatch.setattr(limits, "SNAPSHOT_FIRST_S", 3600.0)
    container = await world.open()
    contents = await filled(container, 50, 40 * KIB)
    (shared,) = container.state.object_uses
    await take_snapshot(container)
    for name in list(contents)[1:]:
        await container.truncate(name, len(contents[name]))
    await eventually(lambda: shared in container.state.pending_deletes)
    await asyncio.sleep(0.1)
    assert shared in {info.key async for info in world.objects.list("c7/")}
    await take_snapshot(container)
    await eventually(lambda: not container.state.pending_deletes)
    assert shared not in {info.key async for info in world.objects.list("c7/")}


async def test_a_survey_between_the_writing_of_an_object_and_its_commit_forgets_no_length(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await world.open()
    reclamation, tier2 = container.background.reclamation, container.storage.tier2
    assert not await reclamation.reclaim()
    write, surveys = tier2.write, []

    async def write_and_look(sections: Sequence[Section]) -> list[tuple[int, ChunkRef]]:
        written = await write(sections)
        surveys.append(await reclamation.reclaim())
        return written

    monkeypatch.setattr(tier2, "write", write_and_look)
    contents = await filled(container, 10, 40 * KIB)
    assert surveys == [False]
    monkeypatch.setattr(tier2, "write", write)
    (shared,) = container.state.object_uses
    for name in list(contents)[1:]:
        await container.truncate(name, len(contents[name]))
    assert await reclamation.reclaim()
    assert shared not in container.state.object_uses
    assert len(tier2.shared_bytes) <= 1 + len(container.state.pending_deletes)
    await tier2.delete([shared])
    assert shared not in tier2.shared_bytes


@pytest.mark.usefixtures("quick")
async def test_a_snapshot_comes_early_when_objects_wait_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_INTERVAL_S", 3600.0)
    container = await world.open()
    contents = await filled(container, 3, 10)
    await eventually(lambda: container.background.snapshotter.sequence >= 0)
    for name in contents:
        await container.truncate(name, 10)
    await eventually(lambda: not container.state.pending_deletes and not container.state.object_uses)
    last = container.background.snapshotter.sequence
    await container.append(next(iter(contents)), [b"more"])
    await asyncio.sleep(0.2)
    assert container.background.snapshotter.sequence == last


async def test_the_bytes_of_an_outage_are_moved_after_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RECLAIM_TICK_S", "STORAGE_RETRY_MIN_S", "STORAGE_RETRY_MAX_S"):
        monkeypatch.setattr(limits, name, 0.01)
    monkeypatch.setattr(limits, "RECLAIM_FIRST_AFTER_S", 0.2)
    container = await world.open()
    contents = await filled(container, 50, 40 * KIB)
    (shared,) = container.state.object_uses
    world.objects.outage = True  # before there is anything to move
    for name in list(contents)[1:]:
        await container.truncate(name, len(contents[name]))
    await eventually(lambda: container.background.reclamation.last_error)
    world.objects.outage = False
    await eventually(lambda: shared not in container.state.object_uses)
    await eventually(lambda: not container.background.reclamation.last_error)


async def test_what_streams_hold_adds_up_to_the_objects_in_the_store(world: World) -> None:
    container = await world.open()
    contents = await filled(container, 20, 40 * KIB)
    for name in list(contents)[:15]:
        await container.truncate(name, len(contents[name]))
    found = await container.stream_bytes()
    assert list(found) == ["scope/stream"]
    assert found["scope/stream"].segments == 20
    assert found["scope/stream"].retained_bytes == 5 * 40 * KIB
    chunks = sum([info.length_bytes async for info in world.objects.list("c7/")])
    assert abs(found["scope/stream"].held_bytes - chunks) < 20
    await container.create_segment("scope/other/0.#epoch.0")
    await container.append("scope/other/0.#epoch.0", [bytes(100)])
    assert ((await container.stream_bytes())["scope/other"].retained_bytes, chunks) == (100, chunks)


@pytest.mark.usefixtures("quick")
async def test_a_truncation_while_lengths_are_listed_is_counted(
    world: World, reopen: Callable[[], Awaitable[Container]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object of an earlier owner has one reference left when its length is listed, and had more before."""
    monkeypatch.setattr(limits, "RECLAIM_FIRST_AFTER_S", 3600.0)
    contents = await filled(await world.open(), 4, 40 * KIB)
    container = await reopen()
    (shared,) = container.state.object_uses
    survivor, *others = contents
    list_objects = world.objects.list

    async def truncate_first(prefix: str) -> AsyncIterator[ObjectInfo]:
        for name in others:
            await container.truncate(name, len(contents[name]))
        async for info in list_objects(prefix):
            yield info

    with monkeypatch.context() as patch:
        patch.setattr(world.objects, "list", truncate_first)
        assert await container.background.reclamation.reclaim()
    assert shared not in container.state.object_uses
    assert await read_cold(container, survivor) == contents[survivor]


@pytest.mark.usefixtures("quick")
async def test_lengths_are_listed_again_though_nothing_is_released(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_INTERVAL_S", 0.05)
    container = await world.open()
    await filled(container, 2, 10)
    lists, list_objects = 0, container.storage.tier2.list_objects

    def counted(kind: str) -> AsyncIterator[ObjectInfo]:
        nonlocal lists
        lists += kind == "c"
        return list_objects(kind)

    monkeypatch.setattr(container.storage.tier2, "list_objects", counted)
    await eventually(lambda: lists >= 3)
