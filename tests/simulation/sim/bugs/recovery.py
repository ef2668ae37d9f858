"""Planted bugs that only show when a recovery dies itself."""

from __future__ import annotations

import pytest

from sim.bugs.registry import bug
from sim.workloads.recoverysweep import RecoverySweep
from tailrace.common import limits
from tailrace.log.disk import DiskFile
from tailrace.log.file import FileLog


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
