"""Many resources with traffic on a tenth: the operator stays small and idle, edits act, a new leader places containers.

TAILRACE_E2E_STREAMS=5000 measures with so many; they take half an hour to create and delete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from harness.figures import Figure, Figures
from harness.kubechart import CLUSTER
from harness.kubectl import Kubectl, Manifest, condition_of, until
from harness.kubeload import PROGRAM_FOLDER, Images, Load, LoadPod, pod_manifest
from harness.kubesystem import StreamSystem, group_manifest, stream, stream_manifest
from harness.kubeusage import usage_of

STREAMS = int(os.environ.get("TAILRACE_E2E_STREAMS", "500"))
GROUPS = 50
BUSY = STREAMS // 10
RATE_PER_S = BUSY / 5
SCOPE = "many"
CREATED_PER_S_MIN = 2.0
"""So many are awaited to become Ready, or to be gone, in a second; it is no bound that is asserted."""
LISTED_PER_S = 500.0
SETTLE_S = 60.0
WATCH_S = 120.0
LARGE = STREAMS >= 5000
CPU_BOUND_CORES = 0.20 if LARGE else 0.10
MEMORY_BOUND_MIB = 384.0 if LARGE else 256.0
EDIT_BOUND_S = 5.0
LEADER_BOUND_S = 10.0
TRIES = 3
EDIT_DEADLINE_S = 120.0
MORE_DEADLINE_S = 180.0
APPLIED_AT_ONCE = 500


def _of_all_s(count: int) -> float:
    return 300.0 + count / CREATED_PER_S_MIN


def _all_ready(kube: Kubectl, kind: str, count: int) -> bool:
    items = kube.list(kind)
    ready = sum(condition_of(item, "Ready").get("status") == "True" for item in items)
    if ready < count:
        time.sleep(count / LISTED_PER_S)  # a list of thousands costs the API server more than what is waited for
    return ready >= count


@pytest.fixture(scope="module")
def many(system: StreamSystem, figures: Figures) -> Iterator[StreamSystem]:
    """A system with so many Streams and ReaderGroups, all of them Ready."""
    kube = system.kube
    system.until_ready()
    streams = [stream_manifest(f"s{number}", CLUSTER, SCOPE, deletionPolicy="Delete") for number in range(STREAMS)]
    groups = [
        group_manifest(f"g{number}", CLUSTER, SCOPE, [f"s{number}", f"s{number + GROUPS}"], deletionPolicy="Delete")
        for number in range(GROUPS)
    ]
    name = f"{STREAMS} Streams and {GROUPS} ReaderGroups"
    restarts = system.restarts()
    began_s = time.time()
    try:
        for first in range(0, STREAMS, APPLIED_AT_ONCE):
            kube.apply(*streams[first : first + APPLIED_AT_ONCE], deadline_s=600)
        kube.apply(*groups, deadline_s=300)
        until("all Streams are Ready", lambda: _all_ready(kube, "streams", STREAMS), _of_all_s(STREAMS))
        until("all ReaderGroups are Ready", lambda: _all_ready(kube, "readergroups", GROUPS), _of_all_s(GROUPS))
        figures.add(f"{name} Ready", "operator", time.time() - began_s, "s")
        assert system.restarts() == restarts
        yield system
    finally:
        began_s = time.time()
        kube("delete", "readergroups", "--all", "--timeout=600s", deadline_s=660)
        deadline_s = _of_all_s(STREAMS)
        kube("delete", "streams", "--all", f"--timeout={deadline_s:.0f}s", deadline_s=deadline_s + 60)
        figures.add(f"{name} deleted", "operator", time.time() - began_s, "s")


@pytest.fixture
def traffic(many: StreamSystem, images: Images) -> Iterator[LoadPod]:
    """A program writes to a tenth of them while the test runs, and everything is acknowledged in the end."""
    words = (many.controller_uri, SCOPE, "s", str(BUSY), str(RATE_PER_S), "100")
    pod = LoadPod(many.kube, "spread")
    command = ["python3.11", f"{PROGRAM_FOLDER}/write_spread.py", *words]
    many.kube.apply(pod_manifest(pod.name, images.python, command))
    pod.until("acknowledged", 2 * BUSY, MORE_DEADLINE_S)
    yield pod
    last = pod.end()
    pod.delete()
    assert not last["failed"], last
    assert last["written"] == last["acknowledged"] > 0


@pytest.mark.timeout(7200)
def test_many_are_ready_and_cost_little(many: StreamSystem, traffic: LoadPod, figures: Figures) -> None:
    restarts = many.restarts()
    time.sleep(SETTLE_S)  # a steady state is what is measured
    pod = many.leading_operator()
    before = usage_of(many.kube, pod)
    time.sleep(WATCH_S)  # the span that is measured
    after = usage_of(many.kube, pod)
    cores = (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s)
    cpu = figures.add("operator, steady state", "operator", cores, "cores", CPU_BOUND_CORES)
    memory = figures.add(
        "operator, working set", "operator", after.working_set_bytes / (1 << 20), "MiB", MEMORY_BOUND_MIB
    )
    assert many.restarts() == restarts
    assert cpu.holds, cpu
    assert memory.holds, memory


def test_an_edit_acts_beside_the_others(many: StreamSystem, traffic: LoadPod, figures: Figures) -> None:
    kube, times = many.kube, []
    for number in range(TRIES):
        name = f"s{BUSY + number}"
        began_s = time.time()
        kube.patch("stream", name, {"spec": {"retention": {"type": "Size", "min": f"{10 + number}Mi"}}})
        generation = kube.get("stream", name)["metadata"]["generation"]

        def carried_out(name: str = name, generation: int = generation) -> Manifest | None:
            found = kube.get("stream", name)
            seen = (found.get("status") or {}).get("observedGeneration") == generation
            return found if seen and condition_of(found, "Ready").get("status") == "True" else None

        until(f"the edit of {name} is carried out", carried_out, EDIT_DEADLINE_S)
        times.append(time.time() - began_s)
    print("edits took", times)
    _check(figures.add(f"edit beside {STREAMS} Streams", "operator", min(times), "s", EDIT_BOUND_S))


@pytest.mark.timeout(3600)
def test_a_new_leader_places_the_containers_of_a_lost_pod(
    many: StreamSystem, traffic: LoadPod, images: Images, figures: Figures
) -> None:
    """The leading operator and a store pod are killed at once: writers wait until the new leader has placed."""
    waits = []
    for _ in range(TRIES):
        with stream(many, "placed", "failover", 8) as name:
            load = Load(many.kube, images, many.controller_uri, name)
            load.start()
            load.until_flowing()
            victim = many.busiest_worker(name, segments=8)
            began_s = time.time()
            many.kill_pods(many.leading_operator(), victim.pod)
            load.until_more(MORE_DEADLINE_S)
            many.until_ready()
            load.until_more(MORE_DEADLINE_S)
            ended_s = time.time()
            load.finish()
            waits.append(load.longest_pause_s(began_s, ended_s))
        if waits[-1] < LEADER_BOUND_S:
            break
    print("writers waited", waits)
    _check(figures.add(f"new leader beside {STREAMS} Streams", "tailrace", min(waits), "s", LEADER_BOUND_S))


def _check(figure: Figure) -> None:
    assert figure.holds, figure
