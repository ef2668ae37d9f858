"""Fewer workers in a pod: Services lead to the workers of the pods that run, until these are replaced."""

from __future__ import annotations

from harness.localclusters import EmptyStore, NoWorkerAnswers
from harness.localkubernetes import LocalKubernetes
from harness.localobjects import NAMESPACE, Hand, LocalObjects, StoppedClock
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace_operator.cluster.placement import Placements
from tailrace_operator.cluster.reconcile import StreamClusterReconciler
from tailrace_operator.kube.objects import SECRETS, SERVICES, STATEFUL_SETS

TIER2 = {"bucket": "data", "endpoint": "http://minio:9000", "credentialsSecret": "minio", "prefix": "streams"}


def workers_reached(objects: LocalObjects, service: str) -> list[str]:
    ports = objects._find(SERVICES, NAMESPACE, service)["spec"]["ports"]
    return [port["name"] for port in ports if port["name"].startswith("worker")]


def rolled(objects: LocalObjects, updated: int) -> None:
    """What the StatefulSet's controller says when `updated` of two pods have been replaced."""
    found = objects._find(STATEFUL_SETS, NAMESPACE, "main-store")
    generation = found["metadata"].setdefault("generation", 1)
    status = {"observedGeneration": generation, "replicas": 2, "readyReplicas": 2, "updatedReplicas": updated}
    revisions = {"currentRevision": "new" if updated == 2 else "old", "updateRevision": "new"}
    objects.put_status(STATEFUL_SETS, "main-store", status | revisions)


async def test_services_keep_the_ports_of_workers_that_still_run() -> None:
    objects = LocalObjects()
    placements = Placements(lambda namespace: LocalKubernetes(), NoWorkerAnswers())
    reconciler = StreamClusterReconciler(
        objects, EmptyStore(), placements, StoppedClock(), image="tailrace", namespace=NAMESPACE
    )
    hand = Hand(objects, {STREAM_CLUSTERS.plural: reconciler})
    objects.make(SECRETS, "minio", {})
    secret = objects._find(SECRETS, NAMESPACE, "minio")
    objects._store(SECRETS, secret | {"data": {"accessKey": "YQ==", "secretKey": "Yg=="}})
    store = {"replicas": 2, "workers": 2, "memory": "1536Mi"}
    objects.make(STREAM_CLUSTERS, "main", {"tier2": TIER2, "segmentStore": store})
    try:
        await hand.look(STREAM_CLUSTERS, "main")
        rolled(objects, 2)
        await hand.look(STREAM_CLUSTERS, "main")
        assert workers_reached(objects, "main-store-0") == ["worker-0", "worker-1"]

        objects.edit(STREAM_CLUSTERS, "main", {"segmentStore": store | {"workers": 1}})
        await hand.look(STREAM_CLUSTERS, "main")
        for updated in (0, 1):  # StatefulSets begin with the last pod: main-store-0 still runs two workers
            rolled(objects, updated)
            await hand.look(STREAM_CLUSTERS, "main")
            assert workers_reached(objects, "main-store-0") == ["worker-0", "worker-1"], f"{updated} of 2 replaced"
        rolled(objects, 2)
        await hand.look(STREAM_CLUSTERS, "main")
        await hand.look(STREAM_CLUSTERS, "main")
        assert workers_reached(objects, "main-store-0") == ["worker-0"], "all pods are replaced"
    finally:
        await placements.close()
