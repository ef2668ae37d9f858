"""What a StreamCluster is surrounded by in tests of the operator: an empty object store, and silent workers."""

from __future__ import annotations

from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.cluster.endpoints import ContainerEndpoints
from tailrace_operator.cluster.bucket_rules import BucketRules
from tailrace_operator.cluster.tier2 import Credentials
from tailrace_operator.schema.specs import Tier2Spec


class EmptyStore:
    """An object store of no cluster, with every right."""

    async def look(
        self, tier2: Tier2Spec, credentials: Credentials, *, creates_bucket: bool = True
    ) -> ClusterIdentity | None:
        return None

    async def prove_rights(self, tier2: Tier2Spec, credentials: Credentials) -> None: ...

    async def rules(self, tier2: Tier2Spec, credentials: Credentials) -> BucketRules:
        return BucketRules()


class NoWorkerAnswers:
    """A prober that gets no answer."""

    async def answers(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        return False

    async def refuses(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        return False
