"""A start deletes what earlier starts left below ``probe/`` when they were killed (docs/operations/run.md)."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from harness.folderservice import served_folder
from tailrace.cluster.cluster_identity import CLUSTER_KEY, bind_tier2
from tailrace.common.errors import StartError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.worker import cluster_service
from tailrace.segmentstore.worker.cluster_service import ClusterStoreService, ClusterStoreSpec
from tailrace.storage.folder_objects import FolderObjects

LEFT = ("probe/0123456789abcdef", "probe/fedcba9876543210/0/read-0", f"{CLUSTER_KEY}#7000000001")
CLUSTER_ID = str(uuid.UUID(int=7))


def leave(folder: Path) -> None:
    for key in LEFT:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left")
        then_s = path.stat().st_mtime - 2 * 86_400
        os.utime(path, (then_s, then_s))


def left(folder: Path) -> list[str]:
    paths = [*folder.glob("probe/**/*"), *folder.glob("*#*")]
    return sorted(str(path.relative_to(folder)) for path in paths if path.is_file())


def worker_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *, tried: bool, cluster_id: str) -> ClusterStoreService:
    """A worker of a cluster on Kubernetes, without Kubernetes."""

    async def none_taken(*_: Any) -> bool:
        return False

    monkeypatch.setattr(cluster_service, "any_epoch_taken", none_taken)
    spec = ClusterStoreSpec(
        namespace="default",
        cluster="cluster",
        cluster_id=cluster_id,
        container_count=1,
        worker="worker",
        host="127.0.0.1",
        port=1,
        tier2=f"file://{folder}",
        s3_endpoint=None,
        s3_region=None,
        cache_bytes=1,
        attribute_bytes=1,
        tried=tried,
    )
    service = ClusterStoreService(spec, SystemClock(), SystemEntropy(), 1, lambda _: None)
    service._store, service._api = FolderObjects(folder), object()  # type: ignore[assignment]
    return service


@pytest.mark.parametrize("log", ["file", "object"])
async def test_a_server_over_a_folder(tmp_path: Path, log: Any) -> None:
    tier2 = tmp_path / "tier2"
    leave(tier2)
    async with served_folder(tmp_path / "data", 1, tier2=f"file://{tier2}", log=log):
        assert left(tier2) == []
        assert (tier2 / CLUSTER_KEY).exists()


async def test_a_worker_on_kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path)
    await worker_of(tmp_path, monkeypatch, tried=True, cluster_id=CLUSTER_ID)._bind()
    assert left(tmp_path) == sorted(LEFT), "one that was tried out before starts with as few requests as it can"
    await worker_of(tmp_path, monkeypatch, tried=False, cluster_id=CLUSTER_ID)._bind()
    assert left(tmp_path) == []
    assert (tmp_path / CLUSTER_KEY).exists()


async def test_a_worker_deletes_nothing_of_another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await bind_tier2(FolderObjects(tmp_path), "Tier 2", str(uuid.UUID(int=8)), 1, bound=False)
    leave(tmp_path)
    with pytest.raises(StartError, match="belongs to cluster"):
        await worker_of(tmp_path, monkeypatch, tried=False, cluster_id=CLUSTER_ID)._bind()
    assert left(tmp_path) == sorted(LEFT)
