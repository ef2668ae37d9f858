"""A store whose logs are objects of Tier 2: what its folder remembers, and what happens when that is lost or copied."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from harness.folderservice import served_folder
from tailrace.cluster.data_folder import LogKind
from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError, StartError, UnavailableError
from tailrace.log.object import ObjectLog
from tailrace.log.probe import probe_conditions
from tailrace.segmentstore.container.lifecycle import Lifecycle
from tailrace.segmentstore.tier2.snapshot import SnapshotName
from tailrace.segmentstore.worker import folder_logs
from tailrace.segmentstore.worker.worker import Worker
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectStore

from ..conftest import eventually

CONTAINERS = 2
CONTENT = b"what must not be forgotten"
SEGMENTS = ("scope/stream/0.#epoch.0", "scope/a/0.#epoch.0")


def served(
    path: Path, log: LogKind | None = None, tier2: Path | None = None
) -> contextlib.AbstractAsyncContextManager[Worker]:
    """A store over the folder, with another Tier 2 than its own if that is given."""
    return served_folder(path, CONTAINERS, tier2=f"file://{tier2 or path / 'tier2'}", log=log)


async def content(worker: Worker) -> list[bytes]:
    found = []
    for name in SEGMENTS:
        container = worker.container_for(name)
        found.append(await container.read_exact(name, 0, (await container.info(name)).length))
    return found


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A folder with something in both containers, in the log alone, opened twice."""
    path = tmp_path / "data"
    async with served(path, "object") as worker:
        for name in SEGMENTS:
            await worker.container_for(name).create_segment(name)
            await worker.container_for(name).append(name, [CONTENT])
    async with served(path) as worker:
        assert await content(worker) == [CONTENT] * CONTAINERS
    return path


async def test_the_folder_remembers_where_its_logs_are(data: Path) -> None:
    assert json.loads((data / "tailrace.json").read_text())["format"] == 2
    assert not (data / "log").exists()
    with pytest.raises(StartError, match=r"the folder's logs are object logs, not file logs$"):
        async with served(data, "file"):
            pass
    other = data.parent / "other"
    async with served(other):
        pass
    assert json.loads((other / "tailrace.json").read_text())["format"] == 1
    with pytest.raises(StartError, match=r"the folder's logs are file logs, not object logs$"):
        async with served(other, "object"):
            pass


async def test_lost_epochs_lose_nothing(data: Path) -> None:
    """The claims are the floor: the next epoch is above all of them."""
    shutil.rmtree(data / "epochs")
    async with served(data) as worker:
        assert await content(worker) == [CONTENT] * CONTAINERS
        assert [status.epoch for status in worker.status()] == [3, 3]


async def test_a_lost_folder_is_refused_by_its_cluster(data: Path) -> None:
    with pytest.raises(StartError, match=r"belongs to cluster .*, not to "):
        async with served(data.parent / "new", "object", data / "tier2"):
            pass


async def test_lost_epochs_and_another_kind_of_log_are_refused(data: Path) -> None:
    shutil.rmtree(data / "epochs")
    with pytest.raises(StartError, match="holds the log of container 0: use object logs"):
        async with served(data, "file"):
            pass


@pytest.mark.parametrize("epochs", [True, False], ids=["known to the folder", "known to Tier 2"])
@pytest.mark.parametrize("lost", ["all", "all but the claims", "the last epoch"])
async def test_a_log_that_was_deleted_is_refused(data: Path, tmp_path: Path, epochs: bool, lost: str) -> None:
    """A claim is of an attempt to open the log: it does not prove that the log exists."""
    log, earlier = data / "tier2/log/1", tmp_path / "earlier"
    shutil.copytree(log, earlier)
    async with served(data) as worker:
        for container in worker.containers():
            await container.flush_to_storage()
    before = sorted((data / "tier2").glob("[ac]1/**/*"))
    if lost == "all":
        shutil.rmtree(log)
    for folder in log.glob("[0-9]*"):
        shutil.rmtree(folder)
    if lost == "the last epoch":
        shutil.copytree(earlier, log, dirs_exist_ok=True)
        assert (log / f"{2:020}" / "start").exists()
    if not epochs:
        shutil.rmtree(data / "epochs")
    async with served(data) as worker:
        first, second = worker.status()
        assert first.state == "running"
        assert second.state == "stopped"
        assert second.reason == "log log/1/ has lost epoch 3, its last one"
    assert sorted((data / "tier2").glob("[ac]1/**/*")) == before


async def test_a_log_that_is_brought_back_after_a_refused_start_is_served(data: Path, tmp_path: Path) -> None:
    """The refused start left a claim: no epoch of its own."""
    log = data / "tier2/log/1"
    epochs = [folder.name for folder in log.glob("[0-9]*")]
    for name in epochs:
        (log / name).rename(tmp_path / name)
    async with served(data) as worker:
        assert [status.state for status in worker.status()] == ["running", "stopped"]
    for name in epochs:
        (tmp_path / name).rename(log / name)
    async with served(data) as worker:
        assert await content(worker) == [CONTENT] * CONTAINERS


@pytest.mark.parametrize("epochs", [True, False], ids=["known to the folder", "known to Tier 2"])
@pytest.mark.parametrize("ended", ["before its START", "before it was noted"])
async def test_an_opening_that_was_killed_is_no_loss(
    data: Path, monkeypatch: pytest.MonkeyPatch, epochs: bool, ended: str
) -> None:
    async with served(data) as worker:
        for container in worker.containers():
            await container.flush_to_storage()

    async def killed(*_: object) -> None:
        raise UnavailableError("killed")

    with monkeypatch.context() as patch:
        if ended == "before its START":
            patch.setattr(ObjectLog, "_recovered", killed)
        else:
            patch.setattr(Lifecycle, "_record_opening", killed)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="killed"):
                async with served(data):
                    pass
    claims = len(list((data / "tier2/log/0/claims").iterdir()))
    started = max((data / "tier2/log/0").glob("*/start"))
    assert (claims, started.parent.name) == (5, f"{3 if ended == 'before its START' else 5:020}")
    if not epochs:
        shutil.rmtree(data / "epochs")
    async with served(data) as worker:
        assert await content(worker) == [CONTENT] * CONTAINERS


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_container_whose_first_openings_were_killed_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    """Claims, and no epoch: nothing was ever stored."""

    async def killed(*_: object) -> None:
        raise UnavailableError("killed")

    path = tmp_path / "data"
    with monkeypatch.context() as patch:
        patch.setattr(ObjectLog, "_recovered", killed)
        for _ in range(attempts):
            with pytest.raises(UnavailableError, match="killed"):
                async with served(path, "object"):
                    pass
    assert len(list((path / "tier2/log/0/claims").iterdir())) == attempts
    async with served(path, "object") as worker:
        assert [status.state for status in worker.status()] == ["running"] * CONTAINERS


async def test_a_store_that_fails_the_probe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ignorant:
        """A store that ignores conditions."""

        def __init__(self, store: ObjectStore) -> None:
            self._store = store

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        async def put(self, key: str, data: object, *, if_absent: bool = False) -> None:
            await self._store.put(key, data)  # type: ignore[arg-type]

    async def probe(store: ObjectStore, nonce: str, place: str) -> None:
        await probe_conditions(Ignorant(store), nonce, place)  # type: ignore[arg-type]

    monkeypatch.setattr(folder_logs, "probe_conditions", probe)
    with pytest.raises(StartError, match=r"^Tier 2 .* cannot hold the log: it ignores conditions"):
        async with served(tmp_path / "data", "object"):
            pass
    async with served(tmp_path / "files", "file"):
        pass


async def test_two_servers_of_one_cluster(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one owns the containers; the former one stops, says why, and does not take them back."""
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MIN_S", 0.01)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MAX_S", 0.02)
    copy = data.parent / "copy"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("tier2"))
    async with served(data) as first, served(copy, None, data / "tier2") as second:
        for name in SEGMENTS:
            with pytest.raises(ContainerStoppedError):
                await first.container_for(name).append(name, [b"lost"])
            await second.container_for(name).append(name, [b"kept"])
        await eventually(lambda: [status.state for status in first.status()] == ["stopped", "stopped"])
        assert [status.reason for status in first.status()] == [
            "log log/0/ was taken by epoch 4",
            "log log/1/ was taken by epoch 4",
        ]
        assert await content(second) == [CONTENT + b"kept"] * CONTAINERS
    async with served(data) as worker:
        assert await content(worker) == [CONTENT + b"kept"] * CONTAINERS
        assert [status.epoch for status in worker.status()] == [5, 5]


CHUNK = f"{9:016x}/{0:016x}-{100:016x}-{6:08x}-{1:012x}"


@pytest.mark.parametrize(
    ("keys", "epoch"),
    [
        ([], 0),
        ([f"c0/{CHUNK}"], 6),
        ([f"a0/{CHUNK}"], 6),
        ([f"c0/{CHUNK}", SnapshotName(4, 9, "0a0b").key(0)], 4),
        (["c0/notes-2026-11-30.txt"], 1),
        (["c0/a-b-ffff"], 1),
        (["c0/0-0-ffff", f"c0/{CHUNK}"], 6),
        ([f"c1/{CHUNK}"], 0),
    ],
)
async def test_the_epoch_that_objects_show(keys: list[str], epoch: int) -> None:
    """A log must have it. What a person has put there has none, whatever its name looks like."""
    store = open_object_store("memory://")
    for key in keys:
        await store.put(key, [b"data"])
    assert await folder_logs.epoch_of_objects(store, 0) == epoch
