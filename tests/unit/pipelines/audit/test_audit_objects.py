"""The audit of a real container's Tier 2, without Spark: damage is named, and work that goes on meanwhile is none."""

from __future__ import annotations

import random

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.common.real_ports import SystemClock
from tailrace.pipelines.audit.classify import Newest
from tailrace.pipelines.audit.inventory import SnapshotInventory, list_objects
from tailrace.pipelines.audit.objects import ObjectAudit, Reference, Work
from tailrace.pipelines.audit.rows import CHUNK, Row, Status, What
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore
from tailrace.storage import chunks

from ..conftest import CLUSTER, CONTAINERS, Owned

A, B, SOURCE = "scope/a/0.#epoch.0", "scope/b/0.#epoch.0", "scope/source/0.#epoch.0"
KIB, MIB = 1024, 1024 * 1024


class Audited:
    """An inventory that was taken, and what was listed after it: what the driver plans with."""

    def __init__(self, owned: Owned) -> None:
        self.store = ReadOnlyStore(owned.store)
        self.audit = ObjectAudit(self.store, CLUSTER, CONTAINERS, SystemClock().now_ms())
        self.inventory: list[Row] = []
        self.listed: list[Row] = []

    async def take(self) -> None:
        """Read the snapshots, then the list."""
        self.inventory = [row async for row in SnapshotInventory(self.store, CLUSTER).rows(0)]
        self.listed = [row async for row in list_objects(self.store)]

    def of(self, what: What) -> list[Row]:
        return [row for row in self.inventory if row.what is what]

    def work(self) -> list[Work]:
        """Join references and list, as Spark does."""
        (container,) = self.of(What.CONTAINER)
        newest = None if container.epoch is None else Newest(container.epoch, container.time_ms or 0)
        named: dict[str, list[Reference]] = {}
        for row in self.of(What.REFERENCE):
            assert row.object
            assert row.segment
            assert row.status
            assert None not in (row.segment_id, row.position, row.offset, row.length_bytes)
            ref = ChunkRef(row.object, row.position or 0, row.offset or 0, row.length_bytes or 0)
            named.setdefault(row.object, []).append(Reference(row.segment, row.segment_id or 0, row.status, ref))
        pending = {row.object for row in self.of(What.PENDING)}
        listed = {row.object: row for row in self.listed}
        return [
            Work(
                key,
                0,
                listed[key].length_bytes if key in listed else None,
                (listed[key].time_ms or 0) if key in listed else 0,
                container.object or "",
                newest,
                key in pending,
                tuple(named.get(key, ())),
            )
            for key in sorted({key for key in (*named, *listed) if key})
        ]

    async def verify(self) -> list[Row]:
        """Verify everything that was taken."""
        return [row for work in self.work() for row in await self.audit.verify(work)]


def findings(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.what is What.FINDING]


def statuses(rows: list[Row], what: What) -> set[str | None]:
    return {row.status for row in rows if row.what is what}


async def fill(owned: Owned, *, chunks_wanted: int = 5) -> Container:
    """Some chunks of one segment, a merged one, a truncated one, bytes in the snapshot's tail, and a deleted one."""
    rng = random.Random(chunks_wanted)
    container = await owned.open()
    for name in (A, B, SOURCE, "scope/gone/0.#epoch.0"):
        await container.create_segment(name)
    for _ in range(chunks_wanted):
        await container.append(A, [rng.randbytes(100 * KIB)])
        await container.append(B, [rng.randbytes(30 * KIB)])
        await container.flush_to_storage()
        await container.append("scope/gone/0.#epoch.0", [rng.randbytes(10 * KIB)])
        await container.flush_to_storage()
    await container.append(SOURCE, [rng.randbytes(70 * KIB)])
    await container.flush_to_storage()
    await container.merge(A, SOURCE)
    await container.truncate(B, 35 * KIB)
    await container.delete("scope/gone/0.#epoch.0")
    await container.append(A, [b"in the log alone"])
    await owned.snapshot()
    return container


@pytest.fixture
async def audited(owned: Owned) -> Audited:
    """A filled cluster, not yet audited."""
    await fill(owned)
    return Audited(owned)


async def test_all_bytes_are_verified_and_nothing_is_found(audited: Audited) -> None:
    await audited.take()
    rows = await audited.verify()
    assert findings(audited.inventory) == findings(rows) == []
    chunk_rows = [row for row in rows if row.what is What.CHUNK]
    assert {row.status for row in chunk_rows} == {Status.VERIFIED}
    assert all(row.verified_bytes == row.length_bytes for row in chunk_rows)
    ends: dict[str, list[tuple[int, int]]] = {}
    for row in chunk_rows:
        ends.setdefault(row.segment or "", []).append((row.offset or 0, row.length_bytes or 0))
    assert sum(length for _, length in ends[A]) == 570 * KIB + len(b"in the log alone")
    segments = {row.segment: row for row in audited.of(What.SEGMENT)}
    assert (segments[B].offset, segments[B].length_bytes) == (35 * KIB, 115 * KIB)
    assert statuses(rows, What.OBJECT) <= {Status.VERIFIED, Status.PENDING, Status.SNAPSHOT, Status.UNSETTLED}


async def replace(owned: Owned, key: str, data: bytes) -> None:
    await owned.store.delete([key])
    if data:
        await owned.store.put(key, [data])


def a_chunk(audited: Audited, segment: str = A) -> Row:
    """A reference to more than one block."""
    return next(
        row for row in audited.of(What.REFERENCE)
        if row.segment == segment and (row.length_bytes or 0) > chunks.BLOCK_BYTES
    )  # fmt: skip


async def test_a_flipped_byte_is_named(owned: Owned, audited: Audited) -> None:
    await audited.take()
    row = a_chunk(audited)
    assert row.object
    assert row.position is not None
    assert row.offset is not None
    data = bytearray(await owned.store.get(row.object))
    data[row.position + chunks.BLOCK_STRIDE + 5] ^= 8
    await replace(owned, row.object, bytes(data))
    rows = await audited.verify()
    (found,) = findings(rows)
    assert (found.status, found.segment, found.object) == (Status.DAMAGED, A, row.object)
    assert found.position == row.position + chunks.BLOCK_STRIDE
    assert found.offset == row.offset + chunks.BLOCK_BYTES
    assert found.reason == "block CRC32C does not match"
    (chunk,) = [each for each in rows if each.what is What.CHUNK and each.status == Status.DAMAGED]
    assert chunk.verified_bytes == chunks.BLOCK_BYTES


async def test_a_damaged_header_is_named(owned: Owned, audited: Audited) -> None:
    await audited.take()
    row = a_chunk(audited)
    assert row.object
    data = bytearray(await owned.store.get(row.object))
    data[10] ^= 8
    await replace(owned, row.object, bytes(data))
    (found,) = findings(await audited.verify())
    assert (found.status, found.object, found.position) == (Status.DAMAGED, row.object, 0)
    assert found.reason == "chunk header CRC32C does not match"


async def test_an_object_that_ends_early_is_named(owned: Owned, audited: Audited) -> None:
    await audited.take()
    row = a_chunk(audited)
    assert row.object
    assert row.position is not None
    assert row.offset is not None
    data = await owned.store.get(row.object)
    await replace(owned, row.object, data[: row.position + chunks.BLOCK_STRIDE + 100])
    await audited.take()
    found = [each for each in findings(await audited.verify()) if each.segment == A]
    assert [(each.object, each.offset) for each in found] == [(row.object, row.offset + chunks.BLOCK_BYTES)]
    assert "the object ends" in (found[0].reason or "")


@pytest.mark.parametrize("listed", [False, True])
async def test_a_missing_object_is_named(owned: Owned, audited: Audited, listed: bool) -> None:
    await audited.take()
    row = a_chunk(audited)
    assert row.object
    await owned.store.delete([row.object])
    if not listed:
        await audited.take()
    found = findings(await audited.verify())
    assert {each.status for each in found} == {Status.MISSING}
    assert (row.segment, row.offset, row.object) in [(each.segment, each.offset, each.object) for each in found]
    assert "the object does not exist" in (found[0].reason or "")


async def test_extra_objects_are_orphans_when_they_cannot_be_new(owned: Owned, audited: Audited) -> None:
    await audited.take()
    row = a_chunk(audited)
    assert row.object
    data = await owned.store.get(row.object)
    own = row.object[:-12] + "abcdefabcdef"
    await owned.open()  # a later owner, whose snapshot has all that the first one committed
    await owned.snapshot()
    for key in (own, "c0/notes.txt", "c7/" + row.object.partition("/")[2], "lost+found/x", own.replace("c0/", "x0/")):
        await owned.store.put(key, [data])
    new = own.replace("-00000001-", "-00000002-")
    assert new != own
    await owned.store.put(new, [data])
    await audited.take()
    rows = await audited.verify()
    orphans = {each.object for each in findings(rows)}
    assert orphans == {
        own,
        "c0/notes.txt",
        "c7/" + row.object.partition("/")[2],
        "lost+found/x",
        own.replace("c0", "x0"),
    }
    assert {each.status for each in findings(rows)} == {Status.ORPHAN}
    assert [each.status for each in rows if each.object == new] == [Status.UNSETTLED]


async def test_a_gap_of_references_is_named(owned: Owned, audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrace.segmentstore.tier2.snapshot import Snapshot

    await audited.take()
    tail = max((row for row in audited.of(What.REFERENCE) if row.segment == A), key=lambda row: row.offset or 0)
    decode = Snapshot.decode

    def lost(key: str, data: bytes) -> Snapshot:
        found = decode(key, data)
        return Snapshot(
            found.cluster_id, found.container, found.epoch, found.sequence, found.time_ms, found.body, ()
        )  # fmt: skip

    monkeypatch.setattr(Snapshot, "decode", lost)
    await audited.take()
    (found,) = findings(audited.inventory)
    assert (found.status, found.segment, found.offset) == (Status.GAP, A, tail.offset)
    assert found.length_bytes == len(b"in the log alone")


@pytest.mark.parametrize("which", ["newest", "older"])
async def test_a_damaged_snapshot_is_named(owned: Owned, audited: Audited, which: str) -> None:
    await owned.open()
    await owned.snapshot()
    await audited.take()
    keys = sorted(row.object or "" for row in audited.listed if (row.object or "").startswith("s0/"))
    key = keys[-1 if which == "newest" else 0]
    assert len(keys) > 1
    data = bytearray(await owned.store.get(key))
    data[60] ^= 1
    await replace(owned, key, bytes(data))
    await audited.take()
    (found,) = findings(audited.inventory)
    assert (found.status, found.object, found.reason) == (Status.DAMAGED, key, "snapshot CRC32C does not match")
    (container,) = audited.of(What.CONTAINER)
    assert (container.epoch is None) == (which == "newest")


async def test_without_a_snapshot_old_objects_are_verified_and_unaccounted(owned: Owned, audited: Audited) -> None:
    await audited.take()
    row = a_chunk(audited)
    assert row.object
    assert row.position is not None
    data = bytearray(await owned.store.get(row.object))
    data[row.position + 5] ^= 8
    await replace(owned, row.object, bytes(data))
    await owned.store.delete([each.object for each in audited.listed if each.object and each.object.startswith("s0/")])
    await audited.take()
    assert statuses(await audited.verify(), What.OBJECT) == {Status.UNSETTLED}
    later = ObjectAudit(audited.store, CLUSTER, CONTAINERS, SystemClock().now_ms() + limits.AUDIT_SETTLED_MS + 1)
    rows = [each for work in audited.work() for each in await later.verify(work)]
    assert statuses(rows, What.OBJECT) == {Status.UNACCOUNTED}
    (damage,) = [each for each in findings(rows) if each.status == Status.DAMAGED]
    assert (damage.object, damage.position, damage.segment) == (row.object, row.position, A)


# -- a cluster that works meanwhile -------------------------------------------------------------------------------


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are deleted, and small chunks compacted, as soon as the rules allow it."""
    for name in ("DELETE_DELAY_S", "COMPACT_TICK_S", "FLUSH_TICK_S"):
        monkeypatch.setattr(limits, name, 0.01)


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
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 0)  # not yet
    container = await owned.open()
    await container.create_segment(A)
    for number in range(130):
        await container.append(A, [bytes([number]) * 1000])
        await container.flush_to_storage()
    await owned.snapshot()
    audited = Audited(owned)
    await audited.take()
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
    monkeypatch.setattr(limits, "COMPACT_CREDIT_MAX_BYTES", 0)
    container = await owned.open()
    await container.create_segment(A)
    for number in range(130):
        await container.append(A, [bytes([number]) * 1000])
        await container.flush_to_storage()
    await owned.snapshot()
    audited = Audited(owned)
    await audited.take()
    await (container.truncate(A, 120_000) if change == "truncated" else container.delete(A))
    gone = 120 if change == "truncated" else 130
    await until_replaced(owned, container, audited, gone)
    rows = await audited.verify()
    assert findings(rows) == []
    found = [row for row in rows if row.what is What.CHUNK and row.status == Status.GONE]
    assert len(found) == gone
    kept = [row for row in rows if row.what is What.CHUNK and row.status == Status.VERIFIED]
    assert sum(row.verified_bytes or 0 for row in kept) == 1000 * (130 - gone)


async def test_objects_that_wait_for_deletion_are_no_orphans(owned: Owned, audited: Audited) -> None:
    await audited.take()
    assert audited.of(What.PENDING)
    rows = await audited.verify()
    there = {row.object for row in audited.listed}
    pending = {row.object for row in audited.of(What.PENDING)} & there
    named = {row.object for row in audited.of(What.REFERENCE)}
    assert {row.object for row in rows if row.status == Status.PENDING} == pending - named
    assert CHUNK in {row.status for row in audited.of(What.REFERENCE)}


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


async def test_a_store_that_does_not_answer_ends_the_task_and_is_no_damage(
    owned: Owned, audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(key: str, offset: int, length: int) -> bytes:
        raise UnavailableError(f"get {key}: no answer")

    await audited.take()
    monkeypatch.setattr(owned.store, "get_range", silent)
    with pytest.raises(UnavailableError, match="no answer"):
        await audited.verify()
