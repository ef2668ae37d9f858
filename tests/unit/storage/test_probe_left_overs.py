"""What probes of stores leave behind when their processes are killed: deleted when it is old, by the store's clock."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.log.probe import probe_conditions
from tailrace.storage.folder_objects import FolderObjects
from tailrace.storage.obstores import open_object_store, probe
from tailrace.storage.port import ObjectInfo, ObjectStore
from tailrace.storage.probe_objects import delete_left_overs, is_probe

NONCE, OTHER = "0123456789abcdef", "fedcba9876543210"
OWN = "00aa00aa00aa00aa"
LEFT = [f"probe/{NONCE}", *(f"probe/{OTHER}/{name}" for name in ("0/read-0", "4/rivals-2", "clock")), "probe/operator"]
FOREIGN = ["probe/notes.txt", "probe/0a0b", f"probe/{NONCE}/0/table", "notes.txt", "c0/notes.txt"]
DAY_S = 86_400


class Dated:
    """A store in memory whose clock stands in 1971; ``ages_s``: of objects that are older than that."""

    def __init__(self) -> None:
        self.objects = open_object_store("memory://")
        self.ages_s: dict[str, float] = {}
        self.deletes: list[Sequence[str]] = []
        self.dated = True

    async def put(self, key: str, data: Sequence[bytes], *, if_absent: bool = False) -> None:
        await self.objects.put(key, data, if_absent=if_absent)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.objects.list(prefix):
            modified_ms = (400 * DAY_S - self.ages_s.get(info.key, 0)) * 1000
            yield ObjectInfo(info.key, info.length_bytes, int(modified_ms) if self.dated else 0)

    async def delete(self, keys: Sequence[str]) -> None:
        self.deletes.append(keys)
        await self.objects.delete(keys)

    async def add(self, *keys: str, age_s: float) -> None:
        for key in keys:
            await self.objects.put(key, [b"left"])
            self.ages_s[key] = age_s


async def keys_of(store: ObjectStore) -> list[str]:
    return sorted([info.key async for info in store.list("")])


async def test_old_objects_of_probes_go_by_the_clock_of_the_store() -> None:
    store = Dated()
    young = [f"probe/{'1' * 16}", f"probe/{'1' * 16}/0/condition-0"]
    await store.add(*LEFT, age_s=DAY_S + 1)
    await store.add(*young, age_s=DAY_S - 1)
    await store.add(*FOREIGN, age_s=9 * DAY_S)
    await delete_left_overs(store, OWN)  # type: ignore[arg-type]
    assert await keys_of(store.objects) == sorted(young + FOREIGN)


async def test_a_probe_that_runs_keeps_its_objects() -> None:
    """Whatever another process's probe has put so far: it is not old."""
    store = Dated()
    await store.add(*LEFT, age_s=60)
    await delete_left_overs(store, OWN)  # type: ignore[arg-type]
    assert await keys_of(store.objects) == sorted(LEFT)


async def test_objects_without_a_time_stay() -> None:
    store = Dated()
    store.dated = False
    await store.add(*LEFT, age_s=9 * DAY_S)
    await delete_left_overs(store, OWN)  # type: ignore[arg-type]
    assert await keys_of(store.objects) == sorted(LEFT)


async def test_a_round_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROBE_LEFT_OVERS_MAX", 3)
    monkeypatch.setattr(limits, "DELETE_BATCH_MAX", 2)
    store = Dated()
    await store.add(*(f"probe/{number:016x}" for number in range(5)), age_s=9 * DAY_S)
    await delete_left_overs(store, OWN)  # type: ignore[arg-type]
    assert len(await keys_of(store.objects)) == 2
    assert [len(keys) for keys in store.deletes] == [2, 2]
    await delete_left_overs(store, OWN)  # type: ignore[arg-type]
    assert await keys_of(store.objects) == []


async def test_without_left_overs_nothing_is_written() -> None:
    store = Dated()
    await store.add(*FOREIGN, age_s=9 * DAY_S)
    await delete_left_overs(store, OWN)  # type: ignore[arg-type]
    assert store.deletes == []


async def test_a_store_that_does_not_answer_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Dated()
    await store.add(*LEFT, age_s=9 * DAY_S)

    async def fail(keys: Sequence[str]) -> None:
        raise UnavailableError("no answer")

    monkeypatch.setattr(store, "delete", fail)
    await delete_left_overs(store, OWN)  # type: ignore[arg-type]
    assert set(await keys_of(store.objects)) >= set(LEFT)


async def test_a_cancellation_is_none_of_the_errors_that_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Dated()
    await store.add(*LEFT, age_s=9 * DAY_S)
    deleting = asyncio.Event()

    async def hang(keys: Sequence[str]) -> None:
        deleting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "delete", hang)
    task = asyncio.ensure_future(delete_left_overs(store, OWN))  # type: ignore[arg-type]
    async with asyncio.timeout(120):
        await deleting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def make_old(folder: Path, *names: str, age_s: float) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left")
        then_s = path.stat().st_mtime - age_s
        os.utime(path, (then_s, then_s))


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_parts_in_a_folder_go_with_them(tmp_path: Path) -> None:
    """Also parts of the cluster's own object; not those that a process writes, which holds their locks."""
    store = FolderObjects(tmp_path)
    parts = [f"{key}#7000000001" for key in (f"probe/{NONCE}", f"probe/{OTHER}/0/read-0", "cluster.json")]
    kept = [
        "cluster.json",
        "cluster.json#notes",
        "cluster.json.old#1",
        "probe/notes#1",
        "c0/x#7000000001",
        "notes#7000000001",
    ]
    young, live = f"probe/{NONCE}#7000000002", f"probe/{NONCE}#7000000003"
    make_old(tmp_path, *LEFT[:3], *parts, *kept, live, age_s=2 * DAY_S)
    make_old(tmp_path, young, age_s=60)
    with (tmp_path / live).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        await delete_left_overs(store, OWN, "cluster.json")
        assert files_in(tmp_path) == {*kept, young, live}


async def test_a_folder_without_left_overs_is_left_alone(tmp_path: Path) -> None:
    await delete_left_overs(FolderObjects(tmp_path), OWN, "cluster.json")
    assert files_in(tmp_path) == set()


async def test_what_the_probes_write_has_such_keys() -> None:
    """Else left-overs of a probe that changes would stay for ever."""
    store = Dated()
    written: list[str] = []

    class Watched(Dated):
        async def put(self, key: str, data: Sequence[bytes], *, if_absent: bool = False) -> None:
            written.append(key)
            await store.objects.put(key, data, if_absent=if_absent)

        def __getattr__(self, name: str) -> object:
            return getattr(store.objects, name)

    await probe(Watched(), OWN)  # type: ignore[arg-type]
    await probe_conditions(Watched(), OWN)  # type: ignore[arg-type]
    assert len(written) > 10
    assert all(is_probe(key) and is_probe(f"{key}#7000000001") for key in written)
    assert not any(map(is_probe, FOREIGN))
