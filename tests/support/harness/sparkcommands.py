"""Commands of Spark jobs as processes, which tests kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.client import BlockingClient

DEADLINE_S = 600.0
POLL_S = 0.05


def kill_when_it_writes(client: BlockingClient, stream: str, *arguments: str) -> int:
    """Run ``tailrace pipeline`` with these words, and kill it once the stream has events. Return their number then.

    Its job must have many batches, so that it does not end before.
    """
    command = [sys.executable, "-m", "tailrace.cli", "pipeline", *arguments]
    settings = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]
    killed = subprocess.Popen(
        [*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not any(client.streams.tail(stream).positions.values()):
            assert killed.poll() is None, killed.communicate()[1]
            assert time.monotonic() < deadline, "no event came"
            time.sleep(POLL_S)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate(timeout=DEADLINE_S)
    assert killed.returncode == -signal.SIGKILL
    return sum(len(events) for piece in client.slices(stream) for events in client.read_slice(piece))
