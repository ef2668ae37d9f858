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


async def test_a_lost_log_among_logs_in_tier_2_is_not_reported_as_restored(places: tuple[Path, str, Path]) -> None:
    data, url, log = places
    shutil.rmtree(log)
    report = await restored(data, url)
    assert [item.container for item in report.containers if item.problem] == [LOST]
    states = await serve(data, url, nothing)
    expected = ["stopped" if each == LOST else "running" for each in (0, 1)]
    assert [state.partition(":")[0] for state in states] == expected


async def test_a_log_that_is_brought_back_after_a_restore_is_served(
    places: tuple[Path, str, Path], tmp_path: Path
) -> None:
    """docs/operations/troubleshoot.md: "its log is gone from the object store | bring the objects back"."""
    data, url, log = places
    log.rename(tmp_path / "backup")
    await restored(data, url)
    (tmp_path / "backup").rename(log)
    assert not any(item.problem for item in (await restored(data, url)).containers)
    states = await serve(data, url, nothing)
    assert [state.partition(":")[0] for state in states] == ["running", "running"]
