"""Planted bugs of the epochs and logs of a data folder."""

from __future__ import annotations

import pytest

from sim.bugs.registry import bug
from sim.disk import AttachedDisk, Directory, Inode
from sim.workloads.server import ServerWorkload
from tailrace.common import limits
from tailrace.log.file import FileLog
from tailrace.segmentstore.worker import folder_logs


@bug(
    "epoch-file-not-synced",
    ServerWorkload,
    checker="workloads/serverfolder.py",
    words="was given epoch .* after epoch",
)
def _epoch_file_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A server uses an epoch although neither the epoch file nor its directory entry is synced.

    Breaks: two owners never get the same epoch.
    """

    def settle_entries(self: AttachedDisk, directory: Directory) -> None:
        """Returns at once, entries are not on the platter."""

    def settle_file(self: AttachedDisk, inode: Inode) -> None:
        """Returns at once, nothing is on the platter."""

    patch.setattr(AttachedDisk, "settle_file", settle_file)
    patch.setattr(AttachedDisk, "settle_entries", settle_entries)


@bug(
    "opened-note-ignored",
    ServerWorkload,
    checker="workloads/serverfolder.py",
    words="was opened although its log is lost",
)
def _opened_note_ignored(patch: pytest.MonkeyPatch) -> None:
    """A server opens a missing log as an empty one, whatever the note of its last opening says.

    Breaks: a container whose log is lost is refused, not served without its events.
    """

    def open_log(self: folder_logs.FileLogs, container_id: int) -> FileLog:
        return FileLog(
            self._disk,
            self._directory(container_id),
            container_id,
            file_bytes=limits.LOG_FILE_BYTES,
            max_frame_bytes=limits.LOG_FRAME_MAX_BYTES,
            reserve_bytes=limits.LOG_RESERVE_BYTES,
        )

    patch.setattr(folder_logs.FileLogs, "open_log", open_log)


@bug(
    "objects-of-lost-folder-ignored",
    ServerWorkload,
    checker="workloads/serverfolder.py",
    words="was opened although its log is lost",
)
def _objects_of_lost_folder_ignored(patch: pytest.MonkeyPatch) -> None:
    """A server whose epochs are lost takes a container for a new one, although Tier 2 holds its objects.

    Breaks: a container whose log is lost is refused, not served without its events.
    """

    async def epoch_of_objects(*_: object) -> int:
        return 0

    patch.setattr(folder_logs, "epoch_of_objects", epoch_of_objects)
