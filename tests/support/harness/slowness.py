"""Slows a process of tests at random, as a machine does that is short of processor and disk.

No test's outcome may depend on the machine's pace. On a fast machine, wrong assumptions hold for years: that 10 ms pass
before a write to disk has ended, or that two tasks go on in the order in which they were started. With
``TAILRACE_TEST_SLOWNESS=SECONDS`` the event loop stops for up to that long now and then, calls in threads start
and end late, and syncs of files take long (CONTRIBUTING.md#tests).
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import os
import random
import time
from collections.abc import Callable
from typing import Any

LOOP_STOPS = 1 / 100
"""The part of callbacks of an event loop before which the process stops."""
THREAD_WAITS = 1 / 3
"""The part of calls in threads that start late, and of those that end late."""
SYNC_WAITS = 1 / 3
"""The part of syncs of files and folders that take long."""
SHORT_S = 0.02
LONG_ONES = 1 / 5
"""The part of waits that take up to the longest wait, not SHORT_S."""


def install(seed: int, longest_s: float) -> None:
    """Slow this process until it ends; the draws come from the seed, in the order in which threads ask for them."""
    draws = random.Random(seed)
    sleep = time.sleep

    def wait(part: float) -> None:
        if draws.random() < part and time.sleep is sleep:  # else a simulation runs, whose time does not depend on ours
            sleep(draws.uniform(0, longest_s if draws.random() < LONG_ONES else SHORT_S))

    def around(call: Callable[..., Any], before: float, after: float = 0.0) -> Callable[..., Any]:
        def slowed(*args: Any, **options: Any) -> Any:
            wait(before)
            try:
                return call(*args, **options)
            finally:
                if after:
                    wait(after)

        return slowed

    patched: Any = asyncio.Handle
    patched._run = around(patched._run, LOOP_STOPS)
    work: Any = concurrent.futures.thread._WorkItem  # type: ignore[attr-defined]
    work.run = around(work.run, THREAD_WAITS, THREAD_WAITS)
    os.fsync = around(os.fsync, SYNC_WAITS)
    os.fdatasync = around(os.fdatasync, SYNC_WAITS)
