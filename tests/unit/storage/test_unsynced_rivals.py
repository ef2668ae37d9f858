"""Objects in a folder that are not durable yet, beside deletions, sweeps of parts, and processes with the same id."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from harness.folderdisk import WAIT_S, FolderDisk
from tailrace.common import limits
from tailrace.common.errors import NotFoundError, UnavailableError
from tailrace.storage import folder_files
from tailrace.storage.folder_objects import FolderObjects


async def put_unsynced(disk: FolderDisk, store: FolderObjects, *keys: str) -> None:
    """Put objects whose folder is not synced; the next syncs work."""
    for key in keys:
        disk.fail(os.path.dirname(key))
        with pytest.raises(UnavailableError):
            await store.put(key, [b"xyz"])
    disk.fail()


async def test_an_object_whose_copy_vanishes_is_not_missing(
    disk: FolderDisk, store: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_unsynced(disk, store, "a/b")
    replace = Path.replace

    def vanished(part: Path, path: Path) -> Path:
        part.unlink()
        return replace(part, path)

    with monkeypatch.context() as swept:
        swept.setattr(Path, "replace", vanished)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="its copy was deleted"):
                await store.get("a/b")
    assert await store.get("a/b") == b"xyz"
    assert disk.survives("a/b")


@pytest.mark.parametrize("what", ["put", "put if absent", "copy"])
async def test_no_sweep_takes_a_part_before_it_is_the_object(
    disk: FolderDisk, store: FolderObjects, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "copy":
        await put_unsynced(disk, store, "a/b")
    replace, link, swept = Path.replace, os.link, []

    def sweep(part: Path) -> None:
        swept.append(part)
        folder_files.remove_unlocked(part)

    def late_replace(part: Path, path: Path) -> Path:
        sweep(part)
        return replace(part, path)

    def late_link(part: Path, path: Path) -> None:
        sweep(part)
        link(part, path)

    monkeypatch.setattr(Path, "replace", late_replace)
    monkeypatch.setattr(os, "link", late_link)
    if what != "copy":
        await store.put("a/b", [b"xyz"], if_absent=what == "put if absent")
    assert await store.get("a/b") == b"xyz"
    assert len(swept) == 1
    assert [path.name for path in (disk.root / "a").iterdir()] == ["b"]


async def test_a_part_of_another_process_with_the_same_id_stays(disk: FolderDisk, store: FolderObjects) -> None:
    """Processes in containers have low ids, often 1, and may share a folder."""
    rival = FolderObjects(disk.root)
    part = disk.root / f"a#{os.getpid()}{1:09d}"
    part.write_bytes(b"theirs")
    for each, if_absent in ((store, True), (rival, False)):
        await each.put("a", [b"xyz"], if_absent=if_absent)
        assert await each.get("a") == b"xyz"
        assert part.read_bytes() == b"theirs"


@pytest.mark.usefixtures("threads")
async def test_a_deletion_during_a_read_is_not_undone(
    disk: FolderDisk, store: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_unsynced(disk, store, "a/b", "a/other")
    copying, go_on, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        copying.set()
        assert go_on.wait(WAIT_S)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    reading = asyncio.ensure_future(store.get("a/b"))
    assert await asyncio.to_thread(copying.wait, WAIT_S)
    deleting = asyncio.ensure_future(store.delete(["a/b"]))
    async with asyncio.timeout(WAIT_S):
        while store._unsynced._keys["a/b"]._users < 2 and not deleting.done():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
    go_on.set()
    await asyncio.gather(reading, deleting)
    with pytest.raises(NotFoundError):
        await store.get("a/b")
    assert not (disk.root / "a/b").exists()
    assert "a/b" not in store._unsynced


async def test_a_key_is_forgotten_with_its_object(disk: FolderDisk, store: FolderObjects) -> None:
    await put_unsynced(disk, store, "a/b")
    await store.delete(["a/b"])
    assert len(store._unsynced) == 0


@pytest.mark.parametrize("folder", ["a/b", "a/b/", "a", ""])
async def test_deletions_become_durable_on_request(disk: FolderDisk, store: FolderObjects, folder: str) -> None:
    """Also those that took the folder with them."""
    await store.put("a/b/c", [b"xyz"])
    await store.delete(["a/b/c"])
    assert not (disk.root / "a").exists()
    assert disk.brings_back("a/b/c")
    disk.fail("")
    with pytest.raises(UnavailableError, match="Input/output error"):
        await store.make_durable(folder)
    assert disk.brings_back("a/b/c")
    disk.fail()
    await store.make_durable(folder)
    assert not disk.brings_back("a/b/c")


async def test_nothing_becomes_durable_in_a_store_that_has_vanished(disk: FolderDisk, store: FolderObjects) -> None:
    disk.root.rmdir()
    with pytest.raises(UnavailableError, match=f"the folder {disk.root} does not exist"):
        await store.make_durable("a")


@pytest.mark.usefixtures("threads")
async def test_a_read_gives_up_before_its_deadline_while_a_sync_does_not_end(
    disk: FolderDisk, store: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORAGE_UNSYNCED_READ_S", 0.01)
    disk.hold()
    putting = asyncio.ensure_future(store.put("a/b", [b"xyz"]))
    await asyncio.to_thread(disk.wait_until_held)
    for read in (store.get("a/b"), store.get_range("a/b", 0, 1)):
        with pytest.raises(UnavailableError, match="an earlier put has not ended"):
            await read
    disk.release()
    await putting


async def test_an_object_that_another_process_deleted_is_missing(disk: FolderDisk, store: FolderObjects) -> None:
    await put_unsynced(disk, store, "a/b", "a/c")
    confirm, left = store._confirm, [disk.root / "a/b", disk.root / "a/c"]

    def late(key: str, wait_s: float | None = None) -> None:
        left.pop(left.index(disk.root / key)).unlink()
        confirm(key, wait_s)

    store._confirm = late  # type: ignore[method-assign]
    with pytest.raises(NotFoundError):
        await store.get("a/b")
    assert [info.key async for info in store.list("a")] == []
    assert not left
    assert len(store._unsynced) == 0


async def test_a_put_that_made_nothing_visible_leaves_no_key(
    store: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(part: Path, path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "link", gone)
    with pytest.raises(UnavailableError, match="its folder was removed"):
        await store.put("a/b", [b"xyz"], if_absent=True)
    assert len(store._unsynced) == 0
