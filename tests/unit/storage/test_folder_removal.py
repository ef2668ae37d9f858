"""A folder goes with its last object, and comes back durably: also while others put into it (docs/design.md#tier-2)."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError, UnavailableError
from tailrace.storage import folder_files, folder_objects
from tailrace.storage.folder_objects import FolderObjects


def folders(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir())


class Syncs:
    """Watches which folders are made, and whether their entries were synced since."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._made: dict[Path, int] = {}
        self._durable: dict[Path, int] = {}
        self.synced: list[Path] = []
        mkdir, sync_folder = Path.mkdir, folder_objects.sync_folder

        def made(folder: Path, *arguments: Any, **options: Any) -> None:
            with self._lock:
                mkdir(folder, *arguments, **options)
                self._made[folder] = next(self._numbers)

        def synced(folder: Path) -> None:
            with self._lock:
                covered = {each: number for each, number in self._made.items() if each.parent == folder}
            sync_folder(folder)
            with self._lock:
                self.synced.append(folder)
                for each, number in covered.items():
                    self._durable[each] = max(number, self._durable.get(each, 0))

        monkeypatch.setattr(Path, "mkdir", made)
        monkeypatch.setattr(folder_objects, "sync_folder", synced)

    def covers(self, folder: Path) -> bool:
        """Whether a power cut leaves the folder, as it was made the last time."""
        with self._lock:
            return self._durable.get(folder, 0) == self._made[folder]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


async def test_folders_go_with_their_last_object(tmp_path: Path) -> None:
    root = tmp_path / "tier2"
    root.mkdir()
    store = FolderObjects(root)
    for number in range(50):
        await store.put(f"0/{number}/a", [b"x"])
        await store.put(f"0/{number}/b", [b"x"])
    assert len(folders(root)) == 51
    await store.delete([f"0/{number}/a" for number in range(50)])
    assert len(folders(root)) == 51
    await store.delete([f"0/{number}/b" for number in range(49)])
    assert folders(root) == ["0", "0/49"]
    assert len(store._synced_ns) <= 2, "it remembers no segment"
    await store.delete(["0/49/b", "0/49/b", "1/1/never-there"])
    assert folders(root) == []
    assert root.is_dir()
    await store.put("c", [b"x"])
    await store.delete(["c"])
    assert root.is_dir()


async def test_folders_go_with_their_last_part(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    (tmp_path / "0/1").mkdir(parents=True)
    (tmp_path / "0/1/key#1").touch()
    assert [info.key for info in await store.list_parts("0", 10)] == ["0/1/key#1"]
    await store.delete_parts(["0/1/key#1"])
    assert folders(tmp_path) == []


async def test_a_folder_that_comes_back_is_synced_again(tmp_path: Path, syncs: Syncs) -> None:
    store = FolderObjects(tmp_path)
    for _ in range(3):
        await store.put("0/1/a", [b"x"])
        assert syncs.covers(tmp_path / "0")
        assert syncs.covers(tmp_path / "0/1")
        await store.delete(["0/1/a"])


async def test_a_folder_that_another_process_made_again_is_synced_again(tmp_path: Path, syncs: Syncs) -> None:
    ours = FolderObjects(tmp_path)
    await ours.put("0/1/a", [b"x"])
    await ours.put("0/2/a", [b"x"])
    for folder in (tmp_path, tmp_path / "0"):
        os.utime(folder, (1e9, 1e9))
    await ours.put("0/1/b", [b"x"])  # remembers what is durable
    syncs.synced.clear()
    await ours.put("0/1/c", [b"x"])
    assert syncs.synced == [tmp_path / "0/1"]
    await FolderObjects(tmp_path).delete(["0/1/a", "0/1/b", "0/1/c"])
    (tmp_path / "0/1").mkdir()  # by a process that is killed before it syncs
    assert not syncs.covers(tmp_path / "0/1")
    await ours.put("0/1/d", [b"x"])
    assert syncs.covers(tmp_path / "0/1")


async def test_changes_within_one_tick_of_the_clock_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: Syncs
) -> None:
    """File systems have clocks that tick rarely: a folder made again may leave its parent's time the same."""
    sync_folder = folder_objects.sync_folder

    def synced(folder: Path) -> None:
        sync_folder(folder)
        for each in (tmp_path, tmp_path / "0", tmp_path / "0/1"):
            os.utime(each, (1e9, 1e9))

    monkeypatch.setattr(folder_objects, "sync_folder", synced)
    store = FolderObjects(tmp_path)
    for _ in range(3):
        await store.put("0/1/a", [b"x"])
        assert syncs.covers(tmp_path / "0/1")
        (tmp_path / "0/1/a").unlink()
        (tmp_path / "0/1").rmdir()
        (tmp_path / "0/1").mkdir()  # by a process that is killed before it syncs


@pytest.mark.parametrize("if_absent", [False, True])
@pytest.mark.parametrize("gone", ["0/1", "0"])
async def test_a_folder_that_goes_before_the_object_comes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: Syncs, if_absent: bool, gone: str
) -> None:
    make_private = folder_objects.make_private
    removals = 3

    def made_and_removed(folder: Path) -> None:
        nonlocal removals
        make_private(folder)
        if folder == tmp_path / gone and removals:
            removals -= 1
            folder.rmdir()  # by another process, which deleted the last object

    for module in (folder_files, folder_objects):
        monkeypatch.setattr(module, "make_private", made_and_removed)
    store = FolderObjects(tmp_path)
    await store.put("0/1/a", [b"x"], if_absent=if_absent)
    assert removals == 0
    assert await store.get("0/1/a") == b"x"
    assert syncs.covers(tmp_path / "0/1")
    assert syncs.covers(tmp_path / "0")


async def test_a_put_gives_up_when_its_folder_never_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_objects, "make_private", lambda folder: None)
    with pytest.raises(UnavailableError, match=f"its folder was removed {limits.STORAGE_FOLDER_ATTEMPTS} times"):
        await FolderObjects(tmp_path).put("0/1/a", [b"x"])


async def test_a_put_is_not_acknowledged_when_its_folder_went_before_it_was_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = FolderObjects(tmp_path), FolderObjects(tmp_path)
    sync_folder = folder_objects.sync_folder

    def deleted(folder: Path) -> None:
        other._remove("0/1/a")
        sync_folder(folder)

    monkeypatch.setattr(folder_objects, "sync_folder", deleted)
    with pytest.raises(UnavailableError, match="put 0/1/a: the object was deleted before it was durable"):
        await store.put("0/1/a", [b"x"])


async def test_a_file_in_place_of_a_folder_is_no_object(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    await store.put("0", [b"x"])
    with pytest.raises(UnavailableError):
        await store.put("0/1", [b"x"], if_absent=True)
    with pytest.raises(AlreadyExistsError):
        await store.put("0", [b"x"], if_absent=True)


async def test_puts_and_deletions_of_two_processes_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: Syncs
) -> None:
    """What is acknowledged is there, and a power cut would leave its folders; what lists meanwhile sees no error."""
    monkeypatch.setattr(folder_objects.os, "fsync", lambda descriptor: None)  # many rounds
    stores = [FolderObjects(tmp_path) for _ in range(2)]
    ended = threading.Event()

    def use(store: FolderObjects, number: int) -> None:
        for turn in range(300):
            key = f"0/1/{number}-{turn}"
            store._put_synced(key, b"x", turn % 2 == 0)
            assert syncs.covers(tmp_path / "0/1")
            assert syncs.covers(tmp_path / "0")
            assert (tmp_path / key).read_bytes() == b"x"
            store._remove(key)

    def look() -> int:
        looks = 0
        while not ended.is_set():
            assert stores[0]._parts("", 10) is not None
            assert list(stores[1].unfinished()) is not None
            looks += 1
        return looks

    async def listed() -> int:
        lists = 0
        while not ended.is_set():
            async for info in stores[0].list(""):
                assert info.key.startswith("0/1/")
            lists += 1
        return lists

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(7) as threads:
        looking, listing = loop.run_in_executor(threads, look), asyncio.ensure_future(listed())
        users = [loop.run_in_executor(threads, use, stores[number % 2], number) for number in range(6)]
        try:
            await asyncio.gather(*users)
        finally:
            ended.set()
        assert await looking > 0
        assert await listing > 0
    assert folders(tmp_path) == []
