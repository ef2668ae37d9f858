"""Pods that Kubernetes does not create, as by a quota: the reason is shown, and it becomes a warning."""

from __future__ import annotations

from typing import Any

import pytest

from harness.localclusters import EmptyStore, NoWorkerAnswers
from harness.localkubernetes import LocalKubernetes
from harness.localobjects import NAMESPACE, Hand, LocalObjects
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.common import limits
from tailrace_operator.cluster.placement import Placements
from tailrace_operator.cluster.reconcile import StreamClusterReconciler
from tailrace_operator.cluster.state import pods_condition
from tailrace_operator.kube.objects import DEPLOYMENTS, SECRETS, STATEFUL_SETS

TIER2 = {"bucket": "data", "endpoint": "http://minio:9000", "credentialsSecret": "minio", "prefix": "streams"}
REFUSED = 'pods "main-controller-5d8-x2x" is forbidden: exceeded quota: small'
NOW_MS = 1_767_323_045_000
NOW = "2026-01-02T03:04:05Z"
LATE_MS = NOW_MS + round(limits.OPERATOR_PODS_MISSING_S * 1000) + 1000


def controllers(*, failure: str = "True", **status: int) -> dict[str, Any]:
    """A Deployment whose pods Kubernetes does not create since NOW."""
    condition = {"type": "ReplicaFailure", "status": failure, "reason": "FailedCreate", "message": f"{REFUSED}.\n"}
    conditions = [{"type": "Progressing", "status": "True"}, condition | {"lastTransitionTime": NOW}]
    status = {"observedGeneration": 1, **status}
    return {
        "kind": "Deployment",
        "metadata": {"name": "main-controller", "generation": 1},
        "spec": {"replicas": 2},
        "status": {**status, "conditions": conditions},
    }


def stores(generation: int = 1, **status: int) -> dict[str, Any]:
    return {
        "kind": "StatefulSet",
        "metadata": {"name": "main-store", "generation": generation},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 1, **status},
    }


def test_the_reason_of_a_deployment_is_shown_at_once_and_warned_of_later() -> None:
    early = pods_condition("ControllerReady", "controller", controllers(), 2, now_ms=NOW_MS + 1000)
    assert (early.reason, early.is_warning) == ("PodsChanging", False)
    assert early.message == f"0 of 2 controller pods are ready, 0 are up to date: {REFUSED}."
    late = pods_condition("ControllerReady", "controller", controllers(), 2, now_ms=LATE_MS)
    assert (late.reason, late.is_warning, late.message) == ("PodsMissing", True, early.message)


def test_an_update_whose_pods_are_refused_beside_ready_ones_of_before() -> None:
    updating = controllers(replicas=2, readyReplicas=2)
    late = pods_condition("ControllerReady", "controller", updating, 2, now_ms=LATE_MS)
    assert (late.reason, late.is_warning) == ("PodsMissing", True)
    assert late.message == f"2 of 2 controller pods are ready, 0 are up to date: {REFUSED}."


def test_a_failure_that_is_over_is_not_shown() -> None:
    over = pods_condition("ControllerReady", "controller", controllers(failure="False"), 2, now_ms=LATE_MS)
    assert (over.reason, over.message) == ("PodsChanging", "0 of 2 controller pods are ready, 0 are up to date.")
    done = controllers(replicas=2, readyReplicas=2, updatedReplicas=2)
    assert pods_condition("ControllerReady", "controller", done, 2, now_ms=LATE_MS).is_true


def test_missing_pods_of_a_stateful_set_are_warned_of_when_they_are_missing_for_long() -> None:
    early = pods_condition("SegmentStoreReady", "segment store", stores(), 2, since=NOW, now_ms=NOW_MS + 1000)
    assert (early.reason, early.is_warning) == ("PodsChanging", False)
    assert early.message == "0 of 2 segment store pods are ready, 0 are up to date."
    late = pods_condition("SegmentStoreReady", "segment store", stores(), 2, since=NOW, now_ms=LATE_MS)
    assert (late.reason, late.is_warning) == ("PodsMissing", True)
    assert late.message == (
        "0 of 2 segment store pods are ready, 0 are up to date: 2 pods are not created, "
        "kubectl describe sts/main-store says why."
    )
    both = pods_condition("SegmentStoreReady", "segment store", stores(), 2, "pod p: X", since=NOW, now_ms=LATE_MS)
    assert both.message.endswith("says why; pod p: X.")


@pytest.mark.parametrize(
    ("found", "since"),
    [
        (stores(replicas=2, updatedReplicas=1, readyReplicas=1), NOW),  # an update that goes on
        (stores(generation=2), NOW),  # Kubernetes has not seen the change yet
        (stores(), None),
        (stores(), "yesterday"),
        (controllers() | {"status": {"conditions": "none"}}, NOW),
    ],
)
def test_other_pods_that_are_not_ready_for_long_are_not_missing(found: dict[str, Any], since: object) -> None:
    condition = pods_condition("SegmentStoreReady", "segment store", found, 2, since=since, now_ms=LATE_MS)
    assert (condition.reason, condition.is_warning) == ("PodsChanging", False)


class Clock:
    """Shows the time `ms`, in ms since 1970."""

    ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms


async def test_a_cluster_whose_pods_are_refused_warns_once() -> None:
    objects, clock = LocalObjects(), Clock()
    placements = Placements(lambda namespace: LocalKubernetes(), NoWorkerAnswers())
    store = EmptyStore()
    reconciler = StreamClusterReconciler(objects, store, placements, clock, image="tailrace", namespace=NAMESPACE)
    hand = Hand(objects, {STREAM_CLUSTERS.plural: reconciler})
    objects.make(SECRETS, "minio", {})
    secret = objects._find(SECRETS, NAMESPACE, "minio")
    objects._store(SECRETS, secret | {"data": {"accessKey": "YQ==", "secretKey": "Yg=="}})
    objects.make(STREAM_CLUSTERS, "main", {"tier2": TIER2})
    try:
        await hand.look(STREAM_CLUSTERS, "main")
        objects.put_status(STATEFUL_SETS, "main-store", {"observedGeneration": 1, "replicas": 0})
        objects.put_status(DEPLOYMENTS, "main-controller", controllers()["status"])
        for _ in range(2):
            await hand.look(STREAM_CLUSTERS, "main")
            for condition in ("SegmentStoreReady", "ControllerReady"):
                assert hand.condition(STREAM_CLUSTERS, "main", condition) == ("False", "PodsChanging")
        assert "PodsMissing" not in objects.reasons("main")
        clock.ms = LATE_MS
        for _ in range(2):
            await hand.look(STREAM_CLUSTERS, "main")
            for condition in ("SegmentStoreReady", "ControllerReady", "Ready"):
                assert hand.condition(STREAM_CLUSTERS, "main", condition) == ("False", "PodsMissing")
        notices = [notice for _, notice in objects.events if notice.reason == "PodsMissing"]
        assert [notice.warning for notice in notices] == [True, True], "of segment stores and of controllers"
        assert REFUSED in notices[1].message
    finally:
        await placements.close()
