"""Whatever dies, freezes or goes away for a while: nothing is lost, doubled or reordered, and writers wait little."""

from __future__ import annotations

import os
import time

import pytest

from harness import sequences
from harness.figures import Figures
from harness.kubefaults import ALL, SHORT, Fault
from harness.kubeload import Images, Load
from harness.kubesystem import StreamSystem, stream
from harness.pace import Tries

FULL = os.environ.get("TAILRACE_TEST_PROFILE") == "full"
KINDS = ("tailrace", "java") if FULL else ("tailrace",)
SEGMENTS = 8
AFTERWARDS_DEADLINE_S = 120.0
RUN_ON_EVENTS = 1000
TIMEOUT_S = 3 * 900


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("fault", ALL if FULL else SHORT, ids=lambda fault: fault.name.replace(" ", "-"))
def test_nothing_is_lost(fault: Fault, healthy: StreamSystem, images: Images, figures: Figures) -> None:
    name = f"{fault.name}: after its return" if fault.from_return else fault.name
    tries = Tries(name, {kind: fault.bounds_s[kind] for kind in KINDS})
    try:
        for attempt in tries:
            healthy.until_ready()
            for kind, waited_s in _waits(fault, healthy, images).items():
                attempt.note(kind, waited_s)
    finally:
        if tries.done:
            for kind, bound_s in tries.bounds_s.items():
                figures.add(name, kind, tries.best_s(kind), "s", bound_s)


def _waits(fault: Fault, system: StreamSystem, images: Images) -> dict[str, float]:
    """Run the fault once under load; return the longest wait of each client.

    Fails when an event is lost, doubled or reordered, or a container moved that must not.
    """
    with (
        stream(system, "ours", "failover", SEGMENTS) as ours,
        stream(system, "theirs", "failover", SEGMENTS) as other,
    ):
        streams = dict(zip(("tailrace", "java"), (ours, other), strict=True))
        loads = [Load(system.kube, images, system.controller_uri, streams[kind], kind) for kind in KINDS]
        for load in loads:
            load.start()
        for load in loads:
            load.until_flowing()
        before = system.epochs()
        victim = system.busiest_worker(*(load.stream for load in loads), segments=SEGMENTS)
        begin_s = time.time()
        away_until_s = fault.run(system, victim)
        for load in loads:
            load.until_more(AFTERWARDS_DEADLINE_S)
        system.until_ready()
        for load in loads:
            so_far = load.writer.progress()["acknowledged"]
            load.writer.until("acknowledged", so_far + RUN_ON_EVENTS, AFTERWARDS_DEADLINE_S)
        end_s = time.time()
        after = system.epochs()
        for load in loads:
            print(f"{load.kind}: {load.finish()} events, each once and in order")
    if not fault.moves:
        assert after == before, "containers moved"
    if not fault.from_return:
        return {load.kind: load.longest_pause_s(begin_s, end_s) for load in loads}
    assert away_until_s is not None
    return {load.kind: sequences.end_of_pause_s(load.wrote["pauses"], away_until_s) for load in loads}
