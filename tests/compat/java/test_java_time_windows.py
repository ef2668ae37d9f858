"""Time windows of the published Java client's readers, from the watermarks that the server writes.

See docs/controller.md#watermarks.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harness.server import Server

OPTIONS = ("--cache", "64MiB", "--watermark-period", "500ms")
LIMIT_S = 600


@pytest.mark.timeout(LIMIT_S + 120)
async def test_events_lie_in_the_time_windows_of_their_reader(
    java_class_path: str, run_child: Any, tmp_path: Path
) -> None:
    async with Server(tmp_path, options=OPTIONS) as server:
        await server.start()
        options = ["-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", java_class_path]
        command = ["java", *options, "io.tailrace.compat.Main", "scenario", server.controller, "time-windows"]
        output = await asyncio.to_thread(run_child, command, LIMIT_S)
        assert "ok time-windows" in output
        print(output)
        await server.stop()
        assert not server.log_events("watermark_failed")
        await server.verify()
