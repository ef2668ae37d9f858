"""Streams as resources: made, edited, scaled by kubectl, refused, deleted; and what becomes of their data."""

from __future__ import annotations

import json

from harness.kubechart import CLUSTER
from harness.kubectl import Kubectl, condition_of, until
from harness.kubeload import Images, Load, Programs
from harness.kubesystem import StreamSystem, fixed, reasons, stream_manifest, until_segments

READY_S = 120.0
GONE_S = 90.0
SCOPE = "shop"
EVENTS = 400


def test_scaled_and_edited_under_load(healthy: StreamSystem, kube: Kubectl, images: Images) -> None:
    """kubectl scale splits and merges segments; writers and readers follow, and miss nothing."""
    kube.apply(stream_manifest("scaled", CLUSTER, SCOPE, scaling=fixed(2), deletionPolicy="Delete"))
    until_segments(kube, "scaled", 2)
    load = Load(kube, images, healthy.controller_uri, f"{SCOPE}/scaled")
    load.start()
    load.until_flowing()
    for count in (5, 1, 3):
        kube("scale", "stream/scaled", f"--replicas={count}")
        until_segments(kube, "scaled", count)
        load.until_more(READY_S)
    kube.patch("stream", "scaled", {"spec": {"tags": ["night"], "retention": {"type": "Size", "min": "1Gi"}}})
    kube.until_condition("stream", "scaled", "Ready", "True", READY_S)
    found = kube.get("stream", "scaled")
    enforced = condition_of(found, "RetentionEnforced")
    assert (enforced["status"], enforced["reason"]) == ("True", "Enforced"), enforced
    assert condition_of(found, "AutoScaling")["status"] == "False"
    assert load.finish() > 0
    until("the status follows the stream", lambda: kube.get("stream", "scaled")["status"].get("bytes", 0) > 0, READY_S)
    assert found["status"]["epoch"] >= 3
    assert {"StreamCreated", "StreamUpdated"} <= set(reasons(kube, "scaled"))
    columns = kube("get", "strm").splitlines()[0].split()
    assert columns == ["NAME", "READY", "REASON", "SCOPE", "SEGMENTS", "RETAINED", "HELD", "BY", "AGE"]
    assert "scaled" in kube("get", "tailrace")


def test_retained_data_comes_back_and_deleted_data_does_not(kube: Kubectl, programs: Programs) -> None:
    """Also when the resource is made again at once."""
    kube.apply(stream_manifest("kept", CLUSTER, SCOPE, scaling=fixed(2)))
    kube.until_condition("stream", "kept", "Ready", "True", READY_S)
    written = programs.write(f"{SCOPE}/kept", EVENTS)
    kube.delete("stream", "kept", deadline_s=GONE_S)
    kube.apply(stream_manifest("kept", CLUSTER, SCOPE, scaling=fixed(2), deletionPolicy="Delete"))
    kube.until_condition("stream", "kept", "Ready", "True", READY_S)
    assert programs.read(f"{SCOPE}/kept") == written
    kube.delete("stream", "kept", deadline_s=GONE_S)
    kube.apply(stream_manifest("kept", CLUSTER, SCOPE, scaling=fixed(2), deletionPolicy="Delete"))
    kube.until_condition("stream", "kept", "Ready", "True", READY_S)
    assert programs.read(f"{SCOPE}/kept") == {}
    assert programs.write(f"{SCOPE}/kept", 10, keys=1) == {"w-0": 10}
    assert programs.read(f"{SCOPE}/kept") == {"w-0": 10}


def test_impossible_requests_are_reported_in_conditions(healthy: StreamSystem, kube: Kubectl) -> None:
    restarts = healthy.restarts()
    kube.apply(
        stream_manifest("nowhere", "no-such-cluster", SCOPE),
        stream_manifest("mine", CLUSTER, SCOPE, streamName="contested"),
    )
    found = kube.until_condition("stream", "nowhere", "Ready", "False", READY_S)
    assert found["reason"] == "ClusterNotFound"
    assert "spec.cluster" in found["message"]
    kube.until_condition("stream", "mine", "Ready", "True", READY_S)
    kube.apply(stream_manifest("theirs", CLUSTER, SCOPE, streamName="contested", deletionPolicy="Delete"))
    found = kube.until_condition("stream", "theirs", "Ready", "False", READY_S)
    assert found["reason"] == "StreamOwnedByAnother"
    assert "spec.streamName" in found["message"]
    assert "StreamOwnedByAnother" in reasons(kube, "theirs")
    kube.delete("stream", "theirs", deadline_s=GONE_S)
    kube.until_condition("stream", "mine", "Ready", "True", READY_S)
    assert healthy.restarts() == restarts


def test_the_status_says_what_conventions_ask(kube: Kubectl) -> None:
    kube.apply(stream_manifest("reported", CLUSTER, SCOPE, deletionPolicy="Delete"))
    kube.until_condition("stream", "reported", "Ready", "True", READY_S)
    found = kube.get("stream", "reported")
    for condition in found["status"]["conditions"]:
        assert set(condition) >= {"type", "status", "reason", "message", "lastTransitionTime", "observedGeneration"}
        assert condition["message"].endswith("."), condition
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    assert found["status"]["uid"] == found["metadata"]["uid"]
    assert "phase" not in json.dumps(found["status"])
