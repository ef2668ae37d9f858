"""Planted bugs of the epochs and logs of a data folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sim.bugs.registry import bug
from sim.workloads.server import ServerWorkload
from tailrace.cluster import data_folder, file_epochs
from tailrace.common import limits
from tailrace.common.durable_folder import FolderFiles
from tailrace.log.file import FileLog
from tailrace.segmentstore.container.lifecycle import Lifecycle
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


@bug(
    "opening-noted-before-the-log-has-it",
    ServerWorkload,
    checker="workloads/serverfolder.py",
    words="is taken for lost and is not",
)
def _opening_noted_before_the_log_has_it(patch: pytest.MonkeyPatch) -> None:
    """A container is noted as opened before its first operation is committed: on a full disk its log has no file yet.

    Breaks: a server that was killed on a full disk serves its containers after the next start.
    """

    async def record_opening(self: Lifecycle, committed: asyncio.Future[None]) -> None:
        self._core.ports.log_opened(self._core.epoch)
        await committed

    patch.setattr(Lifecycle, "_record_opening", record_opening)


@bug("epoch-given-before-it-is-written", ServerWorkload, checker="workloads/serverfolder.py", words="was given epoch")
def _epoch_given_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """A container's next epoch is given out, and its file is written only when the log was opened.

    Breaks: no two owners get the same epoch, also when the first one dies before it opened the log.
    """

    def take_epoch(data: Path, container_id: int, floor: int, files: FolderFiles) -> int:
        return max(data_folder.last_epoch(data, container_id, files), floor) + 1

    def note_opened(data: Path, container_id: int, epoch: int, files: FolderFiles) -> None:
        data_folder.take_epoch(data, container_id, epoch - 1, files)
        data_folder.note_opened(data, container_id, epoch, files)

    patch.setattr(file_epochs, "take_epoch", take_epoch)
    patch.setattr(folder_logs, "note_opened", note_opened)
