"""The object log in a folder acknowledges, and a new owner counts, only what survives a power cut."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harness.folderdisk import FolderDisk
from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.log.object import ObjectLog
from tailrace.log.object_keys import LogKeys
from tailrace.storage.folder_objects import FolderObjects

KEYS = LogKeys(7)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderDisk:
    monkeypatch.setattr(limits, "LOG_OBJECT_RETRY_MIN_S", 0.0001)
    monkeypatch.setattr(limits, "LOG_OBJECT_RETRY_MAX_S", 0.001)
    return FolderDisk(monkeypatch, tmp_path)


async def opened(disk: FolderDisk, epoch: int) -> ObjectLog:
    log = ObjectLog(FolderObjects(disk.root), KEYS.container, max_frame_bytes=64 * 1024)
    await log.open(epoch, epoch.to_bytes(16, "big"))
    return log


async def failed(disk: FolderDisk, folder: str, times: int, future: asyncio.Future[Any]) -> None:
    """Wait until so many syncs of a folder have failed, or the future is done, too early."""
    async with asyncio.timeout(120.0):
        while disk.failures[disk.root / folder] < times and not future.done():  # noqa: ASYNC110 - the log has no event for it
            await asyncio.sleep(0.001)


async def test_an_append_is_acknowledged_once_its_frame_survives(disk: FolderDisk) -> None:
    log = await opened(disk, 1)
    survived: list[bool] = []
    disk.fail(KEYS.epoch(1))
    future = log.append([b"event"])
    future.add_done_callback(lambda _: survived.append(disk.survives(KEYS.frame(1, 0))))
    await failed(disk, KEYS.epoch(1), 6, future)  # at least two rounds of a put, and of a look whether it is stored
    assert not future.done()
    disk.fail()
    assert await future == 0
    assert survived == [True]
    await log.close()


async def test_a_log_opens_once_its_claim_survives(disk: FolderDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first put of the claim fails; the next ones find it."""
    monkeypatch.setattr(limits, "LOG_OBJECT_OPEN_ATTEMPTS", 1_000_000)
    folder = f"{KEYS.folder}claims"
    disk.fail(folder)
    opening = asyncio.ensure_future(opened(disk, 1))
    await failed(disk, folder, 6, opening)
    assert not opening.done()
    disk.fail()
    log = await opening
    assert disk.survives(KEYS.claim(1))
    await log.close()


async def left_unsynced(disk: FolderDisk) -> None:
    """Leave a frame whose owner was killed before it synced it."""
    log = await opened(disk, 1)
    for sequence in range(2):
        assert await log.append([b"event"]) == sequence
    await log.close()
    disk.unsync(KEYS.frame(1, 1))


async def test_a_new_owner_makes_durable_what_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FolderDisk(monkeypatch, tmp_path, forgives=True)
    await left_unsynced(disk)
    log = await opened(disk, 2)
    assert log.next_sequence == 2
    assert disk.survives(KEYS.frame(1, 0))
    assert disk.survives(KEYS.frame(1, 1))
    await log.close()


async def test_a_new_owner_begins_nothing_while_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FolderDisk(monkeypatch, tmp_path, forgives=True)
    monkeypatch.setattr(limits, "LOG_OBJECT_RETRY_MAX_S", 0.001)
    await left_unsynced(disk)
    disk.fail(KEYS.epoch(1))
    with pytest.raises(UnavailableError, match="Input/output error"):
        await opened(disk, 2)
    assert not (disk.root / KEYS.start(2)).exists()
    disk.fail()
    log = await opened(disk, 3)
    assert log.next_sequence == 2
    assert disk.survives(KEYS.frame(1, 1))
    await log.close()


async def test_a_new_owner_makes_all_epochs_durable_that_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FolderDisk(monkeypatch, tmp_path, forgives=True)
    for epoch in (1, 2):
        log = await opened(disk, epoch)
        assert await log.append([b"event"]) == epoch - 1
        await log.close()
    for epoch in (1, 2):
        disk.unsync(KEYS.frame(epoch, epoch - 1))
    log = await opened(disk, 3)
    assert log.next_sequence == 2
    for epoch in (1, 2):
        assert disk.survives(KEYS.frame(epoch, epoch - 1))
    await log.close()
