"""Threads of a test's event loop."""

from __future__ import annotations

import asyncio
from typing import Any


def end_threads() -> None:
    """Wait for what the running loop has given to threads: a put that was given up goes on, and may add a file."""
    loop: Any = asyncio.get_running_loop()
    threads, loop._default_executor = loop._default_executor, None  # the loop makes new ones when it needs some
    if threads is not None:
        threads.shutdown(wait=True)
