"""``helm upgrade`` with another memory figure while clients write and read: pods roll one by one, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from harness import kubechart
from harness.figures import Figures
from harness.kubectl import until
from harness.kubeload import Images, Load
from harness.kubesystem import StreamSystem, stream
from harness.pace import Pace

SEGMENTS = 8
MEMORY, MEMORY_BYTES = "1792Mi", 1792 << 20
ROLLED_DEADLINE_S = 400.0
BOUND_S = 3.0
MORE_EVENTS = 1000


@pytest.fixture
def upgradable(healthy: StreamSystem) -> Iterator[StreamSystem]:
    """The system, which has its own memory figure again afterwards."""
    yield healthy
    kubechart.install(healthy.kube)
    _until_rolled(healthy, kubechart.STORE_MEMORY_BYTES)


def _memory(system: StreamSystem) -> dict[str, int]:
    """Memory limits of the segment store pods that are not on their way out."""
    found = {}
    for name in system.pods("segmentstore"):
        limit = system.kube.get("pod", name)["spec"]["containers"][0]["resources"]["limits"]["memory"]
        found[name] = kubechart.bytes_of(limit)
    return found


def _until_rolled(system: StreamSystem, memory_bytes: int) -> None:
    until(
        f"all stores have {memory_bytes} bytes",
        lambda: set(_memory(system).values()) == {memory_bytes},
        ROLLED_DEADLINE_S,
    )
    system.until_ready(ROLLED_DEADLINE_S)


def test_rolls_under_load(upgradable: StreamSystem, images: Images, figures: Figures) -> None:
    system = upgradable
    with (
        stream(system, "rolled", "upgrade", SEGMENTS) as ours,
        stream(system, "rolled-java", "upgrade", SEGMENTS) as other,
    ):
        loads = [
            Load(system.kube, images, system.controller_uri, ours),
            Load(system.kube, images, system.controller_uri, other, "java"),
        ]
        for load in loads:
            load.start()
        for load in loads:
            load.until_flowing()
        pace, begin_s = Pace(), time.time()
        kubechart.install(system.kube, store_memory=MEMORY)
        _until_rolled(system, MEMORY_BYTES)
        for load in loads:
            so_far = load.writer.progress()["acknowledged"]
            load.writer.until("acknowledged", so_far + MORE_EVENTS, ROLLED_DEADLINE_S)
        end_s, bound_s = time.time(), pace.bound_s(BOUND_S)
        for load in loads:
            load.finish()
    measured = [
        figures.add("helm upgrade", load.kind, load.longest_pause_s(begin_s, end_s), "s", bound_s) for load in loads
    ]
    assert all(figure.holds for figure in measured), measured
