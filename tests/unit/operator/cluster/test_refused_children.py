"""A child that the API server refuses hides nothing else that is wrong with its StreamCluster."""

from __future__ import annotations

from harness.localclusters import EmptyStore, NoWorkerAnswers
from harness.localkubernetes import LocalKubernetes
from harness.localobjects import NAMESPACE, Hand, LocalObjects, StoppedClock
from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Kind, Manifest
from tailrace.common.errors import BadRequestError
from tailrace_operator.cluster.placement import Placements
from tailrace_operator.cluster.reconcile import StreamClusterReconciler
from tailrace_operator.cluster.tier2 import Credentials, Tier2Error
from tailrace_operator.kube.objects import DISRUPTION_BUDGETS, SECRETS
from tailrace_operator.schema.specs import Tier2Spec

TIER2 = {"bucket": "data", "endpoint": "http://minio:9000", "credentialsSecret": "minio"}


class Picky(LocalObjects):
    """An API server with a policy that refuses PodDisruptionBudgets, when asked to."""

    refuses = False

    async def apply(self, kind: Kind, namespace: str, manifest: Manifest, *, only_new: bool = False) -> Manifest:
        if self.refuses and kind is DISRUPTION_BUDGETS:
            raise BadRequestError("apply poddisruptionbudgets: the policy of the namespace refuses it")
        return await super().apply(kind, namespace, manifest, only_new=only_new)


class Store(EmptyStore):
    """An object store that goes away."""

    away = False

    async def look(
        self, tier2: Tier2Spec, credentials: Credentials, *, creates_bucket: bool = True
    ) -> ClusterIdentity | None:
        if self.away:
            raise Tier2Error("EndpointUnreachable", "spec.tier2.endpoint: it is away", transient=True)
        return None


async def test_an_object_store_that_is_away_is_reported_beside_a_child_that_is_refused() -> None:
    objects, store = Picky(), Store()
    placements = Placements(lambda namespace: LocalKubernetes(), NoWorkerAnswers())
    reconciler = StreamClusterReconciler(
        objects, store, placements, StoppedClock(), image="tailrace", namespace=NAMESPACE
    )
    hand = Hand(objects, {STREAM_CLUSTERS.plural: reconciler})
    objects.make(SECRETS, "minio", {})
    secret = objects._find(SECRETS, NAMESPACE, "minio")
    objects._store(SECRETS, secret | {"data": {"accessKey": "YQ==", "secretKey": "Yg=="}})
    objects.make(STREAM_CLUSTERS, "main", {"tier2": TIER2})

    def shown() -> list[tuple[str, str]]:
        return [hand.condition(STREAM_CLUSTERS, "main", name) for name in ("Accepted", "Tier2Ready")]

    try:
        await hand.look(STREAM_CLUSTERS, "main")
        assert shown() == [("True", "Accepted"), ("True", "Usable")]
        store.away = objects.refuses = True
        objects.remove(DISRUPTION_BUDGETS, "main-store")
        await hand.look(STREAM_CLUSTERS, "main")
        assert shown() == [("False", "ChildRefused"), ("False", "EndpointUnreachable")]
        objects.refuses = False
        await hand.look(STREAM_CLUSTERS, "main")
        assert shown() == [("True", "Accepted"), ("False", "EndpointUnreachable")]
        assert objects.exists(DISRUPTION_BUDGETS, "main-store")
    finally:
        await placements.close()
