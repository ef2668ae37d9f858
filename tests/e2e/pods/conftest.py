"""A cluster's processes, as its pods run them, against a Kubernetes API over HTTP and a real MinIO."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.minio import MinioProcess
from harness.pods import Pods, pods_of_a_cluster


@pytest.fixture
async def pods(minio: MinioProcess, tmp_path: Path) -> AsyncIterator[Pods]:
    """A cluster without any process yet."""
    async with pods_of_a_cluster(tmp_path / "pods", minio) as made:
        yield made
