"""``helm upgrade`` with another memory figure while clients write and read: pods roll one by one, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from harness import kubechart
from harness.figures import Figures
from harness.kubectl import QUIET_POLL_INTERVAL_S, until
from harness.kubeload import Images, Load
from harness.kubesystem import StreamSystem, stream
from harness.pace import Tries

SEGMENTS = 8
MEMORY, MEMORY_BYTES = "1792Mi", 1792 << 20
ROLLED_DEADLINE_S = 400.0
BOUND_S = 3.0
MORE_EVENTS = 1000
TIMEOUT_S = 3 * 900


@pytest.fixture
def upgradable(healthy: StreamSystem) -> Iterator[StreamSystem]:
    """The system, which has its own memory figure again afterwards."""
    yield healthy
    kubechart.install(healthy.kube)
    _until_rolled(healthy, kubechart.STORE_MEMORY_BYTES)


def _memory(system: StreamSystem) -> set[int]:
    """Memory limits of the segment store pods that are not on their way out."""
    pods = system.pod_manifests("segmentstore")
    return {kubechart.bytes_of(pod["spec"]["containers"][0]["resources"]["limits"]["memory"]) for pod in pods}


def _until_rolled(system: StreamSystem, memory_bytes: int) -> None:
    until(
        f"all stores have {memory_bytes} bytes",
        lambda: _memory(system) == {memory_bytes},
        ROLLED_DEADLINE_S,
        interval_s=QUIET_POLL_INTERVAL_S,
    )
    system.until_ready(ROLLED_DEADLINE_S, interval_s=QUIET_POLL_INTERVAL_S)


@pytest.mark.timeout(TIMEOUT_S)
def test_rolls_under_load(upgradable: StreamSystem, images: Images, figures: Figures) -> None:
    tries = Tries("helm upgrade", dict.fromkeys(("tailrace", "java"), BOUND_S))
    for attempt in tries:
        if attempt.number > 1:
            kubechart.install(upgradable.kube)
            _until_rolled(upgradable, kubechart.STORE_MEMORY_BYTES)
        for kind, waited_s in _rolled(upgradable, images).items():
            attempt.note(kind, waited_s)
    for kind, bound_s in tries.bounds_s.items():
        figures.add("helm upgrade", kind, tries.best_s(kind), "s", bound_s)


def _rolled(system: StreamSystem, images: Images) -> dict[str, float]:
    """Upgrade once under load; return the longest wait of each client. Fails unless each event is there once."""
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
        begin_s = time.time()
        kubechart.install(system.kube, store_memory=MEMORY)
        _until_rolled(system, MEMORY_BYTES)
        for load in loads:
            so_far = load.writer.progress()["acknowledged"]
            load.writer.until("acknowledged", so_far + MORE_EVENTS, ROLLED_DEADLINE_S)
        end_s = time.time()
        for load in loads:
            load.finish()
    return {load.kind: load.longest_pause_s(begin_s, end_s) for load in loads}
