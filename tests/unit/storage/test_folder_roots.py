"""The folder of a store: made durably, though its first start is killed; opened where only reads work."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from harness.folderdisk import FolderDisk
from tailrace.common.errors import StartError
from tailrace.storage import folder_files
from tailrace.storage.obstores import open_object_store


class Killed(BaseException):
    """The end of a process."""


@pytest.fixture
def url(disk: FolderDisk) -> str:
    """That of a store that another user made."""
    (disk.root / "new/tier2").mkdir(parents=True)
    return f"file://{disk.root}/new/tier2"


@pytest.mark.parametrize("syncs", range(5))
def test_a_root_whose_first_start_was_killed_is_durable_after_the_next(
    disk: FolderDisk, monkeypatch: pytest.MonkeyPatch, syncs: int
) -> None:
    url, sync_folder, left = f"file://{disk.root}/a/b/tier2", folder_files.sync_folder, iter(range(syncs))

    def sync(folder: Path) -> None:
        if next(left, None) is None:
            raise Killed
        sync_folder(folder)

    with monkeypatch.context() as first_start:
        first_start.setattr(folder_files, "sync_folder", sync)
        with contextlib.suppress(Killed):
            open_object_store(url)
    open_object_store(url)
    assert disk.survives("a/b/tier2")


def test_who_only_reads_syncs_nothing(disk: FolderDisk, url: str) -> None:
    disk.fail("new")
    open_object_store(url, create=False)
    assert not disk.syncs


@pytest.mark.parametrize("code", [errno.EROFS, errno.EINVAL, errno.ENOTSUP])
def test_a_root_opens_where_its_parent_cannot_be_synced(disk: FolderDisk, url: str, code: int) -> None:
    disk.fail("new", code=code)
    open_object_store(url)
    assert disk.failures[disk.root / "new"] == 1


def test_a_root_opens_where_a_file_system_is_mounted(
    disk: FolderDisk, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.fail("new")
    with pytest.raises(StartError, match="Input/output error"):
        open_object_store(url)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == disk.root / "new/tier2")
    open_object_store(url)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_root_in_a_folder_of_another_user_opens(
    disk: FolderDisk, url: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    disk.fail("new", code=code)
    open_object_store(url)
    assert disk.failures[disk.root / "new"] == 1


def test_a_root_in_a_folder_that_is_only_written_opens_neither_the_first_time_nor_later(disk: FolderDisk) -> None:
    """Nothing can make its entry durable. The tests' user may write into `new`."""
    (disk.root / "new").mkdir()
    disk.fail("new", code=errno.EACCES)
    for made in (False, True):
        assert (disk.root / "new/tier2").exists() == made
        with pytest.raises(StartError, match="Permission denied"):
            open_object_store(f"file://{disk.root}/new/tier2")


def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StartError, match=f"Tier 2 folder {tmp_path}/file cannot be used: File exists"):
        open_object_store(f"file://{tmp_path}/file")
    with pytest.raises(StartError, match=f"Tier 2 folder {tmp_path}/file/below cannot be used: Not a directory"):
        open_object_store(f"file://{tmp_path}/file/below")
