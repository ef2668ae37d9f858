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


@bug("page-cache-trusted-after-failed-sync", _failing_syncs)
def _page_cache_trusted_after_failed_sync(patch: pytest.MonkeyPatch) -> None:
    """What an opening found in the page cache counts as durable, after a sync that failed."""

    async def rewrite(self: FileLog, *_: object) -> None:
        """What was found is not written again."""

    patch.setattr(FileLog, "_rewrite", rewrite)


@bug("damage-taken-for-torn-write", LogWorkload)
def _damage_taken_for_torn_write(patch: pytest.MonkeyPatch) -> None:
    """A damaged frame is taken for a write that a power cut tore."""
    judge = frames.judge_frame

    def lenient(header: frames.FrameHeader, image: memoryview) -> Verdict:
        verdict = judge(header, image)
        return verdict if verdict is frames.COMPLETE else frames.TORN

    patch.setattr(frames, "judge_frame", lenient)


@bug("damage-served", LogWorkload)
def _damage_served(patch: pytest.MonkeyPatch) -> None:
    """Frames are served without a look at their checksum."""
    patch.setattr(frames, "judge_frame", lambda header, image: frames.COMPLETE)
