"""What a Stream says of policies that its stream need not have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.localobjects import NAMESPACE, LocalObjects
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.common.real_ports import SystemClock
from tailrace_operator.connections.controllers import Controllers
from tailrace_operator.kube.objects import STREAMS
from tailrace_operator.stream.reconcile import StreamReconciler

SPEC: dict[str, Any] = {
    "cluster": "main",
    "scope": "scope",
    "scaling": {"type": "EventRate", "target": 100},
    "retention": {"type": "Size", "min": "1Ki"},
}


@pytest.fixture
def objects() -> LocalObjects:
    """No resources."""
    return LocalObjects()


@pytest.fixture
async def streams(objects: LocalObjects) -> AsyncIterator[StreamReconciler]:
    """No controller answers."""
    controllers = Controllers(objects, uri=lambda _: "tcp://127.0.0.1:1")
    yield StreamReconciler(objects, controllers, SystemClock())
    await controllers.close()


@pytest.mark.parametrize(("cluster", "reason"), [("missing", "ClusterNotFound"), ("leaving", "ClusterLeaving")])
async def test_policies_are_not_called_enforced_without_a_cluster(
    objects: LocalObjects, streams: StreamReconciler, cluster: str, reason: str
) -> None:
    if cluster == "leaving":
        objects.make(STREAM_CLUSTERS, "main", {}, finalizers=["other.io/slow"])
        objects.remove(STREAM_CLUSTERS, "main")
    objects.make(STREAMS, "orders", SPEC)
    outcome = await streams.reconcile(await objects.get(STREAMS, NAMESPACE, "orders"))
    assert {one.type: (one.status, one.reason) for one in outcome.conditions} == {
        "Accepted": ("False", reason),
        "Ready": ("False", reason),
        "AutoScaling": ("Unknown", "NotCarriedOut"),
        "RetentionEnforced": ("Unknown", "NotCarriedOut"),
    }
