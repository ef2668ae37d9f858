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


@bug("recovery-empties-what-it-rewrites", RecoverySweep)
def _recovery_empties_what_it_rewrites(patch: pytest.MonkeyPatch) -> None:
    """A recovery cuts off the frames that it writes again: one that dies in between has lost them."""

    async def rewrite(self: FileLog, handle: DiskFile, offset: int, end: int) -> None:
        pieces = []
        for start in range(offset, end, limits.LOG_SCAN_WINDOW_BYTES):
            pieces.append(await handle.pread(start, min(end - start, limits.LOG_SCAN_WINDOW_BYTES)))
        handle.truncate(offset)
        for piece in pieces:
            handle.pwrite(offset, [piece])
            offset += len(piece)

    patch.setattr(FileLog, "_rewrite", rewrite)


@bug("container-commits-after-successor", Tier2Workload, words="its successor began")
def _container_commits_after_successor(patch: pytest.MonkeyPatch) -> None:
    """The log of a container takes the present owner for the only one: it never looks at later claims."""

    async def look(self: ObjectLog) -> None:
        self._owned_at_s = asyncio.get_running_loop().time()

    patch.setattr(ObjectLog, "_look", look)
