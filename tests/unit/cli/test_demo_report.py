"""The demo's figures."""

import dataclasses
import json
import math
import socket

import pytest
from rich.console import Console

from tailrace.cli.demo.check import Verdict
from tailrace.cli.demo.report import Figures, Tiers, how_to_connect, percentile, summary, verdict_line
from tailrace.cli.demo.server import Endpoints, free_or_ephemeral

FIGURES = Figures(
    stream="demo/flights-1",
    events=1000,
    payload_bytes=2_000_000,
    writing_s=4.0,
    reading_s=5.0,
    acknowledgement_p50_ms=1.5,
    acknowledgement_p99_ms=20.25,
    read_by=(400, 600),
    killed_after=500,
    outage_s=0.75,
    tiers=Tiers(log_bytes=123, untiered_bytes=7, tier2_objects=4, tier2_bytes=456),
    verdict=Verdict(1000, 0, 0, 0, 0),
)
READY = (
    '{"controller": "tcp://127.0.0.1:9090", "rest": "http://127.0.0.1:1", "admin": "http://127.0.0.1:2", '
    '"stores": ["127.0.0.1:3"], "pid": 7}'
)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([5.0], 0.5, 5.0), ([1.0, 2.0], 0.5, 1.0), ([1.0, 2.0, 3.0], 0.5, 2.0), ([1.0, 2.0], 0.99, 2.0), ([4.0], 1, 4.0)],
)
def test_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(percentile([], 0.5))


def test_rates() -> None:
    assert FIGURES.events_per_s == 250
    assert FIGURES.megabytes_per_s == 0.5


def test_json_holds_the_verdict() -> None:
    fields = json.loads(json.dumps(FIGURES.as_json()))
    assert fields["events_per_s"] == 250
    assert fields["right"] is True
    wrong = dataclasses.replace(FIGURES, verdict=Verdict(999, 1, 0, 0, 0))
    assert wrong.as_json()["right"] is False
    assert wrong.as_json()["missing"] == 1


def test_summary_shows_every_figure() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(summary(FIGURES))
    text = captured.get()
    for figure in ("250 events/s", "0.5 MB/s", "p50 1.5 ms", "p99 20.2 ms", "123 bytes", "7 not yet", "4 objects"):
        assert figure in text
    assert "400 + 600" in text


def test_wrong_delivery_is_reported_in_numbers() -> None:
    assert verdict_line(Verdict(10, 1, 2, 3, 4)) == ("WRONG: 1 missing, 2 duplicated, 3 out of order, 4 never written")


def test_ready_file_names_the_ports_and_the_way_to_connect() -> None:
    endpoints = Endpoints.parse(READY)
    assert endpoints.ports() == {"controller": 9090, "rest": 1, "store": 3, "admin": 2}
    assert "TAILRACE_CONTROLLER=tcp://127.0.0.1:9090" in how_to_connect(endpoints, "demo/flights")


def test_taken_port_falls_back_to_an_ephemeral_one() -> None:
    with socket.socket() as taken, socket.socket() as free:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free.bind(("127.0.0.1", 0))
        ports = {"controller": taken.getsockname()[1], "rest": free.getsockname()[1]}
        free.close()
        assert free_or_ephemeral(ports) == {"controller": 0, "rest": ports["rest"]}
