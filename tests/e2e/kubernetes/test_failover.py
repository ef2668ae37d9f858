"""Whatever dies, freezes or goes away for a while: nothing is lost, doubled or reordered, and writers wait little."""

from __future__ import annotations

import os
import time

import pytest

from harness.figures import Figure, Figures
from harness.kubefaults import ALL, SHORT, Fault
from harness.kubeload import Images, Load
from harness.kubesystem import StreamSystem, stream
from harness.pace import Pace

FULL = os.environ.get("TAILRACE_TEST_PROFILE") == "full"
KINDS = ("tailrace", "java") if FULL else ("tailrace",)
SEGMENTS = 8
AFTERWARDS_DEADLINE_S = 120.0
RUN_ON_EVENTS = 1000


@pytest.mark.parametrize("fault", ALL if FULL else SHORT, ids=lambda fault: fault.name.replace(" ", "-"))
def test_nothing_is_lost(fault: Fault, healthy: StreamSystem, images: Images, figures: Figures) -> None:
    with (
        stream(healthy, "ours", "failover", SEGMENTS) as ours,
        stream(healthy, "theirs", "failover", SEGMENTS) as other,
    ):
        streams = dict(zip(("tailrace", "java"), (ours, other), strict=True))
        loads = [Load(healthy.kube, images, healthy.controller_uri, streams[kind], kind) for kind in KINDS]
        for load in loads:
            load.start()
        for load in loads:
            load.until_flowing()
        before = healthy.epochs()
        victim = healthy.busiest_worker(*(load.stream for load in loads), segments=SEGMENTS)
        pace, begin_s = Pace(), time.time()
        back_s = fault.run(healthy, victim)
        for load in loads:
            load.until_more(AFTERWARDS_DEADLINE_S)
        healthy.until_ready()
        for load in loads:
            so_far = load.writer.progress()["acknowledged"]
            load.writer.until("acknowledged", so_far + RUN_ON_EVENTS, AFTERWARDS_DEADLINE_S)
        end_s, stretch = time.time(), pace.bound_s(1.0)
        after = healthy.epochs()
        for load in loads:
            print(f"{load.kind}: {load.finish()} events, each once and in order")
    measured = [_figure(figures, fault, load, (begin_s, end_s), back_s, stretch) for load in loads]
    exceeded = [figure for figure in measured if not figure.holds]
    assert not exceeded, f"writers waited too long: {exceeded}"
    if not fault.moves:
        assert after == before, "containers moved"


def _figure(
    figures: Figures, fault: Fault, load: Load, span_s: tuple[float, float], back_s: float | None, stretch: float
) -> Figure:
    bound_s = fault.bounds_s[load.kind] * stretch if load.kind in fault.bounds_s else None
    if fault.from_return:
        assert back_s is not None
        ends = [end for begin, end in load.wrote["pauses"] if begin <= back_s <= end]
        return figures.add(
            f"{fault.name}: after its return", load.kind, max(ends, default=back_s) - back_s, "s", bound_s
        )
    return figures.add(fault.name, load.kind, load.longest_pause_s(*span_s), "s", bound_s)
