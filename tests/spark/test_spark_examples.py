"""The programs of examples/spark: flights into a stream, and Spark's answer equal to that of plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from itertools import islice
from pathlib import Path

import pytest

from tailrace.cli.demo.flights import cache_folder, fetch_archive, read_events
from tailrace.cli.demo.server import Endpoints

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "spark"
EVENTS = 20_000
DEADLINE_S = 180.0


def program(name: str, server: Endpoints) -> str:
    """Standard output of an example."""
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env={**os.environ, "TAILRACE_CONTROLLER": server.controller, "EVENTS": str(EVENTS)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


@pytest.mark.timeout(2 * DEADLINE_S + 60)
def test_the_most_delayed_airports(server: Endpoints) -> None:
    assert "20,000 flights" in program("write_flights.py", server)
    rows = [line.strip("|").split("|") for line in program("delayed_airports.py", server).splitlines() if "|" in line]
    shown = [(dest.strip(), int(count), float(mean)) for dest, count, mean in rows[1:]]
    delays = defaultdict(list)
    for flight in islice(read_events(fetch_archive(cache_folder())), EVENTS):
        fields = json.loads(flight.data)
        if fields["arr_delay"] not in ("", "NA"):
            delays[fields["dest"]].append(float(fields["arr_delay"]))
    means = [(dest, len(each), sum(each) / len(each)) for dest, each in delays.items() if len(each) >= 100]
    expected = sorted(means, key=lambda row: (-round(row[2], 1), row[0]))[:10]
    assert [(dest, count) for dest, count, _ in shown] == [(dest, count) for dest, count, _ in expected]
    assert [mean for *_, mean in shown] == pytest.approx([mean for *_, mean in expected], abs=0.051)
