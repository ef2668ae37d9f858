"""Folders that were removed behind a server's back: refused by name, never taken for new ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness.folderservice import served_folder
from tailrace.cluster.data_folder import open_data_folder, take_epoch
from tailrace.common.errors import ContainerStoppedError, StartError
from tailrace.common.real_ports import SystemEntropy
from tailrace.segmentstore.worker.worker import Worker

CONTAINERS = 2
CONTENT = b"what must not be forgotten"


def segment_of(container: int) -> str:
    return ("scope/stream/0.#epoch.0", "scope/a/0.#epoch.0")[container]


async def serve(path: Path, work: Callable[[Worker], Awaitable[None]], tier2: str = "") -> None:
    """Start a store over the folder, do something with it, end it."""
    async with served_folder(path, CONTAINERS, tier2=tier2) as worker:
        await work(worker)


async def nothing(_: Worker) -> None:
    """Only start."""


async def fill(worker: Worker) -> None:
    for container in worker.containers():
        name = segment_of(container.container_id)
        assert worker.container_for(name) is container
        await container.create_segment(name)
        await container.append(name, [CONTENT])
        await container.flush_to_storage()


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A folder with something in both containers, in the log and in Tier 2, opened twice."""
    path = tmp_path / "data"
    await serve(path, fill)
    await serve(path, nothing)
    return path


async def refused(data: Path, reason: str) -> None:
    """Container 1 is refused for the reason, at every start; container 0 serves."""

    async def look(worker: Worker) -> None:
        assert [container.container_id for container in worker.containers()] == [0]
        status = worker.status()[1]
        assert status.state == "stopped"
        assert status.reason == reason
        with pytest.raises(ContainerStoppedError):
            worker.container_for(segment_of(1))
        assert await worker.container_for(segment_of(0)).read_exact(segment_of(0), 0, len(CONTENT)) == CONTENT

    for _ in range(2):
        await serve(data, look)


async def test_a_log_folder_is_missing(data: Path) -> None:
    shutil.rmtree(data / "log" / "1")
    await refused(data, f"log folder {data}/log/1 is empty or missing, but had one of epoch 2")


async def test_the_latest_files_of_a_log_are_missing(data: Path) -> None:
    for file in (data / "log" / "1").glob("*-" + f"{2:020d}.log"):
        file.unlink()
    await refused(data, f"log folder {data}/log/1 ends with epoch 1, but had one of epoch 2")


async def test_a_log_folder_and_all_epochs_are_missing(data: Path) -> None:
    """Then the objects in Tier 2 are the witness."""
    shutil.rmtree(data / "log" / "1")
    shutil.rmtree(data / "epochs")
    await refused(data, f"log folder {data}/log/1 is empty or missing, but had one of epoch 2")


async def test_all_logs_are_missing(data: Path) -> None:
    shutil.rmtree(data / "log")
    with pytest.raises(StartError, match=f"^log folder {data}/log is missing: it had the logs"):
        await serve(data, nothing)


async def test_a_start_that_failed_before_any_log_was_opened_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "data"
    open_data_folder(path, containers=CONTAINERS, tier2="", entropy=SystemEntropy()).close()
    take_epoch(path, 0)
    await serve(path, fill)


async def test_tier_2_is_missing(data: Path) -> None:
    shutil.rmtree(data / "tier2")
    with pytest.raises(StartError, match=f"^Tier 2 folder {data}/tier2 does not exist"):
        await serve(data, nothing)
    (data / "tier2").mkdir()
    with pytest.raises(StartError, match=f"^Tier 2 file://{data}/tier2 has no cluster.json"):
        await serve(data, nothing)


async def test_tier_2_of_another_cluster(data: Path, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"belongs to cluster .*, not to "):
        await serve(tmp_path / "other", nothing, tier2=f"file://{data}/tier2")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "cluster.json is damaged"),
        (b"[1]", "cluster.json is damaged"),
        (json.dumps({"format": 2, "cluster": 7}).encode(), "format 2 is newer than this program's 1"),
    ],
)
async def test_a_mark_that_cannot_be_read(data: Path, content: bytes, reason: str) -> None:
    (data / "tier2" / "cluster.json").write_bytes(content)
    with pytest.raises(StartError, match=reason):
        await serve(data, nothing)


async def test_a_folder_from_before_the_marks(data: Path) -> None:
    """Neither mark nor opened epochs: both appear at the next start."""
    (data / "tier2" / "cluster.json").unlink()
    for file in (data / "epochs").glob("*.json"):
        file.write_text(json.dumps({"epoch": json.loads(file.read_text())["epoch"]}))
    await serve(data, nothing)
    assert (data / "tier2" / "cluster.json").exists()
    assert json.loads((data / "epochs" / "1.json").read_text()) == {"epoch": 3, "opened": 3}


def test_a_folder_that_is_gone_gives_no_epoch(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    assert take_epoch(data, 0) == 1
    shutil.rmtree(data)
    with pytest.raises(StartError, match="is missing"):
        take_epoch(data, 0)
    assert not data.exists()
