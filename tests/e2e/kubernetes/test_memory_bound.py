"""The working set of a pod with 1 GiB under full load stays well below its limit, and nothing in it is killed."""

from __future__ import annotations

import copy
import os
import time
import uuid
from collections.abc import Iterator

import pytest

from harness import kubecluster
from harness.figures import Figures
from harness.kubectl import Kubectl, until
from harness.kubeload import PROGRAM_FOLDER, Images, Load, LoadPod, pod_manifest
from harness.kubesystem import API_VERSION, StreamSystem, fixed, stream_manifest, until_segments
from harness.kubeusage import MemoryCount, memory_of, usage_of

NAME = "bounded"
POD = f"{NAME}-store-0"
LIMIT_BYTES = 1 << 30
PEAK_MAX_BYTES = LIMIT_BYTES * 9 // 10
"""At the limit itself the kernel ends processes: a peak below it shows nothing that the limit does not enforce."""
WORKERS = 1
DURATION_S = float(os.environ.get("TAILRACE_E2E_MEMORY_S", "600"))
SAMPLE_INTERVAL_S = 2.0
WIDE_SEGMENTS = 1000
DISK_SPARE_BYTES = 5 << 30
"""Kubernetes evicts pods from a node whose disk is nearly full, and all tests afterwards would fail."""
GONE_S = 240.0
SCOPE = "memory"
MIB = 1 << 20


@pytest.fixture
def bounded(healthy: StreamSystem) -> Iterator[StreamSystem]:
    """A cluster of one segment store pod with 1 GiB."""
    tier2 = {**copy.deepcopy(healthy.resource()["spec"]["tier2"]), "prefix": f"{NAME}-{uuid.uuid4().hex[:8]}"}
    spec = {
        "containers": 8,
        "segmentStore": {"replicas": 1, "workers": WORKERS, "memory": "1Gi"},
        "controller": {"replicas": 1},
        "tier2": tier2,
    }
    healthy.kube.delete("streamcluster", NAME, deadline_s=GONE_S)
    manifest = {"apiVersion": API_VERSION, "kind": "StreamCluster", "metadata": {"name": NAME}, "spec": spec}
    made = StreamSystem(healthy.kube, NAME)
    made.kube.apply(manifest)
    made.until_ready()
    yield made
    healthy.kube.delete("streamcluster", NAME, deadline_s=GONE_S)
    until(
        "its pods are gone, which a later test could count",
        lambda: not healthy.kube.list("pods", f"app.kubernetes.io/instance={NAME}"),
        GONE_S,
    )


@pytest.mark.timeout(3000)
def test_the_limit_holds(bounded: StreamSystem, images: Images, figures: Figures) -> None:
    kube = bounded.kube
    for name, segments in (("wide", WIDE_SEGMENTS), ("deep", 4)):
        kube.apply(stream_manifest(name, NAME, SCOPE, scaling=fixed(segments), deletionPolicy="Delete"))
    until_segments(kube, "wide", WIDE_SEGMENTS)
    until_segments(kube, "deep", 4)
    wide = Load(kube, images, bounded.controller_uri, f"{SCOPE}/wide", keys=3 * WIDE_SEGMENTS, rate=3000)
    deep = Load(kube, images, bounded.controller_uri, f"{SCOPE}/deep", rate=0, length_bytes=5000)
    for load in (wide, deep):
        load.start()
    for load in (wide, deep):
        load.until_flowing()
    before = kube.get("pod", POD)["metadata"]["uid"]
    greatest = _watch(kube, images, bounded, [wide, deep])
    memory = memory_of(kube, POD)
    what = "segment store under full load"
    figure = figures.add(what, "1 GiB pod, working set", greatest / MIB, "MiB", PEAK_MAX_BYTES / MIB)
    figures.add(what, "1 GiB pod, peaks of its processes", memory.resident_peaks_bytes / MIB, "MiB")
    _nothing_was_killed(bounded, before, memory)
    assert figure.holds, figure
    total = sum(load.finish() for load in (wide, deep))
    figures.add(what, "1 GiB pod, events", total, "events")
    _nothing_was_killed(bounded, before, memory_of(kube, POD))
    kube.delete("stream", "wide", "deep", deadline_s=GONE_S)


def _nothing_was_killed(system: StreamSystem, pod_uid: str, memory: MemoryCount) -> None:
    """Fail when the pod, a worker of it, or any process in it was ended and started again."""
    pod = system.kube.get("pod", POD)
    (status,) = pod["status"]["containerStatuses"]
    assert pod["metadata"]["uid"] == pod_uid, "the pod was replaced"
    assert status["restartCount"] == 0, status
    assert memory.limit_bytes == LIMIT_BYTES, memory
    assert memory.oom_kills == 0, memory
    starts = {worker["worker"]: worker["starts"] for worker in system.workers(POD)}
    assert starts == dict.fromkeys(range(WORKERS), 1), f"starts of each worker: {starts}"


def _watch(kube: Kubectl, images: Images, system: StreamSystem, loads: list[Load]) -> int:
    """The greatest working set while everything goes on, with reads from the head again and again beside it."""
    greatest, number = 0, 0
    history = _historical_read(kube, images, system, number)
    ends_s = time.monotonic() + DURATION_S
    while time.monotonic() < ends_s:
        greatest = max(greatest, usage_of(kube, POD).working_set_bytes)
        free_bytes = kubecluster.free_bytes()
        assert free_bytes is None or free_bytes > DISK_SPARE_BYTES, "the disk is too small: this test takes 65 GB"
        for load in loads:
            load.writer.check_alive()
        if history.check_alive(may_be_done=True) == "Succeeded":
            history.delete()
            number += 1
            history = _historical_read(kube, images, system, number)
        time.sleep(SAMPLE_INTERVAL_S)  # between samples
    print(f"{number} whole reads from the head beside the load")
    history.delete()
    return greatest


def _historical_read(kube: Kubectl, images: Images, system: StreamSystem, number: int) -> LoadPod:
    command = ["python3.11", f"{PROGRAM_FOLDER}/load_verify.py", system.controller_uri, f"{SCOPE}/deep"]
    pod = LoadPod(kube, f"history-{number}")
    kube.apply(pod_manifest(pod.name, images.python, command))
    return pod
