"""A task that Spark runs twice at once is written once (docs/spark-sink.md#exactly-once)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from tailrace.cli.demo.server import Endpoints

PROGRAM = Path(__file__).parent / "programs" / "speculation.py"
DEADLINE_S = 300.0
ROWS = 900


def test_two_attempts_of_a_task_at_once_are_written_once(
    server: Endpoints, client: BlockingClient, scope: str, tmp_path: Path
) -> None:
    stream = f"{scope}/to"
    client.streams.create_stream(stream, StreamConfig(ScalingPolicy.fixed(2)))
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), server.controller, stream, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    attempts = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert {"2-0", "2-1"} <= attempts, "the slow task and a second attempt had both written half of their rows"
    events = [event for piece in client.slices(stream) for some in client.read_slice(piece) for event in some]
    assert sorted(map(int, events)) == list(range(ROWS))
