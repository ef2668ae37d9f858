"""Planted bugs that show when a recovery dies itself, or when an owner lives on beside its successor."""

from __future__ import annotations

import asyncio

import pytest

from sim.bugs.registry import bug
from sim.workloads.recoverysweep import RecoverySweep
from sim.workloads.tier2 import Tier2Workload
from tailrace.common import limits
from tailrace.log.disk import DiskFile
from tailrace.log.file import FileLog
from tailrace.log.object import ObjectLog


@bug(
    "recovery-empties-what-it-rewrites",
    RecoverySweep,
    checker="checks/monotonic.py",
    words="is the last one, .* was shown|length .* after",
)
def _recovery_empties_what_it_rewrites(patch: pytest.MonkeyPatch) -> None:
    """A recovery cuts off the frames that it then writes again, so a crash in between loses them.

    Breaks: a recovery that follows an interrupted recovery comes to the same state.
    """

    async def rewrite(self: FileLog, handle: DiskFile, offset: int, end: int) -> None:
        pieces = []
        for start in range(offset, end, limits.LOG_SCAN_WINDOW_BYTES):
            pieces.append(await handle.pread(start, min(end - start, limits.LOG_SCAN_WINDOW_BYTES)))
        handle.truncate(offset)
        for piece in pieces:
            handle.pwrite(offset, [piece])
            offset += len(piece)

    patch.setattr(FileLog, "_rewrite", rewrite)


@bug("container-commits-after-successor", Tier2Workload, checker="checks/fencing.py", words="its successor began")
def _container_commits_after_successor(patch: pytest.MonkeyPatch) -> None:
    """A container's log never checks for later claims.

    Breaks: an owner that was replaced commits nothing.
    """

    async def look(self: ObjectLog) -> None:
        self._owned_at_s = asyncio.get_running_loop().time()

    patch.setattr(ObjectLog, "_look", look)
