"""Planted bugs of the file log."""

from __future__ import annotations

import pytest

from sim.bugs.registry import bug
from sim.disk import AttachedDisk, SimFile
from sim.workloads.log import LogWorkload


@bug("acknowledge-before-fsync", LogWorkload)
def _acknowledge_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """A frame is acknowledged though its bytes were never synced."""

    async def sync(self: SimFile) -> None:
        """Returns at once, nothing is on the platter."""

    patch.setattr(SimFile, "sync", sync)


@bug("directory-not-synced", LogWorkload)
def _directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A new log file's entry in its directory is never synced."""

    async def sync_directory(self: AttachedDisk, directory: str) -> None:
        """Returns at once, entries are not on the platter."""

    patch.setattr(AttachedDisk, "sync_directory", sync_directory)
