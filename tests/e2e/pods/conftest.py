"""A cluster's processes, as its pods run them, against a Kubernetes API over HTTP and a real MinIO."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from harness import daily
from harness.minio import MinioProcess
from harness.pods import Pods, pods_of_a_cluster

DAILY = (
    ("pods/test_pods_under_load.py",),
    ("pods/test_live_controllers.py",),
    ("pods/test_store_cut_off.py", "pods/test_many_streams.py"),
    ("pods/test_controller_kills.py", "pods/test_controller_cut_off.py"),
)
"""Faults under load: CI tries some of these groups each day, all other runs try all of them."""
DAILY_COUNT = 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the faults that have their turn on another day."""
    daily.leave_out(config, items, DAILY, DAILY_COUNT)


@pytest.fixture
async def pods(minio: MinioProcess, tmp_path: Path) -> AsyncIterator[Pods]:
    """A cluster without any process yet."""
    async with pods_of_a_cluster(tmp_path / "pods", minio) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept_pods(minio_server: MinioProcess, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pods]:
    """A cluster of two pods and two controllers for all tests of a file; use `whole_pods`."""
    async with pods_of_a_cluster(tmp_path_factory.mktemp("pods"), minio_server) as made:
        await made.start()
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def whole_pods(kept_pods: Pods, minio: MinioProcess) -> Pods:
    """The cluster of a file's tests, whole when each of them begins: what the one before ended runs again."""
    await kept_pods.complete()
    return kept_pods
