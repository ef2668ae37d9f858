"""`make run EXIT=1` in small: the real data set through a server that is killed midway."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EVENTS = 20_000
DEADLINE_S = 240


@pytest.fixture
def taken_controller_port() -> Iterator[None]:
    """A process listens on the controller's usual port: this test or another program."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 9090))
            other.listen()
        except OSError:
            pass  # taken already, which is what is wanted
        yield


@pytest.mark.timeout(DEADLINE_S + 30)
def test_every_event_arrives_once_and_in_order_although_the_server_is_killed(
    tmp_path: Path, taken_controller_port: None
) -> None:
    data = tmp_path / "data"
    command = [*(sys.executable, "-m", "tailrace.cli.demo", "--exit", "--json"), f"--events={EVENTS}", f"--data={data}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout)
    assert figures["right"] is True
    assert figures["arrived"] == figures["events"] == sum(figures["read_by"]) == EVENTS
    assert (figures["missing"], figures["duplicated"], figures["out_of_order"], figures["invented"]) == (0, 0, 0, 0)
    assert EVENTS // 2 <= figures["killed_after_events"] < EVENTS
    assert figures["outage_s"] > 0
    assert figures["acknowledgement_p50_ms"] <= figures["acknowledgement_p99_ms"]
    assert figures["tier1_bytes"] > 0
    recoveries = [line for line in (data / "server.log").read_text().splitlines() if "container_recovered" in line]
    assert len({json.loads(line)["epoch"] for line in recoveries}) == 2, "the server did not start twice"
