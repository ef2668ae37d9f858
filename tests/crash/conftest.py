"""What the tests of real processes share: the checks of the published Python client, and MinIO servers to kill."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.minio import MinioProcess

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def python_scripts() -> Path:
    """The checks of the published Python client."""
    return REPOSITORY / "tests/compat/python/scripts"


@pytest.fixture
async def minio(minio_binary: Path, tmp_path: Path) -> AsyncIterator[MinioProcess]:
    """A MinIO server of this test."""
    async with MinioProcess(minio_binary, tmp_path / "minio") as made:
        yield made
