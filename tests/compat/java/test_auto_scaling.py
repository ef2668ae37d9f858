"""A stream of the published Java client that scales by its rate, in a server whose minutes are short.

See docs/controller.md#automatic-scaling.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harness.server import Server

OPTIONS = ("--cache", "64MiB", "--scaling-time-factor", "0.005")
"""Ten minutes are three seconds."""
LIMIT_S = 600


@pytest.mark.timeout(LIMIT_S + 120)
async def test_order_is_kept_while_a_stream_scales(java_class_path: str, run_child: Any, tmp_path: Path) -> None:
    async with Server(tmp_path, options=OPTIONS) as server:
        await server.start()
        options = ["-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", java_class_path]
        command = ["java", *options, "io.tailrace.compat.Main", "scenario", server.controller, "auto-scaling"]
        output = await asyncio.to_thread(run_child, command, LIMIT_S)
        assert "ok auto-scaling" in output
        print(output)
        await server.stop()
        scales = server.log_events("stream_scales")
        assert any(each["splits"] for each in scales)
        assert any(each["merges"] for each in scales)
        await server.verify()
