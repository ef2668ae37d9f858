"""Which of several StreamClusters may use a place, whatever is edited while others are accepted."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from harness.localclusters import NoWorkerAnswers
from harness.localkubernetes import LocalKubernetes
from harness.localobjects import NAMESPACE, Hand, LocalObjects, StoppedClock
from sim import SimWorld
from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.common import limits
from tailrace_operator.cluster.bucket_rules import BucketRules
from tailrace_operator.cluster.claims import Place, claim, claim_of, rival_problem
from tailrace_operator.cluster.placement import Placements
from tailrace_operator.cluster.reconcile import StreamClusterReconciler
from tailrace_operator.cluster.render import CREDENTIALS_ANNOTATION
from tailrace_operator.cluster.tier2 import Credentials, Tier2Error
from tailrace_operator.kube.objects import SECRETS, STATEFUL_SETS
from tailrace_operator.schema.specs import StreamClusterSpec, Tier2Spec


def resource(name: str, age: str, **tier2: str) -> dict[str, Any]:
    place = {"bucket": "data", "endpoint": "http://minio:9000", "credentialsSecret": "minio", "prefix": "streams"}
    metadata = {"name": name, "namespace": "here", "uid": f"uid-{name}", "creationTimestamp": age}
    return {"metadata": metadata, "spec": {"tier2": {**place, **tier2}}}


def refused(manifest: dict[str, Any], condition: str, generation: int | None = None) -> None:
    item = {"type": condition, "status": "False", "reason": "Any"}
    manifest["metadata"]["generation"] = 2
    item |= {"observedGeneration": generation or 2}  # type: ignore[dict-item]
    manifest["status"] = {"conditions": [item]}


@pytest.mark.parametrize(
    ("mine", "theirs", "overlap"),
    [
        ("streams", "streams", True),
        ("streams", "streams/inside", True),
        ("streams/inside", "streams", True),
        ("streams", "", True),
        ("", "streams", True),
        ("streams", "streams2", False),
        ("a", "b", False),
    ],
)
def test_places_that_overlap(mine: str, theirs: str, overlap: bool) -> None:
    younger, older = resource("younger", "2026-01-02T00:00:00Z", prefix=mine), resource("older", "2026-01-01T00:00:00Z")
    older["spec"]["tier2"]["prefix"] = theirs
    spec = StreamClusterSpec.parse(younger)
    problem = rival_problem(younger, spec, [younger, older])
    assert (problem is not None) == overlap
    assert rival_problem(older, StreamClusterSpec.parse(older), [younger, older]) is None, "who was first stays"


def test_other_buckets_and_stores_are_other_places() -> None:
    younger = resource("younger", "2026-01-02T00:00:00Z")
    spec = StreamClusterSpec.parse(younger)
    for change in ({"bucket": "other"}, {"endpoint": "http://elsewhere:9000"}):
        assert rival_problem(younger, spec, [resource("older", "2026-01-01T00:00:00Z", **change)]) is None


def test_one_of_two_of_the_same_second_stays() -> None:
    one, two = resource("one", "2026-01-01T00:00:00Z"), resource("two", "2026-01-01T00:00:00Z")
    spec = StreamClusterSpec.parse(one)
    refused = [rival_problem(mine, spec, [one, two]) is not None for mine in (one, two)]
    assert sorted(refused) == [False, True]


def test_one_id_is_one_cluster_however_its_place_is_written() -> None:
    """Two names of one endpoint cannot be distinguished from two stores; the id of the cluster can."""
    older, younger = resource("older", "2026-01-01T00:00:00Z"), resource("younger", "2026-01-02T00:00:00Z")
    older["metadata"]["uid"] = "99999999-2222-4333-8444-555555555555"
    younger["spec"]["adoptClusterId"] = older["metadata"]["uid"]
    younger["spec"]["tier2"]["endpoint"] = "http://minio.storage.svc:9000"
    problem = rival_problem(younger, StreamClusterSpec.parse(younger), [younger, older])
    assert problem is not None
    assert problem.reason == "ClusterIdShared"
    assert problem.message.startswith(
        "spec.adoptClusterId: 99999999-2222-4333-8444-555555555555 is the id of StreamCluster "
    )
    assert rival_problem(older, StreamClusterSpec.parse(older), [younger, older]) is None


def test_a_cluster_that_runs_stays_before_an_older_one_that_comes_to_its_place() -> None:
    older, younger = resource("older", "2026-01-01T00:00:00Z"), resource("younger", "2026-01-02T00:00:00Z")
    younger["status"] = {"containers": [{"id": 0, "worker": "younger-store-0-0"}]}
    assert rival_problem(younger, StreamClusterSpec.parse(younger), [younger, older]) is None
    problem = rival_problem(older, StreamClusterSpec.parse(older), [younger, older])
    assert problem is not None
    assert problem.reason == "BucketShared"


@pytest.mark.parametrize("condition", ["Accepted", "Tier2Ready"])
def test_a_refused_cluster_keeps_no_other_one_from_its_place(condition: str) -> None:
    older, younger = resource("older", "2026-01-01T00:00:00Z"), resource("younger", "2026-01-02T00:00:00Z")
    spec = StreamClusterSpec.parse(younger)
    refused(older, condition)
    assert rival_problem(younger, spec, [younger, older]) is None
    refused(older, condition, generation=1)
    assert rival_problem(younger, spec, [younger, older]) is not None, "its correction has not been looked at"
    younger["status"] = claim(spec.tier2)
    assert rival_problem(younger, spec, [younger, older]) is None, "it has the place already"
    problem = rival_problem(older, StreamClusterSpec.parse(older), [younger, older])
    assert problem is not None
    assert problem.reason == "BucketShared"


def test_a_claim_stays_while_its_cluster_is_edited() -> None:
    """The pods of the place that it leaves, or of a specification that is refused, may run."""
    holder, other = resource("holder", "2026-01-02T00:00:00Z"), resource("other", "2026-01-01T00:00:00Z")
    holder["status"] = claim(StreamClusterSpec.parse(holder).tier2)
    assert claim_of(holder) == Place("http://minio:9000", "data", "streams")
    holder["spec"] = {"tier2": "not a specification"}
    assert rival_problem(other, StreamClusterSpec.parse(other), [holder, other]) is not None
    holder["spec"] = resource("x", "", prefix="new")["spec"]
    assert rival_problem(other, StreamClusterSpec.parse(other), [holder, other]) is not None
    other["spec"]["tier2"]["prefix"] = "new"
    other["status"] = claim(StreamClusterSpec.parse(other).tier2)
    assert rival_problem(holder, StreamClusterSpec.parse(holder), [holder, other]) is not None
    assert rival_problem(other, StreamClusterSpec.parse(other), [holder, other]) is None


PAUSES_S = (0.0, 0.0, 0.1, 5.0)
"""Of which each answer takes one: now and then one cluster passes all its checks while another waits for one answer."""


class ObjectStore:
    """An object store of no cluster that answers after a while; `refuses`: the credentials may not write.

    `mark`: the cluster that it belongs to. `may_make`: for each look, whether it may make the bucket.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.proofs = 0
        self.refuses = False
        self.is_quick = False
        self.mark: ClusterIdentity | None = None
        self.may_make: list[bool] = []

    async def _answer(self) -> None:
        await asyncio.sleep(0.0 if self.is_quick else self._dice.choice(PAUSES_S))

    async def look(
        self, tier2: Tier2Spec, credentials: Credentials, *, creates_bucket: bool = True
    ) -> ClusterIdentity | None:
        await self._answer()
        self.may_make.append(creates_bucket)
        return self.mark

    async def rules(self, tier2: Tier2Spec, credentials: Credentials) -> BucketRules:
        await self._answer()
        return BucketRules()

    async def prove_rights(self, tier2: Tier2Spec, credentials: Credentials) -> None:
        await self._answer()
        self.proofs += 1
        if self.refuses:
            raise Tier2Error("AccessDenied", "spec.tier2.credentialsSecret: may not write")


class SlowObjects(LocalObjects):
    """An API server that answers after a while; `next_s`: before the next lists are answered."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice
        self.next_s: list[float] = []

    async def list(self, *arguments: Any, **options: Any) -> Any:
        found = await super().list(*arguments, **options)
        await asyncio.sleep(self.next_s.pop(0) if self.next_s else self._dice.choice(PAUSES_S))
        return found


class System:
    """Resources, an object store, and the reconciler."""

    def __init__(self, dice: random.Random) -> None:
        self.objects, self.store = SlowObjects(dice), ObjectStore(dice)
        self.placements = Placements(lambda namespace: LocalKubernetes(), NoWorkerAnswers())
        self.reconciler = StreamClusterReconciler(
            self.objects, self.store, self.placements, StoppedClock(), image="tailrace", namespace=NAMESPACE
        )
        self.hand = Hand(self.objects, {STREAM_CLUSTERS.plural: self.reconciler})
        self.objects.make(SECRETS, "minio", {})
        secret = self.objects._find(SECRETS, NAMESPACE, "minio")
        self.objects._store(SECRETS, secret | {"data": {"accessKey": "YQ==", "secretKey": "Yg=="}})

    def make(self, name: str, age: int, **tier2: str) -> None:
        spec = resource(name, "", **tier2)["spec"]
        self.objects.make(STREAM_CLUSTERS, name, spec, creationTimestamp=f"2026-01-0{age}T00:00:00Z")

    async def look(self, name: str) -> tuple[str, str, str]:
        """Reconcile, and return Accepted, Tier2Ready and whether there are pods."""
        await self.hand.look(STREAM_CLUSTERS, name)
        accepted = self.hand.condition(STREAM_CLUSTERS, name, "Accepted")[1]
        usable = self.hand.condition(STREAM_CLUSTERS, name, "Tier2Ready")[1]
        return accepted, usable, "pods" if self.objects.exists(STATEFUL_SETS, f"{name}-store") else "no pods"


def play(seed: int, scenario: Any) -> None:
    with SimWorld(seed) as world:

        async def main() -> None:
            system = System(random.Random(seed))
            try:
                await scenario(system)
            finally:
                await system.placements.close()

        world.run(main())


async def at_once(system: System, after_s: float, what: str) -> None:
    """A cluster that was refused is corrected `after_s` after another one was made: one gets and keeps the place."""
    system.make("older", 1, credentialsSecret="none")
    assert await system.look("older") == ("Accepted", "SecretMissing", "no pods")
    tier2 = system.objects._find(STREAM_CLUSTERS, NAMESPACE, "older")["spec"]["tier2"]
    system.make("younger", 2, prefix="streams/inside")

    async def correct() -> tuple[str, str, str]:
        await asyncio.sleep(after_s)
        system.objects.edit(STREAM_CLUSTERS, "older", {"tier2": {**tier2, "credentialsSecret": "minio"}})
        return await system.look("older")

    found = [*await asyncio.gather(correct(), system.look("younger"))]
    for _ in range(2):
        assert sorted(pods for _, _, pods in found) == ["no pods", "pods"], f"{what}: {found}"
        assert sorted(accepted for accepted, _, _ in found) == ["Accepted", "BucketShared"]
        found = [await system.look("older"), await system.look("younger")]


def test_a_cluster_that_is_corrected_while_another_claims_its_place_waits() -> None:
    """The last list of the younger one shows the older one as it was refused, and is answered late."""

    async def scenario(system: System) -> None:
        system.store.is_quick = True
        system.objects.next_s = [0, 0, 5, 0, 0]
        await at_once(system, 1, "the claim")

    play(1, scenario)


@pytest.mark.parametrize("seed", range(20))
def test_of_two_that_are_accepted_at_once_one_gets_the_place(seed: int) -> None:
    play(seed, lambda system: at_once(system, seed % 13, f"seed {seed}"))


def test_a_cluster_with_data_is_not_moved_to_an_empty_store() -> None:
    """Its pods would end one after the other, and none would start: they refuse a store without their data."""

    async def scenario(system: System) -> None:
        system.make("main", 1)
        assert await system.look("main") == ("Accepted", "Usable", "pods")
        status = system.objects._find(STREAM_CLUSTERS, NAMESPACE, "main")["status"]
        placed = {"containers": [{"id": 0, "worker": "main-store-0-0"}]}
        system.objects.put_status(STREAM_CLUSTERS, "main", status | placed)
        before = system.objects._find(STATEFUL_SETS, NAMESPACE, "main-store")["spec"]
        found = system.objects._find(STREAM_CLUSTERS, NAMESPACE, "main")
        edited = {**found["spec"]["tier2"], "endpoint": "http://empty:9000"}
        system.objects.edit(STREAM_CLUSTERS, "main", {"tier2": edited})
        assert await system.look("main") == ("Accepted", "DataMissing", "pods")
        assert system.objects._find(STATEFUL_SETS, NAMESPACE, "main-store")["spec"] == before
        now = system.objects._find(STREAM_CLUSTERS, NAMESPACE, "main")
        assert now["status"]["tier2"] == found["status"]["tier2"]

    play(1, scenario)


def test_nothing_is_begun_where_a_cluster_that_is_adopted_has_no_data() -> None:
    """As where its prefix is misspelt: the bucket may not be made, or the place claimed."""
    former = "01234567-89ab-cdef-0123-456789abcdef"

    async def scenario(system: System) -> None:
        system.make("main", 1)
        system.objects.edit(STREAM_CLUSTERS, "main", {"adoptClusterId": former})
        assert await system.look("main") == ("Accepted", "DataMissing", "no pods")
        assert system.store.may_make == [False]
        assert claim_of(system.objects._find(STREAM_CLUSTERS, NAMESPACE, "main")) is None
        system.store.mark = ClusterIdentity(former, 8)
        assert await system.look("main") == ("Accepted", "ContainersChanged", "no pods")
        assert claim_of(system.objects._find(STREAM_CLUSTERS, NAMESPACE, "main")) is None, "containers may be changed"
        system.objects.edit(STREAM_CLUSTERS, "main", {"containers": 8})
        assert await system.look("main") == ("Accepted", "Usable", "pods")

    play(1, scenario)


def test_credentials_that_may_not_write_make_no_pods() -> None:
    async def scenario(system: System) -> None:
        system.store.refuses = True
        system.make("one", 1)
        assert await system.look("one") == ("Accepted", "AccessDenied", "no pods")
        assert claim_of(system.objects._find(STREAM_CLUSTERS, NAMESPACE, "one")) is None
        system.store.refuses = False
        assert await system.look("one") == ("Accepted", "Usable", "pods")
        assert await system.look("one") == ("Accepted", "Usable", "pods")
        assert system.store.proofs == 2, "once it was proven, not at every look"
        await asyncio.sleep(limits.TIER2_RIGHTS_PERIOD_S)
        system.store.refuses = True
        assert await system.look("one") == ("Accepted", "AccessDenied", "pods")

    play(1, scenario)


def test_a_secret_that_is_made_again_replaces_pods_only_with_other_credentials() -> None:
    async def scenario(system: System) -> None:
        def of_pods(name: str) -> str:
            template = system.objects._find(STATEFUL_SETS, NAMESPACE, f"{name}-store")["spec"]["template"]
            return str(template["metadata"]["annotations"][CREDENTIALS_ANNOTATION])

        async def looked(name: str) -> str:
            assert await system.look(name) == ("Accepted", "Usable", "pods")
            return of_pods(name)

        system.make("one", 1, prefix="one")
        system.make("two", 1, prefix="two")
        before = await looked("one")
        assert await looked("two") != before, "whether two clusters have the same credentials is not to be seen"
        data = system.objects._find(SECRETS, NAMESPACE, "minio")["data"]
        kept = system.objects._find(SECRETS, NAMESPACE, "minio")
        labelled = {**kept, "metadata": {**kept["metadata"], "labels": {"x": "y"}}}
        system.objects._store(SECRETS, labelled)
        newer = system.objects._find(SECRETS, NAMESPACE, "minio")["metadata"]
        assert newer["resourceVersion"] != kept["metadata"]["resourceVersion"]
        assert await looked("one") == before, "the content is the same"
        found = []
        for key in (data["secretKey"], "Yw==", data["secretKey"]):
            system.objects.remove(SECRETS, "minio")
            system.objects.make(SECRETS, "minio", {})
            made = system.objects._find(SECRETS, NAMESPACE, "minio")
            system.objects._store(SECRETS, made | {"data": {**data, "secretKey": key}})
            found.append(await looked("one"))
        assert found[0] == found[2] == before
        assert found[1] != before

    play(1, scenario)
