"""Planted bugs of the file log."""

from __future__ import annotations

import pytest

from sim.bugs.registry import bug
from sim.disk import AttachedDisk, SimFile
from sim.workloads.log import LogWorkload
from tailrace.log import frames
from tailrace.log.file import FileLog
from tailrace.log.frames import Verdict


def _failing_syncs(seed: int) -> LogWorkload:
    workload = LogWorkload(seed)
    workload.world.disk.sync_error_chance = 0.02
    workload.power_cuts = True
    return workload


@bug(
    "acknowledge-before-fsync", LogWorkload, checker="workloads/log.py", words="was acknowledged, recovered only below"
)
def _acknowledge_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """The log acknowledges a frame without syncing its bytes.

    Breaks: an acknowledged event survives a power cut.
    """

    async def sync(self: SimFile) -> None:
        """Returns at once, nothing is on the platter."""

    patch.setattr(SimFile, "sync", sync)


@bug("directory-not-synced", LogWorkload, checker="workloads/log.py", words="was acknowledged, recovered only below")
def _directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    """The directory entry of a new log file is never synced.

    Breaks: an acknowledged event survives a power cut.
    """

    async def sync_directory(self: AttachedDisk, directory: str) -> None:
        """Returns at once, entries are not on the platter."""

    patch.setattr(AttachedDisk, "sync_directory", sync_directory)


@bug(
    "page-cache-trusted-after-failed-sync",
    _failing_syncs,
    checker="checks/undamaged.py",
    words="(an opening|a scan) of the log reports DataLossError",
)
def _page_cache_trusted_after_failed_sync(patch: pytest.MonkeyPatch) -> None:
    """After a failed sync, an opening takes the contents of the page cache for durable.

    Breaks: an acknowledged event survives a power cut.
    """

    async def rewrite(self: FileLog, *_: object) -> None:
        """What was found is not written again."""

    patch.setattr(FileLog, "_rewrite", rewrite)


@bug(
    "damage-taken-for-torn-write",
    LogWorkload,
    checker="workloads/log.py",
    words="a flipped bit .* (was not noticed|looks like a loss)",
)
def _damage_taken_for_torn_write(patch: pytest.MonkeyPatch) -> None:
    """Recovery takes a damaged frame for a write that a power cut tore.

    Breaks: a flipped bit is reported with its place.
    """
    judge = frames.judge_frame

    def lenient(header: frames.FrameHeader, image: memoryview) -> Verdict:
        verdict = judge(header, image)
        return verdict if verdict is frames.COMPLETE else frames.TORN

    patch.setattr(frames, "judge_frame", lenient)


@bug(
    "damage-served",
    LogWorkload,
    checker="workloads/log.py",
    words="is not what was appended|a tool is shown another frame",
)
def _damage_served(patch: pytest.MonkeyPatch) -> None:
    """Recovery serves frames without comparing their checksums.

    Breaks: damage is never served.
    """
    patch.setattr(frames, "judge_frame", lambda header, image: frames.COMPLETE)
