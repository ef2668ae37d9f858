"""Worker processes whose parent is killed end without a word (docs/design.md#processes)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.segmentstore.worker.folder_service import StoreSpec
from tailrace.segmentstore.worker.process import Orders, encode_orders


@pytest.mark.parametrize("received", [0, 1, 10], ids=["nothing", "a byte", "ten bytes"])
async def test_a_worker_whose_orders_are_cut_off_ends(received: int, tmp_path: Path) -> None:
    spec = StoreSpec(str(tmp_path), "", None, bytes(16).hex(), 1, (0,), 1 << 26)
    line = encode_orders(Orders(spec, 100, 101))
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tailrace.segmentstore.worker.process"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, complained = await worker.communicate(line[:received])
    assert (worker.returncode, said, complained) == (0, b"", b"")
