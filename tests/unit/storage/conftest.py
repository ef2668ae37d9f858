"""A store in a folder, on a disk whose syncs fail or wait as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.folderdisk import FolderDisk
from tailrace.storage.folder_objects import FolderObjects


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderDisk:
    return FolderDisk(monkeypatch, tmp_path)


@pytest.fixture
def store(disk: FolderDisk) -> FolderObjects:
    return FolderObjects(disk.root)


@pytest.fixture
async def threads(disk: FolderDisk) -> AsyncIterator[None]:
    """As many threads as a test needs that holds some, on any machine."""
    with ThreadPoolExecutor(16) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        yield
        disk.release()
