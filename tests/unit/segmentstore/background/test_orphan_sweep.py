"""The orphan sweep deletes only objects that no later state can reference (docs/design.md#deletion, docs/adr/0011)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError, CorruptionError, UnavailableError
from tailrace.log.object_keys import LogKeys
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.tier2.snapshot import SnapshotName
from tailrace.storage.folder_objects import FolderObjects
from tailrace.storage.obstore_objects import ObstoreObjects

from ..conftest import World, eventually, take_snapshot

NAME = "scope/stream/0.#epoch.0"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DELETE_DELAY_S", "SWEEP_PAUSE_S", "STORAGE_RETRY_MIN_S"):
        monkeypatch.setattr(limits, name, 0.0)


def key(epoch: int, *, kind: str = "c", container: int = 7, number: int = 0) -> str:
    return f"{kind}{container}/{9:016x}/{0:016x}-{100:016x}-{epoch:08x}-{number:012x}"


async def put(world: World, *keys: str) -> None:
    for name in keys:
        await world.objects.put(name, [b"orphan"])


async def there(world: World) -> set[str]:
    """All objects but the container's own snapshots."""
    return {info.key async for info in world.objects.list("") if not info.key.startswith("s7/")}


async def second_owner(world: World) -> Container:
    """Epoch 2, with a flushed segment of epoch 1."""
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"x" * 1000])
    await container.flush_to_storage()
    await container.close()
    return await world.open()


async def test_only_unreferenced_objects_of_earlier_owners_go(world: World) -> None:
    container = await second_owner(world)
    needed = await there(world)
    assert needed
    orphans = {key(1), key(1, kind="a"), key(0, number=3)}
    foreign = {
        key(2),  # an upload of the owner itself, under way
        key(3),  # a later owner's
        key(1, container=71),
        key(1) + "0",
        "c7/notes",
        f"c7/{9:016x}/readme",
        "snapshots/7/0000000000000001",
        "cluster.json",
    }
    await put(world, *orphans, *foreign)
    assert await container.background.sweep.sweep()
    assert await there(world) == needed | foreign
    assert container.status().details["orphans_deleted"] == 3
    assert await container.read_exact(NAME, 0, 1000) == b"x" * 1000


async def test_what_waits_to_be_deleted_is_left_to_its_own_delay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.05)
    container = await second_owner(world)
    needed = await there(world)
    await container.delete(NAME)
    assert set(container.state.pending_deletes) == needed
    assert await container.background.sweep.sweep()
    assert await there(world) == needed


async def test_a_reference_that_is_committed_after_the_list_counts(world: World) -> None:
    """References are looked at last: whatever a list said, what is referenced by then stays."""
    container = await second_owner(world)
    await put(world, key(1), key(1, number=2))
    container.state.object_uses[key(1)] = 1
    await container.background.sweep._delete([key(1), key(1, number=2)], container.state.committed_sequence)
    assert key(1) in await there(world)
    assert key(1, number=2) not in await there(world)


async def test_without_its_barrier_a_sweep_deletes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await second_owner(world)
    await put(world, key(1))
    listed = container.background.sweep._list

    async def list_and_end() -> tuple[list[str], bool]:
        found = await listed()
        await container.close()
        return found

    monkeypatch.setattr(container.background.sweep, "_list", list_and_end)
    with pytest.raises(ContainerStoppedError):
        await container.background.sweep.sweep()
    assert key(1) in await there(world)


async def test_a_sweep_remembers_a_bounded_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_ORPHANS_MAX", 4)
    monkeypatch.setattr(limits, "DELETE_BATCH_MAX", 3)
    monkeypatch.setattr(limits, "SWEEP_PAGE_OBJECTS", 2)
    container = await second_owner(world)
    needed = await there(world)
    await put(world, *(key(1, number=number) for number in range(10)))
    assert not await container.background.sweep.sweep()
    assert len(await there(world)) == len(needed) + 6
    assert not await container.background.sweep.sweep()
    assert await container.background.sweep.sweep()
    assert await there(world) == needed


async def test_a_sweep_comes_by_itself_and_waits_for_a_store_that_does_not_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_FIRST_AFTER_S", 0.0)
    monkeypatch.setattr(limits, "SWEEP_INTERVAL_S", 0.0)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MAX_S", 0.01)
    await put(world, key(0))
    world.objects.outage = True
    container = await world.open()
    await eventually(lambda: container.background.sweep.last_error)
    assert container.status().state == "running"
    world.objects.outage = False
    await eventually(lambda: container.background.sweep.deleted == 1)
    assert not await there(world)


async def test_a_delete_that_fails_is_repeated_by_the_next_sweep(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await second_owner(world)
    needed = await there(world)
    await put(world, key(1))
    delete = world.objects.delete

    async def lost(keys: list[str]) -> None:
        await delete(keys)
        raise UnavailableError("the answer is lost")

    monkeypatch.setattr(world.objects, "delete", lost)
    with pytest.raises(UnavailableError):
        await container.background.sweep.sweep()
    monkeypatch.setattr(world.objects, "delete", delete)
    assert await container.background.sweep.sweep()
    assert await there(world) == needed


async def test_an_upload_that_failed_and_took_effect_goes_with_the_next_flush(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner need not end for that. What it references stays."""
    monkeypatch.setattr(limits, "STORAGE_RETRY_MIN_S", 3600.0)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    container = await world.open()
    await container.create_segment(NAME)
    await container.append(NAME, [b"x" * 1000])
    put = world.objects.put

    async def lost(key: str, data: list[bytes], **options: bool) -> None:
        await put(key, data, **options)
        raise UnavailableError("the answer is lost")

    monkeypatch.setattr(world.objects, "put", lost)
    with pytest.raises(UnavailableError):
        await container.flush_to_storage()
    (left,) = await there(world)
    monkeypatch.setattr(world.objects, "put", put)
    await container.flush_to_storage()
    assert left in container.state.pending_deletes
    await take_snapshot(container)
    await eventually(lambda: not container.state.pending_deletes)
    assert await there(world) == set(container.state.object_uses)
    assert await container.read_exact(NAME, 0, 1000) == b"x" * 1000


def test_the_barrier_of_another_owner_is_corruption() -> None:
    state = ContainerState(7)
    state.apply(1, ops.Recovered(3, 1))
    state.apply(2, ops.SweepBarrier(3, 1))
    with pytest.raises(CorruptionError, match="SWEEP_BARRIER"):
        state.apply(3, ops.SweepBarrier(2, 1))
    with pytest.raises(CorruptionError, match="SWEEP_BARRIER"):
        state.apply(3, ops.SweepBarrier(3, 3))


async def test_files_of_uploads_that_were_cut_off_go(world: World, tmp_path: Path) -> None:
    """Those of earlier owners which no process writes; a local folder is the only store that shows such."""
    store = FolderObjects(tmp_path)
    container = await second_owner(world)
    container.storage.tier2._store = store
    left = [
        f"{key(1)}#{os.getpid()}000000001",
        f"{key(1, kind='a', number=1)}#1000000001",
        f"{SnapshotName(1, 9, '0a0b').key(7)}#1000000001",
    ]
    kept = [
        f"{key(2)}#1000000001",
        f"{key(1, container=71)}#1000000001",
        "c7/notes#1000000001",
        "probe/x#1000000001",
        f"{SnapshotName(2, 9, '0a0b').key(7)}#1000000001",
        f"{SnapshotName(1, 9, '0a0b').key(71)}#1000000001",
    ]
    snapshots = [SnapshotName(epoch, 9, "0c0d").key(7) for epoch in (1, 2)]
    await store.put(snapshots[0], [b"an earlier owner's"])
    await store.put(snapshots[1], [b"this one's"])
    for name in (*left, *kept):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    assert not [info async for info in ObstoreObjects.list(store, "c7")]
    assert await container.background.sweep.sweep()
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*#*")}  # noqa: ASYNC240 - a test
    assert found == set(kept)
    assert {info.key async for info in store.list("s7")} == set(snapshots), "the sweep leaves snapshots alone"


async def test_files_of_puts_of_an_object_log_that_were_cut_off_go(world: World, tmp_path: Path) -> None:
    """Frames, marks, START frames and claims of earlier epochs, which nothing else deletes; empty folders, too."""
    store = FolderObjects(tmp_path)
    container = await second_owner(world)
    container.storage.tier2._store = store
    keys, other = LogKeys(7), LogKeys(71)
    left = [f"{key}#7000000001" for key in (keys.frame(1, 5), keys.start(1), keys.mark(1, 3), keys.claim(1))]
    kept = [
        f"{keys.frame(2, 6)}#7000000001",
        f"{keys.claim(2)}#7000000001",
        f"{keys.claim(3)}#7000000001",
        f"{other.frame(1, 5)}#7000000001",
        f"{keys.folder}notes#7000000001",
    ]
    live = f"{keys.frame(1, 6)}#8000000001"
    for name in (*left, *kept, live):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    await store.put(keys.claim(1), [b"claim"])
    with (tmp_path / live).open("rb") as file:  # of a process that lives, and does not know that it is fenced
        fcntl.flock(file, fcntl.LOCK_EX)
        assert await container.background.sweep.sweep()
        assert parts_below(tmp_path) == {*kept, live}
        assert container.background.sweep.deleted == len(left), "what another process writes is not counted"
    assert await container.background.sweep.sweep()
    assert parts_below(tmp_path) == set(kept)
    assert not (tmp_path / keys.epoch(1)).exists(), "the folder of an epoch goes with its last file"
    assert await store.get(keys.claim(1)) == b"claim"


def parts_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*#*")}
