"""Snapshots in Tier 2: each is a whole state of the container, and stays restorable until a newer one is there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FencedError, FormatVersionError, UnavailableError
from tailrace.common.real_ports import SystemClock
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.tables.types import TableEntry
from tailrace.segmentstore.tier2.snapshot import Snapshot, SnapshotName, parse_key
from tailrace.storage.port import Buffer

from ..conftest import Objects, World, eventually, flush, names, newest, stored, take_snapshot

A, B, C = "scope/a/0.#epoch.0", "scope/b/1.#epoch.0", "scope/c/2.#epoch.0"
WRITER = b"w" * 16


class Gate(Objects):
    """Puts of keys that begin with a prefix wait until the gate is opened."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
        if key.startswith(self.prefix):
            self.reached.set()
            await self.open.wait()
        await super().put(key, data, if_absent=if_absent)


class Stopped(SystemClock):
    """A clock that is set by hand."""

    time_ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.time_ms


def replace(value: int) -> tuple[AttributeUpdate, ...]:
    return (AttributeUpdate(WRITER, AttributeUpdateType.REPLACE, value),)


def example() -> tuple[str, Snapshot]:
    key = "s7/0000000000000002-0000000000000009-0a0b0c0d0e0f"
    tail = [(5, ChunkRef("c7/x", 70, 0, 3))]
    return key, Snapshot(b"0123456789abcdef", 7, 2, 9, 1_700_000_000_000, b"checkpoint", tail)


def test_the_vector_of_the_documentation() -> None:
    text = (Path(__file__).parents[4] / "docs/formats/chunks.md").read_text()
    (vector,) = re.findall(r"Vector snapshot:.*?```text\n(.*?)```", text, re.DOTALL)
    key, snapshot = example()
    assert bytes.fromhex(vector) == b"".join(snapshot.encode(key))
    assert Snapshot.decode(key, bytes.fromhex(vector)) == snapshot
    assert SnapshotName(2, 9, "0a0b0c0d0e0f").key(7) == key
    assert parse_key(key) == (7, SnapshotName(2, 9, "0a0b0c0d0e0f"))


def test_damage_is_named() -> None:
    key, snapshot = example()
    data = b"".join(snapshot.encode(key))
    for position in [*range(4), *range(8, len(data))]:  # the version has its own error, the zeros behind it are covered
        bad = bytearray(data)
        bad[position] ^= 1
        with pytest.raises(CorruptionError, match="object s7/"):
            Snapshot.decode(key, bad)
    for length in range(len(data)):
        with pytest.raises(CorruptionError, match="object s7/"):
            Snapshot.decode(key, data[:length])
    with pytest.raises(CorruptionError):
        Snapshot.decode(key.replace("0a", "0b"), data)
    with pytest.raises(FormatVersionError, match="version 2"):
        Snapshot.decode(key, data[:4] + b"\2" + data[5:])


@pytest.mark.parametrize("key", ["s7/x", "c7/1/2-3-4-5", "s7/1-2-3", "cluster.json", "s/0-0-0"])
def test_other_keys_are_none(key: str) -> None:
    assert parse_key(key) is None


def test_a_state_with_a_byte_that_tier_2_lacks_is_no_snapshot() -> None:
    key, snapshot = example()
    with pytest.raises(CorruptionError, match="s7/"):
        snapshot.load(key)


async def test_it_holds_what_was_only_in_the_log(world: World) -> None:
    container = await world.open()
    for name in (A, B):
        await container.create_segment(name)
    await container.append(A, [b"tiered "], replace(1))
    await container.flush_to_storage()
    await container.append(A, [b"and not tiered"], replace(2))
    await container.append(B, [bytes(range(256)) * 40_000])  # more than one object
    tables = TableService(container)
    await tables.create_table("scope/_tables/t", 0)
    await tables.update("scope/_tables/t", [TableEntry(b"key", b"value")])
    sequence = container.state.committed_sequence
    assert await take_snapshot(container)
    snapshot, state = await newest(world)
    assert snapshot.epoch == 1
    assert sequence <= snapshot.sequence <= container.state.committed_sequence
    assert {name: segment.length for name, segment in state.by_name.items()} == {
        name: segment.length for name, segment in container.state.by_name.items()
    }
    assert await stored(world, state, A) == b"tiered and not tiered"
    assert await stored(world, state, B) == bytes(range(256)) * 40_000
    assert state.by_name[A].committed[WRITER] == 2
    assert len(await stored(world, state, "scope/_tables/t")) == state.by_name["scope/_tables/t"].length > 0
    assert container.state.segments[state.by_name[A].segment_id].pending  # the container goes its own way


async def test_it_is_as_of_one_moment_whatever_comes_while_it_is_written(world: World) -> None:
    world.objects = gate = Gate("c7")
    container = await world.open()
    for name in (A, B, C):
        await container.create_segment(name)
        await container.append(name, [name.encode() * 100], replace(1))
    before = {name: segment.length for name, segment in container.state.by_name.items()}
    taking = asyncio.create_task(take_snapshot(container))
    await gate.reached.wait()
    await container.append(A, [b"later"], replace(2))
    await container.merge(A, B)
    await container.truncate(A, 50)
    await container.delete(C)
    await container.create_segment(C)
    await container.append(C, [b"another one"])
    gate.open.set()
    assert await taking
    _, state = await newest(world)
    assert {name: segment.length for name, segment in state.by_name.items()} == before
    for name in (A, B, C):
        assert await stored(world, state, name) == name.encode() * 100
        assert state.by_name[name].committed[WRITER] == 1
    assert container.status().untiered_bytes
    assert world.running[-1].core.cache.cache.pinned_blocks == 0


async def test_what_the_newest_one_needs_stays_until_there_is_a_newer_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    container = await world.open()
    await container.create_segment(A)
    await container.append(A, [b"tiered"])
    await container.flush_to_storage()
    await container.append(A, [b" and not"])
    await take_snapshot(container)
    await container.delete(A)
    await container.create_segment(B)
    await container.append(B, [b"b"])
    for _ in range(3):
        await flush(container)
        await asyncio.sleep(0.03)
    assert container.status().pending_deletes == 2
    _, state = await newest(world)
    assert await stored(world, state, A) == b"tiered and not"
    await take_snapshot(container)
    await eventually(lambda: not container.status().pending_deletes)
    _, state = await newest(world)
    assert list(state.by_name) == [B]
    assert await stored(world, state, B) == b"b"


async def test_a_later_owner_keeps_what_the_newest_one_needs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    container = await world.open()
    await container.create_segment(A)
    await container.append(A, [b"not tiered"])
    await take_snapshot(container)
    world.objects.outage = True  # no last snapshot
    await container.close()
    world.objects.outage = False
    container = await world.open()
    await container.delete(A)
    for _ in range(3):
        await flush(container)
        await asyncio.sleep(0.03)
    snapshot, state = await newest(world)
    assert snapshot.epoch == 1
    assert await stored(world, state, A) == b"not tiered"
    await take_snapshot(container)
    await eventually(lambda: not container.status().pending_deletes)
    assert (await newest(world))[0].epoch == 2


async def test_a_few_are_kept(world: World) -> None:
    container = await world.open()
    for number in range(limits.SNAPSHOTS_KEPT + 2):
        await container.create_segment(f"scope/stream/{number}.#epoch.0")
        await take_snapshot(container)
        await take_snapshot(container)  # nothing changed: nothing is written
    kept = await names(world)
    assert len(kept) == limits.SNAPSHOTS_KEPT
    assert kept[-1].sequence == container.state.committed_sequence


async def test_older_ones_that_cannot_be_deleted_go_with_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(keys: Sequence[str]) -> None:
        raise UnavailableError("nothing is deleted today")

    container = await world.open()
    with monkeypatch.context() as patch:
        patch.setattr(world.objects, "delete", refuse)
        for number in range(limits.SNAPSHOTS_KEPT + 2):
            await container.create_segment(f"scope/stream/{number}.#epoch.0")
            assert await take_snapshot(container)
    assert len(await names(world)) > limits.SNAPSHOTS_KEPT
    await container.create_segment(A)
    await take_snapshot(container)
    assert len(await names(world)) == limits.SNAPSHOTS_KEPT


async def test_they_are_taken_by_and_by_and_at_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_FIRST_S", 0.01)
    monkeypatch.setattr(limits, "SNAPSHOT_INTERVAL_S", 0.01)
    monkeypatch.setattr(limits, "SNAPSHOT_RETRY_S", 0.01)
    container = await world.open()
    await container.create_segment(A)
    sequence = container.state.committed_sequence
    await eventually(lambda: container.background.snapshotter.sequence >= sequence)
    world.objects.outage = True
    await container.create_segment(B)
    await asyncio.sleep(0.05)
    assert container.background.snapshotter.sequence < container.state.committed_sequence
    world.objects.outage = False
    await eventually(lambda: container.background.snapshotter.sequence == container.state.committed_sequence)
    monkeypatch.setattr(limits, "SNAPSHOT_INTERVAL_S", 100.0)
    await asyncio.sleep(0.05)
    await container.append(B, [b"last"])
    await container.close()
    assert await stored(world, (await newest(world))[1], B) == b"last"


async def test_bytes_that_recovery_left_in_the_log_are_waited_for(world: World) -> None:
    container = await world.open()
    await container.create_segment(A)
    block = bytes(range(256)) * 1024
    world.objects.failing_puts = set(range(10_000))
    await asyncio.gather(*(container.append(A, [block]) for _ in range(30)))
    await container.close()
    world.cache_bytes = 4 << 20
    container = await world.open()
    assert any(entry.address < 0 for entry in container.state.by_name[A].read_index)
    assert not await take_snapshot(container)
    world.objects.failing_puts = set()
    await container.flush_to_storage()
    assert await take_snapshot(container)
    assert await stored(world, (await newest(world))[1], A) == block * 30


async def foreign(world: World, container: Container, epoch: int) -> None:
    """A snapshot that a later owner of a restored cluster would store."""
    await take_snapshot(container)
    snapshot, _ = await newest(world)
    key = SnapshotName(epoch, snapshot.sequence, "ff").key(7)
    later = Snapshot(snapshot.cluster_id, 7, epoch, snapshot.sequence, 0, snapshot.body, snapshot.tail)
    await world.objects.put(key, later.encode(key))


async def test_an_owner_stops_when_its_container_was_restored_elsewhere(world: World) -> None:
    container = await world.open()
    await container.create_segment(A)
    await foreign(world, container, 1000)
    with pytest.raises(CorruptionError, match="restored elsewhere"):
        await take_snapshot(container)
    await container.close()
    with pytest.raises(CorruptionError, match="restored elsewhere"):
        await world.open()
    assert (await names(world))[-1].epoch == 1000


async def test_a_restore_from_the_last_one_while_the_next_is_on_its_way_keeps_its_objects(world: World) -> None:
    """An owner that stood still between its look and its snapshot would delete what the restored container needs."""
    gate = world.objects = Gate("none")
    container = await world.open()
    await container.create_segment(A)
    await container.append(A, [b"of the restored container, too"])
    await flush(container)
    (needed,) = container.state.object_uses
    await take_snapshot(container)
    await container.truncate(A, 30)
    gate.prefix = "s7"
    taking = asyncio.create_task(take_snapshot(container))
    await gate.reached.wait()
    found, _ = await newest(world)
    key = SnapshotName(1000, found.sequence, "ff").key(7)
    restored = Snapshot(found.cluster_id, 7, 1000, found.sequence, 0, found.body, found.tail)
    await Objects.put(gate, key, restored.encode(key))
    gate.open.set()
    with pytest.raises(CorruptionError, match="restored elsewhere"):
        await taking
    assert needed in container.state.pending_deletes
    assert not container.background.snapshotter.may_delete(needed)


async def test_the_time_is_that_of_the_state_and_not_of_the_end_of_its_upload(world: World) -> None:
    """What was committed while the bytes beside it were written is later than the snapshot."""
    gate = world.objects = Gate("c7")
    clock = world.clock = Stopped()
    container = await world.open()
    await container.create_segment(A)
    await container.append(A, [b"in the log alone"])
    taking = asyncio.create_task(take_snapshot(container))
    await gate.reached.wait()
    before_ms, clock.time_ms = clock.time_ms, clock.time_ms + 60_000
    gate.open.set()
    assert await taking
    assert (await newest(world))[0].time_ms == before_ms


async def test_an_owner_that_lost_its_log_is_fenced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fenced() -> None:
        raise FencedError("the log was taken", 1000)

    container = await world.open()
    await container.create_segment(A)
    await foreign(world, container, 1000)
    monkeypatch.setattr(container.core.log, "confirm_owner", fenced)
    with pytest.raises(FencedError):
        await take_snapshot(container)


async def test_flipped_bytes_of_the_cache_never_come_into_one(world: World) -> None:
    container = await world.open()
    await container.create_segment(A)
    await container.append(A, [b"precious"])
    segment = container.state.by_name[A]
    (item,) = segment.pending
    segment.pending.clear()
    segment.pending.add(*item._replace(crc=1))
    with pytest.raises(CorruptionError, match="differ from those that were written"):
        await take_snapshot(container)
    assert not await names(world)


async def objects_of(world: World) -> list[str]:
    """The keys of all chunks that Tier 2 holds."""
    return sorted([item.key async for item in world.objects.list("c7")])


@pytest.mark.parametrize("flushed", [True, False], ids=["flushed", "deleted"])
@pytest.mark.parametrize("failing", [1, 2, 3, 4], ids=["first object", "second", "third", "snapshot"])
async def test_objects_of_one_that_failed_are_deleted_by_the_same_owner(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: int, flushed: bool
) -> None:
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.0)
    content = bytes(range(256)) * 400
    monkeypatch.setattr(limits, "FLUSH_THRESHOLD_BYTES", len(content) + 1)  # an object for each segment
    container = await world.open()
    names_of = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
    for name in names_of:
        await container.create_segment(name)
        await container.append(name, [content])
    world.objects.failing_puts = {world.objects.puts + failing}
    with pytest.raises(UnavailableError):
        await take_snapshot(container)
    left = await objects_of(world)
    assert len(left) == failing - 1
    if flushed:
        await flush(container)
        kept = list(container.state.object_uses)
        assert not {*kept} & {*left}
    else:
        kept = []
        for name in names_of:
            await container.delete(name)
    await take_snapshot(container)
    container.core.flush_queue.flush_now()
    for _ in range(3):  # a snapshot supersedes the one before it
        await take_snapshot(container)
        await asyncio.sleep(0.05)
    await eventually(lambda: not container.state.pending_deletes)
    assert await objects_of(world) == sorted(kept)
    if flushed:
        for name in names_of:
            assert await container.read_exact(name, 0, len(content)) == content


async def test_the_last_one_has_what_is_acknowledged_while_the_container_closes(world: World) -> None:
    world.log_delay_s = 0.05
    container = await world.open()
    await container.create_segment(A)
    append = asyncio.create_task(container.append(A, [b"staged when the end came"]))
    await asyncio.sleep(0)
    assert container.core.processor.next_sequence - 1 > container.state.committed_sequence
    await container.close()
    await append
    assert await stored(world, (await newest(world))[1], A) == b"staged when the end came"
