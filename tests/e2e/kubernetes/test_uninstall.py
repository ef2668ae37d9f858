"""A release that is removed deletes no data and holds nothing up; one that is installed again goes on (ADR 0016)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from harness import kubechart
from harness.figures import Figures
from harness.kubectl import Kubectl, until
from harness.kubeload import Images, Programs, programs_manifest
from harness.kubesystem import StreamSystem, group_manifest, reasons, stream_manifest

READY_S = 120.0
AT_ONCE_S = 20.0
GONE_S = 90.0
PODS_GONE_BOUND_S = 45.0
"""Below the time that pods may take to hand over, which no pod is left for."""
NAMESPACE_GONE_S = 180.0
SCOPE = "shop"
EVENTS = 400


@pytest.fixture
def namespace(healthy: StreamSystem, cluster_kube: Kubectl) -> Iterator[Kubectl]:
    """One of its own; what is installed in it goes with it."""
    kube = cluster_kube.within("comes-back")
    kube("create", "namespace", kube.namespace)
    kube("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce=restricted")
    kube.apply(programs_manifest())
    yield kube
    kubechart.uninstall(kube)
    wait = f"--timeout={NAMESPACE_GONE_S:.0f}s"
    kube("delete", "namespace", kube.namespace, wait, deadline_s=NAMESPACE_GONE_S + 20)
    healthy.until_ready()


def finalizers(kube: Kubectl, kind: str, name: str) -> list[str]:
    """Those of a resource."""
    return list(kube.get(kind, name)["metadata"].get("finalizers") or [])


def test_uninstalled_and_installed_again(namespace: Kubectl, images: Images) -> None:
    kube = namespace
    kubechart.install(kube, small=True)
    system = StreamSystem(kube, kubechart.CLUSTER)
    system.until_ready()
    programs = Programs(kube, images, system.controller_uri)
    for name in ("held", "orphan"):
        kube.apply(stream_manifest(name, system.cluster, SCOPE, deletionPolicy="Delete"))
        kube.until_condition("stream", name, "Ready", "True", READY_S)
    kube.apply(group_manifest("readers", system.cluster, SCOPE, ["held"], deletionPolicy="Delete"))
    kube.until_condition("readergroup", "readers", "Ready", "True", READY_S)
    written = {name: programs.write(f"{SCOPE}/{name}", EVENTS) for name in ("held", "orphan")}
    cluster_id = system.resource()["status"]["clusterId"]

    kubechart.uninstall(kube)
    assert kube.list("jobs") == [], "what lets go goes itself"
    assert finalizers(kube, "stream", "held") == finalizers(kube, "readergroup", "readers") == []
    kube.delete("stream", "orphan", deadline_s=AT_ONCE_S)

    kubechart.install(kube, small=True, adopt=cluster_id)
    system.until_ready()
    for kind, name in (("stream", "held"), ("readergroup", "readers")):
        until(f"{name} is held again", lambda: finalizers(kube, kind, name) != [], READY_S)  # noqa: B023
        kube.until_condition(kind, name, "Ready", "True", READY_S)
    assert programs.read(f"{SCOPE}/held") == written["held"]
    kube.apply(stream_manifest("orphan", system.cluster, SCOPE))
    kube.until_condition("stream", "orphan", "Ready", "True", READY_S)
    assert programs.read(f"{SCOPE}/orphan") == written["orphan"]
    assert "StreamAdopted" in reasons(kube, "orphan")

    kube.delete("readergroup", "readers", deadline_s=GONE_S)
    kube.delete("stream", "held", deadline_s=GONE_S)
    assert "StreamDeleted" in reasons(kube, "held")


def test_pods_of_a_release_that_is_uninstalled_end_without_a_wait(namespace: Kubectl, figures: Figures) -> None:
    """Their rights and the object store go before they have ended; a new installation needs their names."""
    kube = namespace
    kubechart.install(kube)
    system = StreamSystem(kube, kubechart.CLUSTER)
    system.until_ready()
    kube.apply(stream_manifest("held", system.cluster, SCOPE))
    kube.until_condition("stream", "held", "Ready", "True", READY_S)
    assert len(system.pods("segmentstore")) == 2
    kubechart.uninstall(kube)
    began_s = time.time()
    pods = f"app.kubernetes.io/component=segmentstore,app.kubernetes.io/instance={system.cluster}"
    until("the store pods have ended", lambda: kube.list("pods", pods) == [], GONE_S)
    figure = figures.add("store pods gone after helm uninstall", "all", time.time() - began_s, "s", PODS_GONE_BOUND_S)
    assert figure.holds


def test_what_is_being_deleted_when_a_release_is_removed_goes_with_its_data_or_is_reported(
    namespace: Kubectl, images: Images
) -> None:
    kube = namespace
    kubechart.install(kube, small=True)
    system = StreamSystem(kube, kubechart.CLUSTER)
    system.until_ready()
    names = [f"s{number}" for number in range(8)]
    for name in names:
        kube.apply(stream_manifest(name, system.cluster, SCOPE, deletionPolicy="Delete"))
    for name in names:
        kube.until_condition("stream", name, "Ready", "True", READY_S)
    kube("delete", "stream", *names, "--wait=false")
    kubechart.uninstall(kube)
    assert kube.list("streams") == []
    assert {reason for name in names for reason in reasons(kube, name) if reason.startswith("Stream")} == {
        "StreamCreated",
        "StreamDeleted",
    }
