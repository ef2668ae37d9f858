"""A Pipeline over resources in memory: its cluster, a Secret, drivers, an object store, and the reconciler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.localobjects import NAMESPACE, Hand, LocalObjects
from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Kind
from tailrace_operator.cluster.tier2 import Credentials, Tier2Error
from tailrace_operator.kube.objects import CRON_JOBS, JOBS, PIPELINES, PODS, SECRETS
from tailrace_operator.pipeline import names
from tailrace_operator.pipeline.reconcile import PipelineReconciler
from tailrace_operator.schema.specs import Tier2Spec

TIER2 = {"bucket": "tailrace", "prefix": "trial", "endpoint": "http://minio.n:9000", "credentialsSecret": "minio"}
SPEC = {"cluster": "main", "job": "archive", "stream": "shop/orders", "output": "s3a://lake/orders"}
CHILD = "nightly-pipeline"


class Clock:
    def now_ms(self) -> int:
        return 1_767_323_045_000


class Drivers:
    """Drivers that answer with the same progress, `said`; None: they do not answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.said: Mapping[str, Any] | None = {"rows": 3}

    async def progress(self, address: str) -> Mapping[str, Any] | None:
        self.asked.append(address)
        return self.said


class Probe:
    """An object store; `said`: what it answers for a bucket. `denied`: prefixes that the credentials may not read."""

    def __init__(self) -> None:
        self.looked: list[tuple[str, str]] = []
        self.said: dict[str, ClusterIdentity | Tier2Error] = {}
        self.denied: set[str] = set()

    async def look(
        self, tier2: Tier2Spec, credentials: Credentials, *, creates_bucket: bool = True
    ) -> ClusterIdentity | None:
        self.looked.append((tier2.bucket, tier2.prefix))
        if tier2.prefix in self.denied:
            raise Tier2Error("AccessDenied", "spec.tier2.credentialsSecret: the credentials may not read it")
        found = self.said.get(tier2.bucket)
        if isinstance(found, Tier2Error):
            raise found
        return found

    async def rules(self, tier2: Tier2Spec, credentials: Credentials) -> Any:
        raise AssertionError("not asked")

    async def prove_rights(self, tier2: Tier2Spec, credentials: Credentials) -> None:
        raise AssertionError("not asked")


class System:
    """A cluster, a Secret, and the reconciler."""

    def __init__(self, image: str | None = "spark:1") -> None:
        self.objects, self.probe, self.drivers = LocalObjects(), Probe(), Drivers()
        self.start(image)
        self.objects.make(STREAM_CLUSTERS, "main", {"tier2": TIER2})
        self.objects.make(SECRETS, "minio", {})
        secret = self.objects._find(SECRETS, NAMESPACE, "minio")
        self.objects._store(SECRETS, secret | {"data": {"accessKey": "YQ==", "secretKey": "Yg=="}})

    def start(self, image: str | None) -> None:
        """Start an operator, as an upgrade does."""
        self.reconciler = PipelineReconciler(self.objects, self.probe, self.drivers, Clock(), image)
        self.hand = Hand(self.objects, {PIPELINES.plural: self.reconciler})

    async def look(self) -> tuple[str, str]:
        await self.hand.look(PIPELINES, "nightly")
        return self.hand.condition(PIPELINES, "nightly", "Ready")

    def message(self) -> str:
        """Return the message of condition Ready."""
        conditions = self.hand.status(PIPELINES, "nightly")["conditions"]
        return next(str(one["message"]) for one in conditions if one["type"] == "Ready")

    def driver(self, owner_kind: Kind, phase: str = "Running", owner: str = CHILD) -> str:
        """Make the pod of a workload; return its name."""
        uid = self.objects._find(owner_kind, NAMESPACE, owner)["metadata"]["uid"]
        reference = {"kind": owner_kind.kind, "name": owner, "uid": uid, "apiVersion": "v1"}
        labels, name = names.driver_labels("nightly"), f"d-{uid[:4]}"
        self.objects.make(PODS, name, {"nodeName": "n1"}, labels=labels, ownerReferences=[reference])
        state = {"running": {"startedAt": "2026-01-02T02:00:00Z"}}
        status = {"phase": phase, "podIP": "10.0.0.1", "containerStatuses": [{"name": "driver", "state": state}]}
        self.objects.put_status(PODS, name, status)
        return name

    def scheduled(self, name: str, owner: str = CHILD) -> None:
        """Make a Job as its CronJob does."""
        uid = self.objects._find(CRON_JOBS, NAMESPACE, owner)["metadata"]["uid"]
        reference = {"kind": "CronJob", "name": owner, "uid": uid, "apiVersion": "batch/v1"}
        self.objects.make(JOBS, name, {}, labels=names.labels("nightly"), ownerReferences=[reference])
