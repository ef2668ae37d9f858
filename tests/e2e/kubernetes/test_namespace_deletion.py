"""A namespace with everything in it is deleted while clients write: nothing in it holds that up."""

from __future__ import annotations

import time

import pytest

from harness import kubechart
from harness.figures import Figures
from harness.kubectl import Kubectl, KubeError
from harness.kubeload import Images, Load, programs_manifest
from harness.kubesystem import StreamSystem, fixed, group_manifest, stream_manifest

GONE_BOUND_S = 180.0
READY_S = 120.0
STREAMS = 5
KINDS = ("streams", "readergroups", "streamclusters")


@pytest.mark.parametrize("first", ["namespace", "release", "cluster"])
def test_nothing_holds_it_up(
    first: str, healthy: StreamSystem, cluster_kube: Kubectl, images: Images, figures: Figures
) -> None:
    """Whatever goes first: the namespace as a whole, the operator with its release, or the StreamCluster."""
    kube = cluster_kube.within(f"gone-{first}")
    kube("create", "namespace", kube.namespace)
    kube.apply(programs_manifest())
    kubechart.install(kube, small=True)
    system = StreamSystem(kube, healthy.cluster)
    system.until_ready()
    names = [f"s{number}" for number in range(STREAMS)]
    for number, name in enumerate(names):
        policy = "Delete" if number % 2 else "Retain"
        kube.apply(stream_manifest(name, system.cluster, "going", scaling=fixed(2), deletionPolicy=policy))
    for name in names:
        kube.until_condition("stream", name, "Ready", "True", READY_S)
    kube.apply(group_manifest("g", system.cluster, "going", ["s0", "s1"], deletionPolicy="Delete"))
    kube.until_condition("readergroup", "g", "Ready", "True", READY_S)
    load = Load(kube, images, system.controller_uri, "going/s1")
    load.start()
    load.until_flowing()
    began_s = time.time()
    if first == "release":
        kubechart.uninstall(kube)
        assert _held(kube) == []
        assert sorted(item["metadata"]["name"] for item in kube.list("streams")) == names
    elif first == "cluster":
        kube("delete", "streamcluster", system.cluster, "--wait=false")
    try:
        kube("delete", "namespace", kube.namespace, f"--timeout={GONE_BOUND_S:.0f}s", deadline_s=GONE_BOUND_S + 20)
    except KubeError as error:
        left = _let_go(kube)
        raise AssertionError(f"the namespace was not gone within {GONE_BOUND_S:.0f} s, {left} held it up") from error
    figure = figures.add(f"namespace deleted, {first} first", "all", time.time() - began_s, "s", GONE_BOUND_S)
    assert figure.holds
    healthy.until_ready()


def _held(kube: Kubectl) -> list[str]:
    """What has a finalizer."""
    return [
        f"{kind}/{item['metadata']['name']}"
        for kind in KINDS
        for item in kube.list(kind)
        if item["metadata"].get("finalizers")
    ]


def _let_go(kube: Kubectl) -> list[str]:
    """What still has a finalizer; it is taken off, so that the next test has a clean cluster."""
    left = _held(kube)
    for held in left:
        kind, _, name = held.partition("/")
        kube.patch(kind, name, {"metadata": {"finalizers": None}})
    return left
