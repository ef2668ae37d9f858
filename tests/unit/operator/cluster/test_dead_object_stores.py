"""StreamClusters whose object store does not answer take nothing from the others; in simulated time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from harness.localclusters import EmptyStore, NoWorkerAnswers
from harness.localkubernetes import LocalKubernetes
from harness.localobjects import NAMESPACE, LocalObjects, StoppedClock
from sim import SimWorld
from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace_operator.cluster.placement import Placements
from tailrace_operator.cluster.reconcile import StreamClusterReconciler
from tailrace_operator.cluster.state import watched_fields
from tailrace_operator.cluster.tier2 import Credentials, Tier2Error
from tailrace_operator.kube.objects import SECRETS, STATEFUL_SETS
from tailrace_operator.reconcile.keys import endpoint_of
from tailrace_operator.reconcile.loop import ReconcileLoop
from tailrace_operator.schema.specs import Tier2Spec

DEAD = "http://dead"


class Chance:
    """Fixed chance."""

    def token(self, length_bytes: int) -> bytes:
        return bytes(length_bytes)

    def uniform(self) -> float:
        return 0.5


class Stores(EmptyStore):
    """One object store answers, and others do not, with the queues and deadlines of the operator's checks."""

    def __init__(self) -> None:
        self.dead = False
        self._slots: dict[str, asyncio.Semaphore] = {}

    async def look(
        self, tier2: Tier2Spec, credentials: Credentials, *, creates_bucket: bool = True
    ) -> ClusterIdentity | None:
        if not self.dead or not tier2.endpoint.startswith(DEAD):
            return None
        slots = self._slots.setdefault(tier2.endpoint, asyncio.Semaphore(limits.TIER2_ENDPOINT_CHECKS_MAX))
        try:
            async with asyncio.timeout(limits.TIER2_CHECK_QUEUE_S):
                await slots.acquire()
        except TimeoutError:
            raise UnavailableError("the check waits for other checks") from None
        try:
            await asyncio.sleep(limits.TIER2_CHECK_DEADLINE_S)
        finally:
            slots.release()
        raise Tier2Error("EndpointUnreachable", "spec.tier2.endpoint: does not answer", transient=True)


class NotedPlacements(Placements):
    """Notes when each placer began."""

    def __init__(self) -> None:
        super().__init__(lambda namespace: LocalKubernetes(), NoWorkerAnswers())
        self.begun_s: dict[str, float] = {}

    def ensure(self, namespace: str, cluster: str) -> None:
        self.begun_s.setdefault(cluster, asyncio.get_running_loop().time())
        super().ensure(namespace, cluster)


class Leading:
    """An operator that leads."""

    def __init__(self, objects: LocalObjects, stores: Stores) -> None:
        self.placements = NotedPlacements()
        clusters = StreamClusterReconciler(
            objects, stores, self.placements, StoppedClock(), image="tailrace", namespace=NAMESPACE
        )
        self.loop = ReconcileLoop(objects, NAMESPACE, StoppedClock(), Chance())
        self.loop.add(clusters, watched_fields, group_of=endpoint_of, heard=clusters.heard)
        self._work = asyncio.ensure_future(self.loop.run(self.loop.kinds))

    async def end(self) -> None:
        self._work.cancel()
        await asyncio.wait([self._work])
        await self.placements.close()


def make_cluster(objects: LocalObjects, name: str, endpoint: str) -> None:
    tier2 = {"bucket": "data", "endpoint": endpoint, "credentialsSecret": "minio", "prefix": name}
    spec = {"containers": 4, "tier2": tier2}
    objects.make(STREAM_CLUSTERS, name, spec, creationTimestamp="2026-01-01T00:00:00Z")


def make_secret(objects: LocalObjects) -> None:
    objects.make(SECRETS, "minio", {})
    found = objects._find(SECRETS, NAMESPACE, "minio")
    objects._store(SECRETS, found | {"data": {"accessKey": "YQ==", "secretKey": "Yg=="}})


def simulated(scenario: Callable[[LocalObjects, Stores], Awaitable[None]]) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            objects = LocalObjects()
            make_secret(objects)
            await scenario(objects, Stores())

        world.run(main())


@pytest.mark.parametrize(("stores_dead", "each"), [(1, 4), (1, 8), (1, 30), (2, 15)])
def test_a_healthy_cluster_is_placed_and_changed_at_once_after_a_failover(stores_dead: int, each: int) -> None:
    async def scenario(objects: LocalObjects, stores: Stores) -> None:
        now_s = asyncio.get_running_loop().time
        names = [f"dead-{store}-{number}" for store in range(stores_dead) for number in range(each)]
        for name in names:
            make_cluster(objects, name, f"{DEAD}{name.split('-')[1]}:9000")
        make_cluster(objects, "well", "http://other:9000")
        before = Leading(objects, stores)
        await asyncio.sleep(60)
        assert all(objects.exists(STATEFUL_SETS, f"{name}-store") for name in (*names, "well"))
        await before.end()

        stores.dead = True
        after, began_s = Leading(objects, stores), now_s()
        for manifest in await objects.list(STREAM_CLUSTERS, None):
            after.loop.on_event(STREAM_CLUSTERS, None, manifest)
        await asyncio.sleep(200)
        assert after.placements.begun_s.get("well", math.inf) - began_s < 1
        for replicas in range(4, 14):
            objects.edit(STREAM_CLUSTERS, "well", {"segmentStore": {"replicas": replicas, "workers": 1}})
            found = objects._find(STREAM_CLUSTERS, NAMESPACE, "well")
            after.loop.on_event(STREAM_CLUSTERS, "MODIFIED", found)
            await asyncio.sleep(1)
            assert objects._find(STATEFUL_SETS, NAMESPACE, "well-store")["spec"]["replicas"] == replicas
            await asyncio.sleep(16)
        await after.end()

    simulated(scenario)


def test_clusters_that_have_had_workers_get_their_placers_before_they_are_reconciled() -> None:
    async def scenario(objects: LocalObjects, stores: Stores) -> None:
        stores.dead = True
        for number in range(40):
            make_cluster(objects, f"dead-{number}", f"{DEAD}:9000")
            placed = {"containers": [{"id": 0, "worker": "a", "epoch": 1}]}
            objects.put_status(STREAM_CLUSTERS, f"dead-{number}", placed)
        make_cluster(objects, "new", f"{DEAD}:9000")
        make_cluster(objects, "leaving", f"{DEAD}:9000")
        objects.put_status(STREAM_CLUSTERS, "leaving", placed)
        leaving = objects._find(STREAM_CLUSTERS, NAMESPACE, "leaving")
        leaving["metadata"]["finalizers"] = ["foregroundDeletion"]
        objects._store(STREAM_CLUSTERS, leaving)
        objects.remove(STREAM_CLUSTERS, "leaving")
        operator, began_s = Leading(objects, stores), asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        assert {name: when_s - began_s for name, when_s in operator.placements.begun_s.items()} == {
            f"dead-{number}": pytest.approx(0, abs=0.5) for number in range(40)
        }
        await operator.end()

    simulated(scenario)
