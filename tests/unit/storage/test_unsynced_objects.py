"""An object that may not survive a power cut is not reported to exist: its folder was not synced, or not yet."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from harness.folderdisk import WAIT_S, FolderDisk
from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError, NotFoundError, StartError, UnavailableError
from tailrace.storage.contact import StoreContact, with_contact
from tailrace.storage.folder_objects import FolderObjects
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import make_durable

Look = Callable[[FolderObjects, str], Coroutine[Any, Any, bool]]


@pytest.fixture
async def threads(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads, and reads that wait for a put on any machine."""
    monkeypatch.setattr(limits, "STORAGE_UNSYNCED_READ_S", WAIT_S)


async def by_get(store: FolderObjects, key: str) -> bool:
    try:
        return await store.get(key) == b"xyz"
    except NotFoundError:
        return False


async def by_get_range(store: FolderObjects, key: str) -> bool:
    try:
        return await store.get_range(key, 1, 2) == b"yz"
    except NotFoundError:
        return False


async def by_list(store: FolderObjects, key: str) -> bool:
    return [info.key async for info in store.list(os.path.dirname(key))] == [key]


async def by_put_if_absent(store: FolderObjects, key: str) -> bool:
    try:
        await store.put(key, [b"other"], if_absent=True)
    except AlreadyExistsError:
        return True
    return False


looks = pytest.mark.parametrize("look", [by_get, by_get_range, by_list, by_put_if_absent])
modes = pytest.mark.parametrize("if_absent", [False, True])


@looks
@modes
async def test_a_put_whose_sync_failed_is_no_object_until_it_is_durable(
    disk: FolderDisk, store: FolderObjects, look: Look, if_absent: bool
) -> None:
    disk.fail("a/b")
    with pytest.raises(UnavailableError):
        await store.put("a/b/c", [b"xyz"], if_absent=if_absent)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="Input/output error"):
            await look(store, "a/b/c")
    disk.fail()
    assert await look(store, "a/b/c")
    assert disk.survives("a/b/c")
    assert await store.get("a/b/c") == b"xyz"
    assert [path.name for path in (disk.root / "a/b").iterdir()] == ["c"], "nothing else is left"
    assert len(store._unsynced) == 0


@looks
async def test_a_folder_on_the_way_that_was_not_synced_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Look
) -> None:
    disk, store = FolderDisk(monkeypatch, tmp_path, forgives=True), FolderObjects(tmp_path)
    disk.fail("a")
    with pytest.raises(UnavailableError):
        await store.put("a/b/c", [b"xyz"])
    with pytest.raises(UnavailableError):
        await look(store, "a/b/c")
    disk.fail()
    assert await look(store, "a/b/c")
    assert disk.survives("a/b/c")


@looks
@modes
@pytest.mark.usefixtures("threads")
async def test_a_put_that_is_not_synced_yet_is_no_object(
    disk: FolderDisk, store: FolderObjects, monkeypatch: pytest.MonkeyPatch, look: Look, if_absent: bool
) -> None:
    disk.hold()
    put = asyncio.ensure_future(store.put("a/b/c", [b"xyz"], if_absent=if_absent))
    await asyncio.to_thread(disk.wait_until_held)
    assert (disk.root / "a/b/c").exists()
    with monkeypatch.context() as shorter:
        shorter.setattr(limits, "STORAGE_CALL_DEADLINE_S", 0.05)
        with pytest.raises(UnavailableError):
            await look(store, "a/b/c")
    disk.release()
    await put
    assert await look(store, "a/b/c")
    assert disk.survives("a/b/c")


@looks
@pytest.mark.parametrize("end", ["deadline", "cancelled"])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.usefixtures("threads")
async def test_a_put_that_goes_on_after_its_caller_left_is_no_object(
    disk: FolderDisk, store: FolderObjects, monkeypatch: pytest.MonkeyPatch, look: Look, end: str, fails: bool
) -> None:
    disk.hold()
    if end == "cancelled":
        put = asyncio.ensure_future(store.put("a/b/c", [b"xyz"]))
        await asyncio.to_thread(disk.wait_until_held)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
    with monkeypatch.context() as shorter:
        shorter.setattr(limits, "STORAGE_CALL_DEADLINE_S", 0.05)
        while end == "deadline":
            with pytest.raises(UnavailableError):
                await store.put("a/b/c", [b"xyz"])
            if disk.is_held():
                break
        with pytest.raises(UnavailableError):
            await look(store, "a/b/c")
    if fails:
        disk.fail("a/b")
        disk.release()
        with pytest.raises(UnavailableError):
            await look(store, "a/b/c")
        disk.fail()
    disk.release()
    assert await look(store, "a/b/c")
    assert disk.survives("a/b/c")


async def test_a_further_put_makes_it_an_object(disk: FolderDisk, store: FolderObjects) -> None:
    disk.fail("a")
    with pytest.raises(UnavailableError):
        await store.put("a/b", [b"xyz"])
    disk.fail()
    await store.put("a/b", [b"xyz"])
    assert disk.survives("a/b")
    assert len(store._unsynced) == 0


async def test_one_that_was_deleted_is_missing(disk: FolderDisk, store: FolderObjects) -> None:
    disk.fail("a")
    for key in ("a/b", "a/c"):
        with pytest.raises(UnavailableError):
            await store.put(key, [b"xyz"])
    await store.delete(["a/b"])
    with pytest.raises(NotFoundError):
        await store.get("a/b")
    disk.fail()
    await store.put("a/b", [b"again"], if_absent=True)
    assert await store.get("a/b") == b"again"
    assert disk.survives("a/b")


async def test_an_object_that_another_process_made_is_durable_before_it_is_said_to_exist(
    disk: FolderDisk, store: FolderObjects
) -> None:
    await store.put("a/other", [b"x"])
    (disk.root / "a/b").write_bytes(b"theirs")
    disk.fail("a")
    for look in (by_put_if_absent, by_get):
        with pytest.raises(UnavailableError, match="Input/output error"):
            await look(store, "a/b")
    disk.fail()
    assert await by_put_if_absent(store, "a/b")
    assert disk.survives("a/b")
    assert await store.get("a/b") == b"theirs"


async def test_objects_of_another_process_become_durable_on_request(disk: FolderDisk, store: FolderObjects) -> None:
    (disk.root / "a/b").mkdir(parents=True)
    (disk.root / "a/b/c").write_bytes(b"theirs")
    followed = with_contact(store, StoreContact())
    disk.fail("a")
    with pytest.raises(UnavailableError):
        await make_durable(followed, "a/b")
    disk.fail()
    await make_durable(followed, "a/b")
    await make_durable(followed, "a/missing")
    assert not disk.survives("a/b/c"), "the disk has lost the entry of a/b"
    (disk.root / "d").mkdir()
    (disk.root / "d/e").write_bytes(b"theirs")
    await make_durable(followed, "d/")
    assert disk.survives("d/e")


def test_the_folder_of_a_new_store_is_durable(disk: FolderDisk) -> None:
    for _ in range(2):  # the second time after its first process was killed
        open_object_store(f"file://{disk.root}/new/tier2")
        assert disk.survives("new/tier2")
        disk.unsync("new/tier2")
    disk.fail("new")
    with pytest.raises(StartError, match=r"new/tier2 cannot be used: Input/output error"):
        open_object_store(f"file://{disk.root}/new/tier2")
    disk.fail()


async def test_reads_sync_nothing_when_all_is_durable(disk: FolderDisk, store: FolderObjects) -> None:
    await store.put("a/b", [b"xyz"])
    before = disk.syncs.copy()
    for look in (by_get, by_get_range, by_list):
        assert await look(store, "a/b")
    assert disk.syncs == before


async def test_as_many_as_may_be_are_remembered(
    disk: FolderDisk, store: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORAGE_UNSYNCED_MAX", 3)
    disk.fail("a")
    for number in range(3):
        with pytest.raises(UnavailableError):
            await store.put(f"a/{number}", [b"xyz"])
    with pytest.raises(UnavailableError, match="put b/1: objects that were put before"):
        await store.put("b/1", [b"xyz"])
    assert not (disk.root / "b").exists()
    await store.delete(["a/1"])
    disk.fail()
    for number in range(1, 4):
        await store.put(f"b/{number}", [b"xyz"])
    assert len(store._unsynced) < 3
    for key in ("a/0", "a/2"):
        assert await by_get(store, key)
        assert disk.survives(key)
