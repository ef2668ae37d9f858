"""Streams whose resources go and come in every order, also while no controller runs; and scaling by rate."""

from __future__ import annotations

import pytest

from harness.kubechart import CLUSTER
from harness.kubectl import Kubectl, condition_of, until
from harness.kubeload import Images, Load, Programs
from harness.kubesystem import StreamSystem, stream_manifest, until_segments

READY_S = 120.0
GONE_S = 90.0
RATES_S = 240.0
"""Controllers ask for rates each half minute, and the operator looks once a minute."""
SCOPE = "shop"
EVENTS = 400


def test_scaling_by_rate_only_raises(healthy: StreamSystem, kube: Kubectl, images: Images) -> None:
    scaling = {"type": "EventRate", "target": 100, "scaleFactor": 2, "minSegments": 2}
    kube.apply(stream_manifest("rated", CLUSTER, SCOPE, scaling=scaling, deletionPolicy="Delete"))
    until_segments(kube, "rated", 2)
    automatic = condition_of(kube.get("stream", "rated"), "AutoScaling")
    assert (automatic["status"], automatic["reason"]) == ("True", "Enforced")
    kube("scale", "stream/rated", "--replicas=4")
    until_segments(kube, "rated", 4)
    kube("scale", "stream/rated", "--replicas=1")
    kube.until_condition("stream", "rated", "Ready", "True", READY_S)
    assert kube.get("stream", "rated")["status"]["segments"] == 4
    load = Load(kube, images, healthy.controller_uri, f"{SCOPE}/rated")
    load.start()

    def rates() -> list[int]:
        found = kube.get("stream", "rated")["status"].get("rates", {"segments": []})
        return [each["perSecond"] for each in found["segments"]]

    until("the status has the rates of all segments", lambda: len(rates()) == 4 and sum(rates()) > 0, RATES_S)
    assert load.finish() > 0


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_deleted_while_no_controller_runs(
    policy: str, healthy: StreamSystem, kube: Kubectl, programs: Programs
) -> None:
    """A kept stream's resource goes at once; one whose stream is to go waits, says so, and goes later."""
    kube.apply(stream_manifest("orphan", CLUSTER, SCOPE, deletionPolicy=policy))
    kube.until_condition("stream", "orphan", "Ready", "True", READY_S)
    written = programs.write(f"{SCOPE}/orphan", EVENTS)
    with healthy.without_controllers():
        if policy == "Retain":
            kube.delete("stream", "orphan", deadline_s=GONE_S)
        else:
            kube("delete", "stream", "orphan", "--wait=false")
            found = kube.until_condition("stream", "orphan", "Ready", "False", READY_S)
            assert found["reason"] == "DeletionWaits", found
            assert "tailrace.io/force-delete" in found["message"]
    healthy.until_ready()
    until("orphan is gone", lambda: kube.find("stream", "orphan") is None, GONE_S)
    kube.apply(stream_manifest("orphan", CLUSTER, SCOPE, deletionPolicy="Delete"))
    kube.until_condition("stream", "orphan", "Ready", "True", READY_S)
    assert programs.read(f"{SCOPE}/orphan") == (written if policy == "Retain" else {})


def test_let_go_by_force_while_no_controller_runs(healthy: StreamSystem, kube: Kubectl) -> None:
    kube.apply(stream_manifest("forced", CLUSTER, SCOPE, deletionPolicy="Delete"))
    kube.until_condition("stream", "forced", "Ready", "True", READY_S)
    with healthy.without_controllers():
        kube("annotate", "stream", "forced", "tailrace.io/force-delete=true")
        kube.delete("stream", "forced", deadline_s=GONE_S)
    healthy.until_ready()


def test_made_again_at_once_many_times(kube: Kubectl, programs: Programs) -> None:
    """Each new resource of the name gets a stream of its own, empty."""
    for number in range(6):
        kube.apply(
            stream_manifest("again", CLUSTER, SCOPE, scaling={"minSegments": 1 + number % 3}, deletionPolicy="Delete")
        )
        if number % 2:
            kube.until_condition("stream", "again", "Ready", "True", READY_S)
            assert programs.write(f"{SCOPE}/again", 50, keys=1) == {"w-0": 50}
        kube("delete", "stream", "again", "--wait=false" if number % 3 == 0 else "--wait=true", deadline_s=GONE_S)
        until("again is gone", lambda: kube.find("stream", "again") is None, GONE_S)
    kube.apply(stream_manifest("again", CLUSTER, SCOPE, deletionPolicy="Delete"))
    kube.until_condition("stream", "again", "Ready", "True", READY_S)
    assert programs.read(f"{SCOPE}/again") == {}
