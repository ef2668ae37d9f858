"""Small chunks become one: exactly what is named is replaced, readers notice nothing (docs/design.md#tier-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, DeadlineError, FencedError
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType, SegmentKind
from tailrace.segmentstore.attributes.pages import PageCache
from tailrace.segmentstore.background.compaction_policy import choose
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.state import ContainerState

from ..conftest import World, eventually, take_snapshot

NAME = "scope/stream/0.#epoch.0"
OTHER = "scope/other/0.#epoch.0"


# -- the operation ---------------------------------------------------------------------------------------------------


class Replayed:
    """A committed state that operations are applied to."""

    def __init__(self) -> None:
        self.state = ContainerState(7)
        self.apply(ops.Recovered(1, 1))

    def apply(self, operation: ops.Operation) -> int:
        sequence = self.state.next_sequence
        self.state.apply(sequence, operation)
        return sequence

    def segment(self, name: str, chunks: list[int], *, shared: str = "") -> Segment:
        """A segment with chunks of these lengths, each an object of its own or all of them in one."""
        identifier = self.apply(ops.Create(self.state.next_sequence, name, SegmentKind.STREAM, 0, 0, []))
        segment = self.state.segments[identifier]
        for length in chunks:
            start = segment.length
            self.apply(ops.Append(identifier, start, 0, [], memoryview(bytes(length))))
            key = shared or f"{name}-{start}"
            self.apply(ops.AddChunks([(identifier, ChunkRef(key, 0, start, length))]))
        return segment


def swap(segment: Segment, old: list[ChunkRef]) -> ops.SwapChunks:
    start, end = old[0].segment_offset, old[-1].end
    return ops.SwapChunks(segment.segment_id, old, [ChunkRef("new", 70, start, end - start)])


def test_the_objects_of_replaced_references_wait_to_be_deleted() -> None:
    replayed = Replayed()
    segment = replayed.segment("a", [5, 6, 7])
    refs = list(segment.chunks)
    replayed.apply(swap(segment, refs[1:]))
    assert list(segment.chunks) == [refs[0], ChunkRef("new", 70, 5, 13)]
    assert replayed.state.object_uses == {"a-0": 1, "new": 1}
    assert list(replayed.state.pending_deletes) == ["a-5", "a-11"]


def test_an_object_that_another_segment_needs_stays() -> None:
    replayed = Replayed()
    segment, other = replayed.segment("a", [5, 6], shared="x"), replayed.segment("b", [9], shared="x")
    replayed.apply(swap(segment, list(segment.chunks)))
    assert replayed.state.object_uses == {"x": 1, "new": 1}
    assert not replayed.state.pending_deletes
    replayed.apply(ops.Delete(other.segment_id))
    assert list(replayed.state.pending_deletes) == ["x"]


def truncated(replayed: Replayed, segment: Segment) -> None:
    replayed.apply(ops.Truncate(segment.segment_id, 5))


def merged(replayed: Replayed, segment: Segment) -> None:
    target = replayed.segment("target", [3])
    replayed.apply(ops.Merge(target.segment_id, segment.segment_id, 3, segment.length, 0, []))


def deleted(replayed: Replayed, segment: Segment) -> None:
    replayed.apply(ops.Delete(segment.segment_id))


def compacted(replayed: Replayed, segment: Segment) -> None:
    replayed.apply(ops.SwapChunks(segment.segment_id, list(segment.chunks), [ChunkRef("first", 0, 0, segment.length)]))


@pytest.mark.parametrize("meanwhile", [truncated, merged, deleted, compacted])
def test_nothing_is_replaced_when_a_reference_is_not_there_any_more(
    meanwhile: Callable[[Replayed, Segment], None],
) -> None:
    replayed = Replayed()
    segment = replayed.segment("a", [5, 6, 7])
    operation = swap(segment, list(segment.chunks))
    meanwhile(replayed, segment)
    before = {identifier: list(other.chunks) for identifier, other in replayed.state.segments.items()}
    uses, pending = dict(replayed.state.object_uses), list(replayed.state.pending_deletes)
    replayed.apply(operation)
    assert {identifier: list(other.chunks) for identifier, other in replayed.state.segments.items()} == before
    assert replayed.state.object_uses == uses
    assert list(replayed.state.pending_deletes) == [*pending, "new"]


def test_a_truncation_within_the_first_reference_changes_nothing() -> None:
    replayed = Replayed()
    segment = replayed.segment("a", [5, 6, 7])
    operation = swap(segment, list(segment.chunks))
    replayed.apply(ops.Truncate(segment.segment_id, 4))
    replayed.apply(operation)
    assert list(segment.chunks) == [ChunkRef("new", 70, 0, 18)]


def test_a_swap_over_another_range_is_no_operation_of_ours() -> None:
    replayed = Replayed()
    segment = replayed.segment("a", [5, 6])
    with pytest.raises(CorruptionError, match="SWAP_CHUNKS"):
        replayed.apply(ops.SwapChunks(segment.segment_id, list(segment.chunks), [ChunkRef("new", 70, 0, 10)]))


# -- a container -----------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPACT_TICK_S", 0.01)
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)


async def trickle(container: Container, name: str, count: int) -> bytes:
    """Events, each of which is flushed by itself."""
    whole = b""
    for number in range(count):
        event = bytes([number % 251]) * (100 + number)
        await container.append(name, [event])
        await container.flush_to_storage()
        whole += event
    return whole


async def read_cold(container: Container, name: str) -> bytes:
    """All bytes, from Tier 2."""
    segment = container.state.by_name[name]
    container.core.cache.drop_all(segment.read_index)
    return await container.read_exact(name, segment.start_offset, segment.length - segment.start_offset)


def refs_of(container: Container, name: str) -> list[ChunkRef]:
    return list(container.state.by_name[name].chunks)


@pytest.mark.usefixtures("quick")
async def test_many_small_flushes_leave_few_references(
    world: World, reopen: Callable[[], Awaitable[Container]]
) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    whole = await trickle(container, NAME, 100)
    await eventually(lambda: len(refs_of(container, NAME)) <= 2 * limits.COMPACT_RUN_MIN)
    assert await read_cold(container, NAME) == whole
    # a compaction that is interrupted leaves an orphan
    await eventually(lambda: not choose(refs_of(container, NAME), limits.FLUSH_OBJECT_MAX_BYTES))
    container = await reopen()
    assert await read_cold(container, NAME) == whole
    await container.flush_to_storage()
    await take_snapshot(container)
    needed = {ref.object_key for ref in refs_of(container, NAME)}
    await eventually(lambda: not container.state.pending_deletes)
    assert {info.key async for info in world.objects.list("c7")} == needed
    assert await read_cold(container, NAME) == whole


@pytest.mark.usefixtures("quick")
async def test_damage_is_not_written_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that fail verification stay unchanged, so that a reader gets the error; other segments are compacted."""
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", -1)
    container = await world.open()
    for name in (NAME, OTHER):
        await container.create_segment(name)
        await trickle(container, name, 20)
    damaged = refs_of(container, NAME)[7].object_key
    content = bytearray(await world.objects.get(damaged))
    content[-20] ^= 1
    await world.objects.put(damaged, [content])
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 1 << 20)
    await eventually(lambda: len(refs_of(container, OTHER)) == 1 and container.background.compaction._refused)
    assert len(refs_of(container, NAME)) == 20
    with pytest.raises(CorruptionError, match="CRC32C"):
        await read_cold(container, NAME)
    assert container.status().state == "running"


@pytest.mark.usefixtures("quick")
async def test_what_is_written_again_is_paid_from_what_was_flushed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a floor compaction writes at most what the storage writer wrote, and one run more."""
    monkeypatch.setattr(limits, "COMPACT_FLOOR_BYTES_PER_S", 0)
    monkeypatch.setattr(limits, "COMPACT_SHARE", 0.25)
    container = await world.open()
    for number in range(6):
        await container.create_segment(f"{NAME}{number}")
        await trickle(container, f"{NAME}{number}", 20)
    flushed = container.storage.tier2.bytes_written - container.background.compaction.written_bytes
    longest = max(container.state.by_name[f"{NAME}{number}"].length for number in range(6))
    await eventually(lambda: container.background.compaction.written_bytes)
    await asyncio.sleep(0.2)
    assert 0 < container.background.compaction.written_bytes <= flushed / 4 + longest


@pytest.mark.usefixtures("quick")
async def test_the_storage_writer_goes_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While every upload slot is taken nothing is compacted, until it has waited for long enough."""
    container = await world.open()
    slots = container.core.ports.upload_slots
    monkeypatch.setattr(limits, "COMPACT_RUN_MIN", 1000)
    await container.create_segment(NAME)
    await trickle(container, NAME, 20)
    for _ in range(limits.UPLOADS_MAX):
        await slots.acquire()
    monkeypatch.setattr(limits, "COMPACT_RUN_MIN", 2)
    container.background.compaction._cursors[container.state.by_name[NAME].segment_id] = 0
    await asyncio.sleep(0.1)
    assert len(refs_of(container, NAME)) == 20
    monkeypatch.setattr(limits, "COMPACT_DEFER_MAX_S", 0.0)
    await asyncio.sleep(0.05)
    slots.release()
    await eventually(lambda: len(refs_of(container, NAME)) < 20)


@pytest.mark.usefixtures("quick")
async def test_nothing_is_compacted_while_another_upload_would_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads that were late leave fewer than there are slots."""
    container = await world.open()
    window = container.core.ports.upload_window
    monkeypatch.setattr(limits, "COMPACT_RUN_MIN", 1000)
    await container.create_segment(NAME)
    await trickle(container, NAME, 20)
    with pytest.raises(DeadlineError):
        async with window.slot(limits.FLUSH_OBJECT_MAX_BYTES):
            raise DeadlineError("no answer in 30 s")
    async with window.slot(limits.FLUSH_OBJECT_MAX_BYTES):
        assert window.full
        monkeypatch.setattr(limits, "COMPACT_RUN_MIN", 2)
        container.background.compaction._cursors[container.state.by_name[NAME].segment_id] = 0
        await asyncio.sleep(0.1)
        assert len(refs_of(container, NAME)) == 20
    await eventually(lambda: len(refs_of(container, NAME)) < 20)


@pytest.mark.parametrize("late", [0, 3, 40, 99])
async def test_chunks_that_come_late_in_the_middle_are_found(
    world: World, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """A merged source may be in Tier 2 before the bytes in front of it are."""
    monkeypatch.setattr(limits, "COMPACT_LOOK_REFS", 2 * limits.COMPACT_RUN_FORCED)
    container = await world.open()
    segment = Segment(3, NAME, SegmentKind.STREAM, 0, 0)
    large = limits.COMPACT_SMALL_MAX_BYTES

    def small(place: int) -> range:
        return range(place * 2 * large, place * 2 * large + limits.COMPACT_RUN_MIN)

    for place in range(100):  # runs that are one short of being worth it, and a large chunk behind each
        for offset in small(place)[1:]:
            segment.chunks.add(ChunkRef("small", 0, offset, 1))
        segment.chunks.add(ChunkRef("large", 0, small(place)[-1] + 1, large))
    for _ in range(100):
        assert not container.background.compaction._look(segment)
    segment.chunks.add(ChunkRef("late", 0, small(late)[0], 1))
    looks = (container.background.compaction._look(segment) for _ in range(100))
    run = next(filter(None, looks))
    assert [ref.segment_offset for ref in run] == list(small(late))


# -- readers ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
async def test_a_reader_whose_object_went_looks_at_the_references_once_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMPACT_RUN_MIN", 1000)
    container = await world.open()
    await container.create_segment(NAME)
    whole = await trickle(container, NAME, 20)
    segment = container.state.by_name[NAME]
    old = list(segment.chunks)
    get_range = world.objects.get_range
    late: list[str] = []

    async def held_up(key: str, offset: int, length: int) -> bytes:
        """Between the choice of a reference and the read its object is replaced and deleted."""
        if not late and key == old[0].object_key:
            late.append(key)
            await container.background.compaction._compact(segment, old)
            await world.objects.delete([ref.object_key for ref in old])
        return await get_range(key, offset, length)

    container.core.cache.drop_all(segment.read_index)
    monkeypatch.setattr(world.objects, "get_range", held_up)
    assert await container.read_exact(NAME, 0, segment.length) == whole
    assert late


@pytest.mark.usefixtures("quick")
async def test_an_object_that_is_referenced_and_gone_is_corruption(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await trickle(container, NAME, 3)
    segment = container.state.by_name[NAME]
    gone = refs_of(container, NAME)[1].object_key
    await world.objects.delete([gone])
    container.core.cache.drop_all(segment.read_index)
    with pytest.raises(CorruptionError, match=gone):
        await container.read_exact(NAME, 0, segment.length)
    assert await container.read_exact(NAME, 0, 100) == bytes([0]) * 100


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("what", ["bytes", "attributes"])
async def test_what_a_later_owner_deleted_is_no_corruption(world: World, what: str) -> None:
    """An owner that does not know of its successor misses objects that the successor let go: it is fenced, no more."""
    zombie = await world.open()
    await zombie.create_segment(NAME)
    ids = [bytes([number]) * 16 for number in range(1, 9)]
    await zombie.append(NAME, [b"x" * 100], [AttributeUpdate(key, AttributeUpdateType.REPLACE, 1) for key in ids])
    await zombie.flush_to_storage()
    segment = zombie.state.by_name[NAME]
    flush = await zombie.storage.attributes.build_update(segment)
    assert flush is not None
    await zombie.core.commit_control(flush.operation)
    segment.dirty.settle_items(flush.items)
    successor = await world.open()
    await world.objects.delete([info.key async for info in world.objects.list("") if not info.key.startswith("s7/")])
    zombie.core.cache.drop_all(segment.read_index)
    zombie.storage.attributes._reads.cache = PageCache(limits.MIB)
    segment.committed.clear()
    ask = zombie.read_exact(NAME, 0, 100) if what == "bytes" else zombie.get_attributes(NAME, ids)
    with pytest.raises(FencedError):
        await ask
    assert isinstance(await zombie.wait_stopped(), FencedError)
    successor.core.cache.drop_all(successor.state.by_name[NAME].read_index)
    with pytest.raises(CorruptionError):
        await successor.read_exact(NAME, 0, 100)
