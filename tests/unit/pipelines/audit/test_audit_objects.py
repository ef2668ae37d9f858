"""The audit of a real container's Tier 2, without Spark: each kind of damage is named."""

from __future__ import annotations

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.common.real_ports import SystemClock
from tailrace.pipelines.audit.objects import ObjectAudit
from tailrace.pipelines.audit.rows import CHUNK, Status, What
from tailrace.storage import chunks

from ..conftest import CLUSTER, CONTAINERS, Owned
from .conftest import KIB, A, Audited, B, a_chunk, findings, replace, statuses


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
    rows = await later.verify(audited.work())
    assert statuses(rows, What.OBJECT) == {Status.UNACCOUNTED}
    (damage,) = [each for each in findings(rows) if each.status == Status.DAMAGED]
    assert (damage.object, damage.position, damage.segment) == (row.object, row.position, A)


async def test_objects_that_wait_for_deletion_are_no_orphans(owned: Owned, audited: Audited) -> None:
    await audited.take()
    assert audited.of(What.PENDING)
    rows = await audited.verify()
    there = {row.object for row in audited.listed}
    pending = {row.object for row in audited.of(What.PENDING)} & there
    named = {row.object for row in audited.of(What.REFERENCE)}
    assert {row.object for row in rows if row.status == Status.PENDING} == pending - named
    assert CHUNK in {row.status for row in audited.of(What.REFERENCE)}


async def test_a_store_that_does_not_answer_ends_the_task_and_is_no_damage(
    owned: Owned, audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(key: str, offset: int, length: int) -> bytes:
        raise UnavailableError(f"get {key}: no answer")

    await audited.take()
    monkeypatch.setattr(owned.store, "get_range", silent)
    with pytest.raises(UnavailableError, match="no answer"):
        await audited.verify()
