"""A cluster whose logs are in Tier 2, of which one is lost: the restore does not report that container as restored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.cluster import segment_mapping
from tailrace.cluster.data_folder import open_data_folder
from tailrace.common import limits
from tailrace.common.errors import DataLossError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.restore.cluster import restore_cluster
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec
from tailrace.segmentstore.worker.worker import Worker

A, B = "scope/a/0.#epoch.0", "scope/b/0.#epoch.0"


async def serve(data: Path, url: str, work) -> list[str]:
    folder = open_data_folder(data, containers=2, tier2=url, entropy=SystemEntropy(), log="object")
    spec = StoreSpec(str(data), url, None, folder.manifest.cluster_id, 2, (0, 1), limits.CACHE_MIN_BYTES, log="object")
    service = StoreService(spec, SystemClock(), SystemEntropy())
    try:
        await service.start()
        await work(service.worker)
        return [f"{each.state}: {each.reason}" for each in service.worker.status()]
    finally:
        await service.close()
        folder.close()


async def fill(worker: Worker) -> None:
    for name in (A, B):
        container = worker.container_for(name)
        await container.create_segment(name)
        await container.append(name, [name.encode() * 1000])
        await container.flush_to_storage()


async def nothing(worker: Worker) -> None:
    pass


async def test_a_lost_log_among_logs_in_tier_2_is_not_reported_as_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESTORE_WATCH_S", 0.01)
    data, tier2 = tmp_path / "data", tmp_path / "tier2"
    url = f"file://{tier2}"
    await serve(data, url, fill)
    shutil.rmtree(data)
    lost = segment_mapping.container_of(A, 2)
    shutil.rmtree(tier2 / "log" / str(lost))
    report = await restore_cluster(
        data, tier2=url, clock=SystemClock(), entropy=SystemEntropy(), progress=lambda done, total: None
    )
    assert [item.container for item in report.containers if item.problem] == [lost]
    states = await serve(data, url, nothing)
    assert [state.partition(":")[0] for state in states] == [
        "stopped" if each == lost else "running" for each in (0, 1)
    ]


async def test_a_log_that_is_brought_back_after_a_restore_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/operations/troubleshoot.md: "its log is gone from the object store | bring the objects back"."""
    monkeypatch.setattr(limits, "RESTORE_WATCH_S", 0.01)
    data, tier2 = tmp_path / "data", tmp_path / "tier2"
    url = f"file://{tier2}"
    await serve(data, url, fill)
    lost = tier2 / "log" / str(segment_mapping.container_of(A, 2))
    for attempt in range(2):  # the second restore finds everything as it was before the loss
        shutil.rmtree(data)
        if not attempt:
            lost.rename(tmp_path / "backup")
        try:
            await restore_cluster(
                data, tier2=url, clock=SystemClock(), entropy=SystemEntropy(), progress=lambda done, total: None
            )
        except DataLossError:
            data.mkdir(exist_ok=True)
        if not attempt:
            (tmp_path / "backup").rename(lost)
    states = await serve(data, url, nothing)
    assert all(not state.startswith("stopped") for state in states), states
