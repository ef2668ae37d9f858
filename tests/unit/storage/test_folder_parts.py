"""What uploads to a folder leave behind that were cut off: deleted only when no process writes it."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import threading
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import BinaryIO

import pytest

from tailrace.storage import folder_files, folder_objects
from tailrace.storage.folder_objects import FolderObjects
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import UploadParts


def parts(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*#*"))


async def test_parts_are_listed_by_folder_and_up_to_a_bound(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    assert isinstance(store, UploadParts)
    names = [f"c{container}/{number}#{number}" for container in (1, 12) for number in range(3)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [info.key for info in await store.list_parts("c1", 10)] == names[:3]
    assert [info.key for info in await store.list_parts("c12", 10)] == names[3:]
    assert [info.key for info in await store.list_parts("c12/1", 10)] == ["c12/1#1"]
    assert len(await store.list_parts("c12", 2)) == 2
    assert await store.list_parts("c7", 10) == []
    await store.delete_parts([*names[:2], "c1/gone#1"])
    assert parts(tmp_path) == sorted(names[2:])


async def test_a_part_that_another_process_writes_stays(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    with (tmp_path / "key#1").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        await store.delete_parts(["key#1"])
        assert parts(tmp_path) == ["key#1"]
    await store.delete_parts(["key#1"])
    assert parts(tmp_path) == []


WRITER = """
import itertools, pathlib, sys
from tailrace.storage.direct_writes import DirectWrites
from tailrace.storage.folder_files import durable_part
path = pathlib.Path(sys.argv[1])
with durable_part(path, b"half", itertools.count(1), DirectWrites(path.parent)) as part:
    print(part.name, flush=True)
    sys.stdin.read()
"""


async def test_the_part_of_another_process_goes_once_that_is_killed(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(tmp_path / "key"), stdin=PIPE, stdout=PIPE
    )
    try:
        assert writer.stdout is not None
        part = (await writer.stdout.readline()).decode().strip()
        assert await store.delete_parts([part]) == 0
        assert parts(tmp_path) == [part]
    finally:
        writer.kill()
        await writer.wait()
    assert await store.delete_parts([part]) == 1
    assert parts(tmp_path) == []


async def test_a_part_with_the_name_of_one_that_has_gone_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes the part first, and a third one, with the same process id, begins a put of the key."""
    store = FolderObjects(tmp_path)
    part = tmp_path / "key#7000000001"
    part.write_bytes(b"left behind")
    flock, live = fcntl.flock, []

    def late(file: BinaryIO, operation: int) -> None:
        part.unlink()
        live.append(part.open("xb"))
        flock(live[0], fcntl.LOCK_EX)
        flock(file, operation)

    monkeypatch.setattr(folder_files.fcntl, "flock", late)
    await store.delete_parts([part.name])
    monkeypatch.setattr(folder_files.fcntl, "flock", flock)
    assert parts(tmp_path) == [part.name]
    live[0].close()
    await store.delete_parts([part.name])
    assert parts(tmp_path) == []


async def test_an_upload_holds_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a put is under way its part survives a sweep, and the object is there in the end."""
    store = FolderObjects(tmp_path)
    writing, go_on = threading.Event(), threading.Event()
    fsync = folder_objects.os.fsync

    def slow(descriptor: int) -> None:
        writing.set()
        go_on.wait()
        fsync(descriptor)

    monkeypatch.setattr(folder_objects.os, "fsync", slow)
    thread = threading.Thread(target=store._put_synced, args=("c1/key", b"data", False))
    thread.start()
    try:
        assert writing.wait(10)
        (part,) = parts(tmp_path)
        await store.delete_parts([part])
        assert parts(tmp_path) == [part]
    finally:
        go_on.set()
        thread.join()
    assert parts(tmp_path) == []
    assert await store.get("c1/key") == b"data"


@pytest.mark.parametrize("kind", ["folder", "memory"])
async def test_a_container_lists_its_own_objects(tmp_path: Path, kind: str) -> None:
    """A prefix is a whole number of path parts, with and without its slash."""
    store = FolderObjects(tmp_path) if kind == "folder" else open_object_store("memory://")
    for key in ("c1/a/x", "c12/a/x", "a1/a/x", "c1/b/y"):
        await store.put(key, [b"data"])
    for prefix in ("c1/", "c1"):
        assert sorted([info.key async for info in store.list(prefix)]) == ["c1/a/x", "c1/b/y"]
    assert [info.key async for info in store.list("c7/")] == []
