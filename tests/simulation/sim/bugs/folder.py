"""Planted bugs of the epochs and logs of a data folder."""

from __future__ import annotations

import pytest

from sim.bugs.registry import bug
from sim.workloads.server import ServerWorkload
from tailrace.common import limits
from tailrace.log.file import FileLog
from tailrace.segmentstore.worker import folder_logs


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
