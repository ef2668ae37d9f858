"""A small file system that a test can fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK = bytes(1024 * 1024)


class SmallDisk:
    """A tmpfs. ``fill`` takes all of its space, ``make_room`` gives that back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Use every byte that is left."""
        with self._filler.open("ab", buffering=0) as file:
            for piece in (_CHUNK, _CHUNK[:4096]):
                try:
                    while file.write(piece) == len(piece):
                        pass
                except OSError:  # no space is what this is for
                    continue
        assert self.free_bytes == 0

    def make_room(self) -> None:
        """Remove the filling."""
        self._filler.unlink()

    @property
    def free_bytes(self) -> int:
        """What is left."""
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize


@contextmanager
def small_disk(folder: Path, size_mib: int) -> Iterator[SmallDisk]:
    """A tmpfs of its own on a folder. Fails where mounting is not permitted: it needs CAP_SYS_ADMIN."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tailrace-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        raise RuntimeError(
            f"this test mounts a small tmpfs, which is not permitted here (run it as root): {mounted.stderr.strip()}"
        )
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
