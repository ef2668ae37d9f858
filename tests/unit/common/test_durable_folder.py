"""Small files that are replaced whole: also on a disk that has no room, when room was kept."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tailrace.common import durable_folder
from tailrace.common.durable_folder import RealFolderFiles


def test_a_file_for_which_room_was_kept_is_replaced_in_blocks_that_it_has(tmp_path: Path) -> None:
    """The next content goes where room was kept; the present one is not touched before the rename."""
    files, path = RealFolderFiles(), tmp_path / "0.json"
    for number in range(4):
        if number:
            files.keep_room(str(path), 100)
            kept = (tmp_path / "0.part").stat()
            assert kept.st_size == 100
            assert path.read_bytes() == b"content %d" % (number - 1)
        files.replace_file(str(path), b"content %d" % number)
        assert path.read_bytes() == b"content %d" % number
        if number:
            assert path.stat().st_ino == kept.st_ino
        assert not (tmp_path / "0.part").exists()


@pytest.mark.parametrize(("number", "raised"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EIO, True)])
def test_a_full_disk_keeps_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raised: bool
) -> None:
    def fail(path: str, content: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(durable_folder, "_write_part", fail)
    if raised:
        with pytest.raises(OSError, match="error"):
            RealFolderFiles().keep_room(str(tmp_path / "0.json"), 100)
    else:
        RealFolderFiles().keep_room(str(tmp_path / "0.json"), 100)
