"""How the programs of a load tell what they do: one JSON object a line on standard output, once a second."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

REPORT_INTERVAL_S = 1.0
TICK_S = 0.05


def tell(kind: str, **values: Any) -> None:
    """Print a line that the tests read."""
    sys.stdout.write(json.dumps({"kind": kind, "at": round(time.time(), 3), **values}) + "\n")
    sys.stdout.flush()


def stop_on_sigterm() -> asyncio.Event:
    """Set when the tests ask the program to come to an end."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    return stopping


async def report_for_ever(progress: Callable[[], dict[str, Any]]) -> None:
    """Tell the progress every second, and how long this program itself stood still."""
    loop = asyncio.get_running_loop()
    stalled_s, last_s, reported_s = 0.0, loop.time(), 0.0
    while True:
        await asyncio.sleep(TICK_S)
        now_s = loop.time()
        stalled_s, last_s = max(stalled_s, now_s - last_s - TICK_S), now_s
        if now_s - reported_s >= REPORT_INTERVAL_S:
            reported_s = now_s
            tell("progress", **progress(), stalled_s=round(stalled_s, 2))
            stalled_s = 0.0
