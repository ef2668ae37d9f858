"""Hundreds of resources: all become Ready, and the operator stays small and idle."""

from __future__ import annotations

import time

import pytest

from harness.figures import Figures
from harness.kubechart import CLUSTER
from harness.kubectl import Kubectl, condition_of, until
from harness.kubesystem import StreamSystem, group_manifest, stream_manifest
from harness.kubeusage import usage_of

STREAMS, GROUPS = 500, 50
SCOPE = "many"
READY_S = 900.0
SETTLE_S = 60.0
WATCH_S = 120.0
CPU_BOUND_CORES = 0.10
MEMORY_BOUND_MIB = 256.0


def _all_ready(kube: Kubectl, kind: str, count: int) -> bool:
    items = kube.list(kind)
    ready = sum(condition_of(item, "Ready").get("status") == "True" for item in items)
    return ready >= count


@pytest.mark.timeout(3600)
def test_many_are_ready_and_cost_little(healthy: StreamSystem, figures: Figures) -> None:
    kube = healthy.kube
    restarts = healthy.restarts()
    streams = [stream_manifest(f"s{number}", CLUSTER, SCOPE, deletionPolicy="Delete") for number in range(STREAMS)]
    groups = [
        group_manifest(f"g{number}", CLUSTER, SCOPE, [f"s{number}", f"s{number + GROUPS}"], deletionPolicy="Delete")
        for number in range(GROUPS)
    ]
    began_s = time.time()
    try:
        kube.apply(*streams, deadline_s=300)
        kube.apply(*groups, deadline_s=300)
        until("all Streams are Ready", lambda: _all_ready(kube, "streams", STREAMS), READY_S)
        until("all ReaderGroups are Ready", lambda: _all_ready(kube, "readergroups", GROUPS), READY_S)
        figures.add(f"{STREAMS} Streams and {GROUPS} ReaderGroups Ready", "operator", time.time() - began_s, "s")
        time.sleep(SETTLE_S)  # a steady state is what is measured
        pod = healthy.leading_operator()
        before = usage_of(kube, pod)
        time.sleep(WATCH_S)  # the span that is measured
        after = usage_of(kube, pod)
        cores = (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s)
        cpu = figures.add("operator, steady state", "operator", cores, "cores", CPU_BOUND_CORES)
        memory = figures.add(
            "operator, working set", "operator", after.working_set_bytes / (1 << 20), "MiB", MEMORY_BOUND_MIB
        )
        assert healthy.restarts() == restarts
    finally:
        began_s = time.time()
        kube("delete", "readergroups", "--all", "--timeout=600s", deadline_s=660)
        kube("delete", "streams", "--all", "--timeout=900s", deadline_s=960)
        figures.add(f"{STREAMS} Streams and {GROUPS} ReaderGroups deleted", "operator", time.time() - began_s, "s")
    assert cpu.holds, cpu
    assert memory.holds, memory
