"""Objects in a local folder: rivals, partial files, how they become durable."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError, DeadlineError
from tailrace.storage import folder_objects
from tailrace.storage.folder_objects import FolderObjects
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectInfo


async def test_of_rivals_that_create_one_object_one_wins(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    for number in range(20):
        key = f"a/b{number}"
        contents = [str(rival).encode() * 1000 for rival in range(8)]
        puts = [store.put(key, [content], if_absent=True) for content in contents]
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        winners = [content for content, outcome in zip(contents, outcomes, strict=True) if outcome is None]
        assert winners == [await store.get(key)]
        assert sum(isinstance(outcome, AlreadyExistsError) for outcome in outcomes) == 7
    assert len(list(tmp_path.rglob("*"))) == 21, "nothing else is left"  # noqa: ASYNC240 - a test


async def test_rivals_that_overwrite_leave_one_whole_object(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    contents = [str(rival).encode() * 200_000 for rival in range(8)]
    for _ in range(5):
        await asyncio.gather(*(store.put("a", [content]) for content in contents))
        assert await store.get("a") in contents


async def test_buffers_may_change_once_a_put_has_ended_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes goes on after the deadline."""
    store = FolderObjects(tmp_path)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as threads:
        loop.set_default_executor(threads)
        disk_is_slow = threading.Event()
        original = store._put_synced

        def put_late(*arguments: Any) -> None:
            disk_is_slow.wait()
            original(*arguments)

        monkeypatch.setattr(store, "_put_synced", put_late)
        buffer = bytearray(b"first")
        with monkeypatch.context() as shorter:
            shorter.setattr(limits, "STORAGE_CALL_DEADLINE_S", 0.01)
            with pytest.raises(DeadlineError):
                await store.put("a", [memoryview(buffer)])
        buffer[:] = b"other"
        disk_is_slow.set()
        await loop.run_in_executor(None, bool)  # behind the put
        assert await store.get("a") == b"first"


async def test_partial_files_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PowerCut(BaseException):
        """What no handler catches."""

    def link(source: Path, target: Path) -> None:
        listed.append(source.name)
        raise PowerCut

    listed: list[str] = []
    store = FolderObjects(tmp_path)
    await store.put("a/whole", [b"x"])
    monkeypatch.setattr(Path, "replace", link)
    monkeypatch.setattr(folder_objects.os, "fsync", lambda descriptor: None)
    with pytest.raises(PowerCut):
        await store.put("a/cut", [b"y"])
    assert [path.name for path in (tmp_path / "a").iterdir() if path.name != "whole"] == listed
    assert [info.key async for info in store.list("a")] == ["a/whole"]


def make_old(*folders: Path) -> None:
    """Let the last change of folders be long past."""
    for folder in folders:
        os.utime(folder, (1e9, 1e9))


async def test_the_way_to_an_object_is_synced_whichever_process_made_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync_folder = folder_objects.sync_folder

    def noted(folder: Path) -> None:
        sync_folder(folder)
        synced.append(folder)

    monkeypatch.setattr(folder_objects, "sync_folder", noted)
    store = FolderObjects(tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)  # by a rival that has not synced anything yet
    make_old(tmp_path, tmp_path / "a")
    await store.put("a/b/one", [b"1"])
    assert set(synced) == {tmp_path / "a/b", tmp_path / "a", tmp_path}
    synced.clear()
    await store.put("a/b/two", [b"2"])
    assert synced == [tmp_path / "a/b"]


async def test_only_the_servers_user_reads_objects_and_their_folders(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = open_object_store(f"file://{tmp_path}/new/tier2")
        await store.put("a/b/c", [b"content"])
        await store.put("a/b/d", [b"content"], if_absent=True)
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}  # noqa: ASYNC240 - a test
    folders, files = ("new", "new/tier2", "new/tier2/a", "new/tier2/a/b"), ("new/tier2/a/b/c", "new/tier2/a/b/d")
    assert modes == dict.fromkeys(folders, 0o700) | dict.fromkeys(files, 0o600)


async def test_a_list_says_when_objects_were_written(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    await store.put("a/whole", [b"x"])
    (tmp_path / "a" / "begun#7000000001").write_bytes(b"xy")
    for path in (tmp_path / "a" / "whole", tmp_path / "a" / "begun#7000000001"):
        os.utime(path, ns=(0, 1_700_000_000_123_000_000))
    (listed,) = [info async for info in store.list("")]
    (begun,) = store.unfinished()
    assert (listed.key, listed.length_bytes, listed.modified_ms) == ("a/whole", 1, 1_700_000_000_123)
    assert (begun.key, begun.length_bytes, begun.modified_ms) == ("a/begun#7000000001", 2, 1_700_000_000_123)
    assert listed == ObjectInfo("a/whole", 1), "the time makes no other object of it"
