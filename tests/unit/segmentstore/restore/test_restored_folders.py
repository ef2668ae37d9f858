"""Restore: a data folder from Tier 2 alone, without what is lost, and with nothing that never was."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harness.folderservice import served_folder
from tailrace.cluster import segment_mapping
from tailrace.cluster.data_folder import last_epoch, opened_epoch, read_data_folder
from tailrace.common import limits
from tailrace.common.errors import CorruptionError, DataLossError, StartError, UnavailableError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.restore import cluster as restore_module
from tailrace.segmentstore.restore.cluster import restore_cluster
from tailrace.segmentstore.restore.report import RestoredContainer, RestoreReport
from tailrace.segmentstore.tables.types import TableEntry
from tailrace.segmentstore.tier2.chunk_objects import writer_of_key
from tailrace.segmentstore.tier2.snapshot import SnapshotName, parse_key
from tailrace.segmentstore.tier2.snapshot import folder as snapshots_of
from tailrace.segmentstore.worker.worker import Worker
from tailrace.storage.chunks import FOOTER_BYTES
from tailrace.storage.folder_objects import FolderObjects
from tailrace.storage.port import ObjectStore, make_durable

A, B, TABLE = "scope/a/0.#epoch.0", "scope/b/0.#epoch.0", "scope/_tables/t"
WRITER = b"w" * 16
Work = Callable[[Worker], Awaitable[None]]


class Place:
    """A data folder whose Tier 2 is beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.tier2 = folder / "tier2"
        self.url = f"file://{self.tier2}"

    async def serve(self, work: Work, *, data: Path | None = None, killed: bool = False) -> None:
        """Open it, do something with its containers, and close it; `killed`: its last snapshots are lost."""
        async with served_folder(data or self.data, 2, tier2=self.url) as worker:
            await work(worker)
            before = set(self.tier2.rglob("*"))
        if killed:
            for path in set(self.tier2.rglob("*")) - before:
                if path.is_file():
                    path.unlink()

    async def restore(self, *, dry_run: bool = False) -> RestoreReport:
        """Lose the folder, and restore it."""
        shutil.rmtree(self.data, ignore_errors=True)
        progress: list[tuple[int, int]] = []
        report = await restore_cluster(
            self.data,
            tier2=self.url,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            progress=lambda done, total: progress.append((done, total)),
            dry_run=dry_run,
        )
        assert progress
        assert all(0 <= done <= total for done, total in progress)
        assert progress[-1][0] == progress[-1][1]
        return report

    def keys(self, prefix: str = "") -> list[str]:
        """Keys of all objects."""
        paths = (path for path in self.tier2.rglob("*") if path.is_file() and "#" not in path.name)
        return sorted(key for path in paths if (key := str(path.relative_to(self.tier2))).startswith(prefix))

    def objects(self) -> dict[str, bytes]:
        """All objects."""
        found = self.keys()
        return {key: (self.tier2 / key).read_bytes() for key in found}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(limits, "RESTORE_WATCH_S", 0.01)
    return Place(tmp_path)


def replace(value: int) -> tuple[AttributeUpdate, ...]:
    return (AttributeUpdate(WRITER, AttributeUpdateType.REPLACE, value),)


async def whole(worker: Worker, name: str) -> bytes:
    container = worker.container_for(name)
    return await container.read_exact(name, 0, (await container.info(name)).length)


async def fill(worker: Worker) -> None:
    for name in (A, B):
        container = worker.container_for(name)
        await container.create_segment(name)
        await container.append(name, [name.encode() * 1000], replace(1))
    container = worker.container_for(TABLE)
    tables = worker.table_service(container)
    await tables.create_table(TABLE, 0)
    for number in range(20):
        await tables.update(TABLE, [TableEntry(b"key %d" % number, b"value %d" % number)])


async def flush(worker: Worker) -> None:
    for container in worker.containers():
        await container.flush_to_storage()


async def check(worker: Worker) -> None:
    for name in (A, B):
        assert await whole(worker, name) == name.encode() * 1000
        assert (await worker.container_for(name).get_attributes(name, [WRITER]))[WRITER] == 1
    tables = worker.table_service(worker.container_for(TABLE))
    keys = [b"key %d" % number for number in range(20)]
    assert [entry.value for entry in await tables.get(TABLE, keys) if entry] == [b"value %d" % n for n in range(20)]


def container_of(report: RestoreReport, name: str) -> RestoredContainer:
    (found,) = (item for item in report.containers if any(segment.name == name for segment in item.segments))
    return found


async def test_everything_of_a_closed_server_is_there(place: Place) -> None:
    await place.serve(fill)
    report = await place.restore()
    assert report.whole
    assert {item.source for item in report.containers} == {"snapshot"}
    (segment,) = (segment for segment in container_of(report, A).segments if segment.name == A)
    assert (segment.start_offset, segment.length, segment.sealed) == (0, len(A) * 1000, False)
    await place.serve(check)

    async def go_on(worker: Worker) -> None:
        await check(worker)
        container = worker.container_for(A)
        await container.append(A, [b"more"], replace(2))
        await container.flush_to_storage()
        assert (await whole(worker, A)).endswith(b"more")

    await place.serve(go_on)
    report = await place.restore()  # and once more
    assert container_of(report, A).segments[0].name
    assert {segment.name: segment.length for segment in container_of(report, A).segments}[A] == len(A) * 1000 + 4


async def test_what_came_after_the_newest_snapshot_is_missing_and_reported(place: Place) -> None:
    later = "scope/later/0.#epoch.0"

    async def work(worker: Worker) -> None:
        await fill(worker)
        await flush(worker)
        container = worker.container_for(A)
        await container.append(A, [b"lost"], replace(2))
        other = worker.container_for(later)
        await other.create_segment(later)
        await other.append(later, [b"lost too"])

    await place.serve(work, killed=True)
    report = await place.restore()
    assert all(f"container {item}: data acknowledged after operation" in " ".join(report.warnings()) for item in (0, 1))

    async def after(worker: Worker) -> None:
        await check(worker)
        assert later not in worker.container_for(later).state.by_name

    await place.serve(after)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_dry_run_reports_the_same_and_writes_nothing(place: Place, killed: bool) -> None:
    async def work(worker: Worker) -> None:
        await fill(worker)
        await flush(worker)
        await worker.container_for(A).append(A, [b"more"], replace(2))

    await place.serve(work, killed=killed)
    before = place.objects()
    dry = await place.restore(dry_run=True)
    assert not place.data.exists()
    assert place.objects() == before
    real = await place.restore()
    assert dry.as_json() == {**real.as_json(), "dry_run": True}
    assert len(real.containers) > 1
    assert place.objects() != before, "a restore stores snapshots"


async def test_numbers_and_epochs_of_the_lost_owner_are_never_used_again(place: Place) -> None:
    """Objects that it flushed after the snapshot name segments that the restored container does not know."""
    seen: dict[str, int] = {}
    later = "scope/later/0.#epoch.0"

    async def work(worker: Worker) -> None:
        await fill(worker)
        await flush(worker)
        container = worker.container_for(later)
        await container.create_segment(later)
        await container.append(later, [b"flushed after the snapshot"])
        await container.background.writer.flush_all(container.core.log.next_sequence - 1)
        seen["segment"] = container.state.by_name[later].segment_id
        seen["container"] = container.container_id

    for _ in range(2):
        await place.serve(fill if not place.data.exists() else _nothing)
    shutil.rmtree(place.data)
    shutil.rmtree(place.tier2)
    await place.serve(work, killed=True)
    report = await place.restore()
    restored = report.containers[seen["container"]]
    assert restored.newer_objects == 1
    assert restored.newer_bytes > 0
    assert any("1 objects" in line for line in report.warnings())
    epochs = [writer[1] for key in place.keys("c") if (writer := writer_of_key(key))]
    assert restored.epoch > max(epochs)
    assert last_epoch(place.data, seen["container"]) == opened_epoch(place.data, seen["container"]) == restored.epoch

    async def after(worker: Worker) -> None:
        container = worker.container_for(later)
        assert container.epoch > restored.epoch
        await container.create_segment(later)
        assert container.state.by_name[later].segment_id > seen["segment"]
        assert (await container.info(later)).length == 0

    await place.serve(after)


async def _nothing(_: Worker) -> None:
    return


async def test_an_old_server_that_still_lives_stops(place: Place, tmp_path: Path) -> None:
    """Its folder was thought lost. Whatever it acknowledges from now on is in no restored container, so it must not."""
    await place.serve(fill)
    shutil.copytree(place.data, tmp_path / "old")
    await place.restore()

    async def old(worker: Worker) -> None:
        states = worker.status()
        assert [status.state for status in states] == ["stopped", "stopped"]
        assert all("restored elsewhere" in status.reason for status in states)

    await place.serve(old, data=tmp_path / "old")
    await place.serve(check)


async def test_an_old_epoch_that_comes_late_does_not_make_restore_go_back(place: Place) -> None:
    await place.serve(fill)
    await place.serve(lambda worker: worker.container_for(A).append(A, [b"second epoch"]))  # type: ignore[arg-type,return-value]
    names = sorted((parsed[1], key) for key in place.keys("s") if (parsed := parse_key(key)))
    late = min(names)[1]
    content = (place.tier2 / late).read_bytes()
    (place.tier2 / late).unlink()
    await asyncio.sleep(0.01)
    (place.tier2 / late).write_bytes(content)  # by its time the newest one
    report = await place.restore()
    assert {segment.name: segment.length for segment in container_of(report, A).segments}[A] == len(A) * 1000 + 12


async def test_a_folder_that_is_not_empty_is_refused(place: Place) -> None:
    await place.serve(fill)
    before = place.keys()
    with pytest.raises(StartError, match="is not empty"):
        await restore_cluster(
            place.data, tier2=place.url, clock=SystemClock(), entropy=SystemEntropy(), progress=lambda *_: None
        )
    assert place.keys() == before
    await place.serve(check)


async def test_a_store_without_a_cluster_is_refused(place: Place) -> None:
    await place.serve(fill)
    (place.tier2 / "cluster.json").unlink()
    with pytest.raises(StartError, match=r"no cluster\.json"):
        await place.restore()
    assert not place.data.exists()


async def test_a_store_that_another_process_writes_to_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.serve(fill)
    write_log = restore_module.write_log

    async def meanwhile(*arguments: object) -> None:
        await write_log(*arguments)  # type: ignore[arg-type]
        (place.tier2 / "c0" / "x").parent.mkdir(exist_ok=True)
        (place.tier2 / "c0" / "x").write_bytes(b"an object")

    monkeypatch.setattr(restore_module, "write_log", meanwhile)
    with pytest.raises(StartError, match="Tier 2 is in use: objects of container 0"):
        await place.restore()
    assert not place.data.exists()


@pytest.mark.parametrize("sync_fails", [False, True])
async def test_a_snapshot_that_an_owner_stores_meanwhile_makes_a_restore_take_itself_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, sync_fails: bool
) -> None:
    """From then on that owner may delete what only older snapshots need, the one that was restored among them."""
    await place.serve(fill)
    before = place.keys("s")
    stored: list[str] = []
    store_snapshot = restore_module.store_snapshot

    async def meanwhile(store: ObjectStore, cluster_id: bytes, state: ContainerState, *others: Any) -> None:
        await store_snapshot(store, cluster_id, state, *others)
        if not stored:
            late = SnapshotName(2, 2**20, "0a0b0c").key(state.container_id)
            await store.put(late, [b"not read"])
            stored.append(late)

    async def synced(store: ObjectStore, folder: str) -> None:
        assert place.keys("s") == sorted([*before, *stored])
        durable.append(folder)
        if sync_fails:
            raise UnavailableError("Input/output error")
        await make_durable(store, folder)

    durable: list[str] = []
    monkeypatch.setattr(restore_module, "store_snapshot", meanwhile)
    monkeypatch.setattr(restore_module, "make_durable", synced)
    with pytest.raises(StartError, match=r"Tier 2 is in use: container [01] got snapshot") as raised:
        await place.restore()
    assert not place.data.exists()
    assert place.keys("s") == sorted([*before, *stored])
    assert durable == [snapshots_of(number) for number in range(1 if sync_fails else 2)]
    notes = ["A power cut may bring back the snapshots of this restore: Input/output error"]
    assert getattr(raised.value, "__notes__", []) == (notes if sync_fails else [])


@pytest.mark.parametrize("fault", ["no answer to the second", "cancelled", "manifest", "no deletions"])
async def test_a_restore_that_fails_at_its_end_takes_its_snapshots_back(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The old folder may still be there: its server would stop at a newer snapshot, for good."""
    await place.serve(fill)
    shutil.copytree(place.data, tmp_path / "old")
    before = place.keys("s")
    store_snapshot = restore_module.store_snapshot
    calls = 0

    async def stored(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        await store_snapshot(*arguments)
        if calls == 2 and fault == "cancelled":
            raise asyncio.CancelledError
        if calls == 2 and fault != "manifest":
            raise UnavailableError("no answer to the put")  # it was carried out

    def refuse(*_: object) -> None:
        raise StartError("data folder is not writable: No space left on device")

    async def keep(*_: object) -> None:
        raise UnavailableError("no answer to the delete")

    with monkeypatch.context() as patch:
        patch.setattr(restore_module, "store_snapshot", stored)
        if fault == "manifest":
            patch.setattr(restore_module, "write_manifest", refuse)
        if fault == "no deletions":
            patch.setattr(FolderObjects, "delete", keep)
        expected = {"cancelled": asyncio.CancelledError, "manifest": StartError}.get(fault, UnavailableError)
        with pytest.raises(expected) as raised:
            await place.restore()
    assert calls == 2
    assert not place.data.exists()
    left = sorted(set(place.keys("s")) - set(before))
    if fault == "no deletions":
        assert len(left) == 2
        (note,) = raised.value.__notes__
        assert note == f"Delete the snapshots of this restore, {left[0]}, {left[1]}: no answer to the delete"
        return
    assert left == []
    assert not hasattr(raised.value, "__notes__")
    await place.serve(check, data=tmp_path / "old")


@pytest.mark.parametrize("what", ["damaged", "gone", "object gone", "object cut off", "another cluster"])
async def test_what_cannot_be_proved_is_refused_by_name(place: Place, tmp_path: Path, what: str) -> None:
    await place.serve(fill)
    number = segment_mapping.container_of(A, 2)
    newest = max((parsed[1], key) for key in place.keys(f"s{number}/") if (parsed := parse_key(key)))[1]
    error: type[Exception] = CorruptionError
    words = newest
    if what == "damaged":
        content = bytearray((place.tier2 / newest).read_bytes())
        content[80] ^= 1
        (place.tier2 / newest).write_bytes(content)
    elif what == "gone":
        for key in place.keys(f"s{number}/"):
            (place.tier2 / key).unlink()
        error, words = DataLossError, f"container {number}: Tier 2 holds .* objects of it and no snapshot"
    elif what == "object gone":
        for key in place.keys(f"c{number}/"):
            (place.tier2 / key).unlink()
        error, words = DataLossError, f"names object c{number}/.*, which does not exist"
    elif what == "object cut off":
        for key in place.keys(f"c{number}/"):
            whole_object = (place.tier2 / key).read_bytes()
            (place.tier2 / key).write_bytes(whole_object[: -FOOTER_BYTES - 1])  # with the last byte of the section
        error, words = DataLossError, f"names object c{number}/.*, which ends 1 bytes early"
    else:
        other = Place(tmp_path / "other")
        await other.serve(fill)
        key = max((parsed[1], key) for key in other.keys(f"s{number}/") if (parsed := parse_key(key)))[1]
        greater = key.replace("/0", "/1")
        shutil.copy(other.tier2 / key, place.tier2 / greater)
        words = greater
    with pytest.raises(error, match=words):
        await place.restore()
    assert not place.data.exists()


def fail_in(folder: Path) -> None:
    """Begin a restore into a folder, and fail."""
    with restore_module._new_folder(folder):
        (folder / "log" / "0").mkdir(parents=True)
        (folder / "log" / "0" / "frames").write_bytes(b"x")
        (folder / "epoch").write_bytes(b"x")
        raise StartError("the reason")


def test_a_failed_restore_into_a_link_leaves_the_folder_empty_and_says_why(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir(mode=0o750)
    before = target.stat()
    link.symlink_to(target)
    with pytest.raises(StartError, match="the reason") as raised:
        fail_in(link)
    assert not hasattr(raised.value, "__notes__")
    assert link.is_symlink()
    assert (target.stat().st_ino, target.stat().st_mode) == (before.st_ino, before.st_mode), "it may be a mount point"
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("exists", [True, False])
def test_what_cannot_be_cleaned_up_is_a_note_of_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    folder = tmp_path / "folder"
    if exists:
        folder.mkdir()
    monkeypatch.setattr(restore_module.shutil, "rmtree", refuse)
    with pytest.raises(StartError, match="the reason") as raised:
        fail_in(folder)
    (note,) = raised.value.__notes__
    assert note.startswith(f"{folder} could not be cleaned up: ")
    assert note.count("Device or resource busy") == 1


async def test_a_container_that_never_stored_anything_begins_empty(place: Place) -> None:
    await place.serve(_nothing)
    shutil.rmtree(place.tier2 / "s0")
    report = await place.restore()
    assert report.containers[0].source == "nothing"
    await place.serve(fill)
    folder = read_data_folder(place.data)
    assert folder.manifest.tier2 == place.url
    folder.close()
