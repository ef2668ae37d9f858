"""A cluster whose logs are in Tier 2, of which one is lost: the restore does not report that container as restored."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness.folderservice import served_folder
from tailrace.cluster import segment_mapping
from tailrace.common import limits
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.restore.cluster import restore_cluster
from tailrace.segmentstore.restore.report import RestoreReport
from tailrace.segmentstore.verify.folder import verify_tier2
from tailrace.segmentstore.worker.worker import Worker

A, B = "scope/a/0.#epoch.0", "scope/b/0.#epoch.0"
LOST = segment_mapping.container_of(A, 2)


async def serve(data: Path, url: str, work: Callable[[Worker], Awaitable[None]]) -> list[str]:
    """Do some work with a server of two containers; return their states."""
    async with served_folder(data, 2, tier2=url, log="object") as worker:
        await work(worker)
        return [f"{each.state}: {each.reason}" for each in worker.status()]


async def fill(worker: Worker) -> None:
    for name in (A, B):
        container = worker.container_for(name)
        await container.create_segment(name)
        await container.append(name, [name.encode() * 1000])
        await container.flush_to_storage()


async def more(worker: Worker) -> None:
    for name in (A, B):
        container = worker.container_for(name)
        await container.append(name, [b"more"])
        await container.flush_to_storage()


async def nothing(worker: Worker) -> None:
    pass


async def restored(data: Path, url: str) -> RestoreReport:
    """Restore into a folder that is lost."""
    shutil.rmtree(data)
    return await restore_cluster(
        data, tier2=url, clock=SystemClock(), entropy=SystemEntropy(), progress=lambda done, total: None
    )


@pytest.fixture
async def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str, Path]:
    """The folder and the Tier 2 of a server with data, and the log of one of its containers."""
    monkeypatch.setattr(limits, "RESTORE_WATCH_S", 0.01)
    data, tier2 = tmp_path / "data", tmp_path / "tier2"
    await serve(data, f"file://{tier2}", fill)
    return data, f"file://{tier2}", tier2 / "log" / str(LOST)


def remove_epochs(log: Path) -> None:
    """Remove all objects of a log but its claims."""
    for folder in log.glob("[0-9]*"):
        shutil.rmtree(folder)


@pytest.mark.parametrize("lost", ["all", "all but the claims", "the last epoch"])
@pytest.mark.parametrize("kinds", ["cas", "s", "ca"], ids=["all objects", "snapshots only", "no snapshots"])
async def test_a_lost_log_among_logs_in_tier_2_is_not_reported_as_restored(
    places: tuple[Path, str, Path], tmp_path: Path, lost: str, kinds: str
) -> None:
    data, url, log = places
    shutil.copytree(log, tmp_path / "earlier")
    await serve(data, url, more)
    if lost == "all":
        shutil.rmtree(log)
    remove_epochs(log)
    if lost == "the last epoch":
        shutil.copytree(tmp_path / "earlier", log, dirs_exist_ok=True)
    for kind in set("cas") - set(kinds):
        shutil.rmtree(log.parent.parent / f"{kind}{LOST}", ignore_errors=True)
    verified = await verify_tier2(url, entropy=SystemEntropy(), progress=lambda *_: None)
    if lost != "the last epoch":
        assert LOST in {problem.container for problem in verified.problems}
    report = await restored(data, url)
    assert not report.whole
    assert [item.container for item in report.containers if item.problem] == [LOST]
    states = await serve(data, url, nothing)
    expected = ["stopped" if each == LOST else "running" for each in (0, 1)]
    assert [state.partition(":")[0] for state in states] == expected


@pytest.mark.parametrize("lost", ["all", "all but the claims"])
async def test_a_log_that_is_brought_back_after_a_restore_is_served(
    places: tuple[Path, str, Path], tmp_path: Path, lost: str
) -> None:
    """docs/operations/troubleshoot.md: "… is gone from the object store | bring the objects back"."""
    data, url, log = places
    shutil.copytree(log, tmp_path / "backup")
    if lost == "all":
        shutil.rmtree(log)
    remove_epochs(log)
    assert not (await restored(data, url)).whole
    shutil.copytree(tmp_path / "backup", log, dirs_exist_ok=True)
    assert not any(item.problem for item in (await restored(data, url)).containers)
    states = await serve(data, url, nothing)
    assert [state.partition(":")[0] for state in states] == ["running", "running"]


async def test_snapshots_alone_show_that_a_log_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without segments has no other object."""
    monkeypatch.setattr(limits, "RESTORE_WATCH_S", 0.01)
    data, tier2 = tmp_path / "data", tmp_path / "tier2"
    await serve(data, f"file://{tier2}", nothing)
    assert not [path for path in tier2.iterdir() if path.name[0] in "ca" and path.is_dir()]
    assert (await verify_tier2(f"file://{tier2}", entropy=SystemEntropy(), progress=lambda *_: None)).healthy
    remove_epochs(tier2 / "log" / str(LOST))
    verified = await verify_tier2(f"file://{tier2}", entropy=SystemEntropy(), progress=lambda *_: None)
    (problem,) = verified.problems
    assert (problem.container, problem.reason) == (LOST, f"log log/{LOST}/ has lost epoch 1, its last one")
    report = await restored(data, f"file://{tier2}")
    assert [item.problem for item in report.containers if item.problem] == [
        f"it cannot be recovered: log log/{LOST}/ has lost epoch 1, its last one"
    ]
