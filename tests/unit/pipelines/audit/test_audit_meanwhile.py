"""The audit of a container that works meanwhile: what it deletes and replaces is no damage, and hides none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace as replace_fields

import pytest

from tailrace.common import limits
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.pipelines.audit.objects import ObjectAudit
from tailrace.pipelines.audit.rows import Row, Status, What
from tailrace.pipelines.direct.references import newest_snapshot
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.tier2.chunk_objects import ChunkObjects, Section
from tailrace.segmentstore.tier2.snapshot import Snapshot, SnapshotName
from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore
from tailrace.storage import chunks
from tailrace.storage.port import ObjectStore

from ..conftest import CLUSTER, CONTAINERS, Owned
from .conftest import KIB, MIB, SOURCE, A, Audited, a_chunk, fill, findings, replace


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are deleted, and small chunks compacted, as soon as the rules allow it."""
    for name in ("DELETE_DELAY_S", "COMPACT_TICK_S", "FLUSH_TICK_S"):
        monkeypatch.setattr(limits, name, 0.01)


async def small_chunks(owned: Owned, monkeypatch: pytest.MonkeyPatch, length: int) -> tuple[Container, Audited]:
    """A container with 130 chunks of that many bytes, none of them compacted yet, and an inventory of it."""
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 0)
    container = await owned.open()
    await container.create_segment(A)
    for number in range(130):
        await container.append(A, [bytes([number]) * length])
        await container.flush_to_storage()
    await owned.snapshot()
    audited = Audited(owned)
    await audited.take()
    return container, audited


async def until_replaced(owned: Owned, container: Container, audited: Audited, wanted: int) -> None:
    """Work on until so many objects that the inventory names are deleted."""
    named = {row.object for row in audited.of(What.REFERENCE)}
    for number in range(400):
        await container.create_segment(f"scope/other/{number}.#epoch.0")
        await container.flush_to_storage()
        await owned.snapshot()
        there = {info.key async for info in owned.store.list("")}
        if len(named - there) >= wanted:
            return
    pytest.fail("the objects are still there")


@pytest.mark.usefixtures("eager")
async def test_chunks_that_are_compacted_during_the_audit_are_verified_where_they_are_now(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    container, audited = await small_chunks(owned, monkeypatch, 1000)
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 32 * MIB)
    await until_replaced(owned, container, audited, 100)
    rows = await audited.verify()
    assert findings(rows) == []
    chunk_rows = [row for row in rows if row.what is What.CHUNK]
    assert sum(row.verified_bytes or 0 for row in chunk_rows) == 130_000
    assert {row.status for row in chunk_rows} == {Status.VERIFIED}
    assert "read from newer objects" in {row.reason for row in chunk_rows}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("change", ["truncated", "deleted"])
async def test_bytes_that_go_during_the_audit_are_gone_and_not_missing(
    owned: Owned, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    container, audited = await small_chunks(owned, monkeypatch, 1000)
    await (container.truncate(A, 120_000) if change == "truncated" else container.delete(A))
    gone = 120 if change == "truncated" else 130
    await until_replaced(owned, container, audited, gone)
    rows = await audited.verify()
    assert findings(rows) == []
    found = [row for row in rows if row.what is What.CHUNK and row.status == Status.GONE]
    assert len(found) == gone
    kept = [row for row in rows if row.what is What.CHUNK and row.status == Status.VERIFIED]
    assert sum(row.verified_bytes or 0 for row in kept) == 1000 * (130 - gone)


async def test_an_object_that_a_newer_snapshot_names_too_is_missing(owned: Owned) -> None:
    container = await fill(owned)
    audited = Audited(owned)
    await audited.take()
    row = a_chunk(audited)
    assert row.object
    await container.append(A, [b"more"])
    await owned.snapshot()
    await owned.store.delete([row.object])
    found = findings(await audited.verify())
    assert {(each.status, each.object) for each in found} == {(Status.MISSING, row.object)}
    assert (row.segment, row.offset) in [(each.segment, each.offset) for each in found]


async def test_an_object_whose_segment_was_merged_and_that_the_target_names_is_missing(owned: Owned) -> None:
    container = await owned.open()
    for name in (A, SOURCE):
        await container.create_segment(name)
    await container.append(SOURCE, [b"s" * 70 * KIB])
    await container.flush_to_storage()
    await owned.snapshot()
    audited = Audited(owned)
    await audited.take()
    row = a_chunk(audited, SOURCE)
    assert row.object
    await container.merge(A, SOURCE)
    await owned.snapshot()
    await owned.store.delete([row.object])
    found = findings(await audited.verify())
    assert {(each.status, each.object) for each in found} == {(Status.MISSING, row.object)}


async def compacted(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> Audited:
    """An inventory of 130 small chunks, of which 100 or more have become parts of larger objects since."""
    container, audited = await small_chunks(owned, monkeypatch, 8000)
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 32 * MIB)
    await until_replaced(owned, container, audited, 100)
    await owned.snapshot()
    return audited


class Counted(ReadOnlyStore):
    """Counts what is read; ``meanwhile`` runs once, after the first snapshot was read."""

    def __init__(self, store: ObjectStore, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(store)
        self.snapshots = 0
        self.bytes_read = 0
        self._meanwhile = meanwhile

    async def get(self, key: str) -> bytes:
        self.snapshots += key.startswith("s0/")
        data = await super().get(key)
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        return data

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.bytes_read += length
        return await super().get_range(key, offset, length)


async def verify_with(audited: Audited, store: ReadOnlyStore) -> list[Row]:
    return await ObjectAudit(store, CLUSTER, CONTAINERS, SystemClock().now_ms()).verify(audited.work())


@pytest.mark.usefixtures("eager")
async def test_many_replaced_objects_cost_one_snapshot_and_their_own_blocks(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited = await compacted(owned, monkeypatch)
    store = Counted(owned.store)
    rows = await verify_with(audited, store)
    assert findings(rows) == []
    assert store.snapshots == 1
    assert sum(row.verified_bytes or 0 for row in rows if row.what is What.CHUNK) == 130 * 8000
    # Each old chunk is in one or two blocks of a newer one. Whole newer objects would be more than 25 MB.
    assert store.bytes_read < 130 * (2 * chunks.BLOCK_STRIDE + 8192)


async def newest_of(owned: Owned) -> tuple[str, Snapshot]:
    found = await newest_snapshot(owned.store, CLUSTER, 0)
    assert found is not None
    return found


async def newer(owned: Owned, changed: Snapshot) -> str:
    """Store a snapshot that is the newest one, although its operation is that of the last one."""
    name = SnapshotName(changed.epoch, changed.sequence, "f" * 13)
    await owned.store.put(name.key(0), changed.encode(name.key(0)))
    return name.key(0)


@pytest.mark.usefixtures("eager")
async def test_a_damaged_newer_snapshot_is_named_and_what_it_would_say_is_unsettled(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited = await compacted(owned, monkeypatch)
    key, _ = await newest_of(owned)
    data = bytearray(await owned.store.get(key))
    data[80] ^= 1
    await replace(owned, key, bytes(data))
    rows = await audited.verify()
    (found,) = findings(rows)
    assert (found.status, found.object, found.reason) == (Status.DAMAGED, key, "snapshot CRC32C does not match")
    unsettled = [row for row in rows if row.what is What.CHUNK and row.status == Status.UNSETTLED]
    assert len(unsettled) >= 100
    assert all(row.verified_bytes == 0 for row in unsettled)


@pytest.mark.usefixtures("eager")
async def test_a_newer_object_that_is_lost_is_missing_itself(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    audited = await compacted(owned, monkeypatch)
    old = {row.object for row in audited.of(What.REFERENCE)}
    key, snapshot = await newest_of(owned)
    (segment,) = [each for each in snapshot.segments(key) if each.name == A]
    lost = max((ref for ref in segment.chunks if ref.object_key not in old), key=lambda ref: ref.length)
    await owned.store.delete([lost.object_key])
    rows = await audited.verify()
    assert {(each.status, each.object, each.segment) for each in findings(rows)} == {
        (Status.MISSING, lost.object_key, A)
    }
    verified = sum(row.verified_bytes or 0 for row in rows if row.what is What.CHUNK)
    assert verified == 130 * 8000 - lost.length


@pytest.mark.usefixtures("eager")
async def test_objects_that_are_replaced_twice_are_read_where_they_are_at_last(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time after the executor has read the newest snapshot."""
    audited = await compacted(owned, monkeypatch)
    key, snapshot = await newest_of(owned)
    moved = {}

    async def move() -> None:
        """Write each newer object again, name the new ones in a newer snapshot, and delete the others."""
        tier2 = ChunkObjects(owned.store, CLUSTER.bytes, 0, snapshot.epoch, SystemEntropy())
        old = {row.object for row in audited.of(What.REFERENCE)}
        body = bytes(snapshot.body)
        for segment in snapshot.segments(key):
            for ref in segment.chunks:
                if ref.object_key not in old:
                    data = await tier2.read_exact(ref, ref.segment_offset, ref.length)
                    section = Section(segment.segment_id, segment.name, ref.segment_offset, data)
                    ((_, written),) = await tier2.write([section])
                    assert written == replace_fields(ref, object_key=written.object_key)
                    moved[ref.object_key] = written.object_key
                    body = body.replace(ref.object_key.encode(), moved[ref.object_key].encode())
        await newer(owned, replace_fields(snapshot, body=body))
        await owned.store.delete(list(moved))

    rows = await verify_with(audited, Counted(owned.store, move))
    assert moved
    assert findings(rows) == []
    assert sum(row.verified_bytes or 0 for row in rows if row.what is What.CHUNK) == 130 * 8000


@pytest.mark.usefixtures("eager")
async def test_bytes_that_a_newer_snapshot_does_not_name_are_a_gap_and_not_gone(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 0)
    container = await owned.open()
    await container.create_segment(A)
    await container.append(A, [b"a" * 100 * KIB])
    await owned.snapshot()  # the bytes are in an object of the snapshot alone
    audited = Audited(owned)
    await audited.take()
    (row,) = [each for each in audited.of(What.REFERENCE) if each.segment == A]
    assert row.object
    _, snapshot = await newest_of(owned)
    key = await newer(owned, replace_fields(snapshot, tail=()))
    await owned.store.delete([row.object])
    (found,) = findings(await audited.verify())
    assert (found.status, found.segment, found.object) == (Status.GAP, A, key)
    assert (found.offset, found.length_bytes) == (0, 100 * KIB)


async def test_an_object_that_the_list_lacks_and_that_is_there_is_verified(owned: Owned) -> None:
    await fill(owned)
    audited = Audited(owned)
    await audited.take()
    row = a_chunk(audited)
    audited.listed = [each for each in audited.listed if each.object != row.object]
    rows = await audited.verify()
    assert findings(rows) == []
    assert {each.status for each in rows if each.what is What.CHUNK} == {Status.VERIFIED}
