"""`tailrace-operator` as a process, against an API server over HTTP and a real MinIO."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from minio import Minio

from harness.apiserver import NAMESPACE, ApiServer, api_server, kubeconfig
from harness.minio import MinioProcess
from harness.operator_process import CHILDREN, DEADLINE_S, LEASE_NOT_RENEWED, Operators, until, until_answer
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, Kind, Manifest
from tailrace.common import limits
from tailrace_operator.kube.manifests import FINALIZER
from tailrace_operator.kube.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    PIPELINES,
    PODS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    STREAMS,
)

CHILDREN_OF_MAIN = {
    "ConfigMap": ["main"],
    "Deployment": ["main-controller"],
    "PodDisruptionBudget": ["main-controller", "main-store"],
    "Role": ["main-controller", "main-store"],
    "RoleBinding": ["main-controller", "main-store"],
    "Service": ["main-controller", "main-store", "main-store-0", "main-store-1"],
    "ServiceAccount": ["main-controller", "main-store"],
    "StatefulSet": ["main-store"],
}
"""All of `stream_cluster`. The operator writes a few at a time, so that no one of them says that the others exist."""


@pytest.fixture
async def operators(tmp_path: Path) -> AsyncIterator[Operators]:
    async with api_server() as (server, address):
        found = Operators(server, kubeconfig(tmp_path, address), tmp_path)
        yield found
        await asyncio.gather(*(process.kill() for process in found.processes))


@dataclass(frozen=True)
class Store:
    """A bucket on MinIO that belongs to no cluster yet."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str

    def client(self) -> Minio:
        """As its administrator."""
        return Minio(self.endpoint.removeprefix("http://"), self.access_key, self.secret_key, secure=False)


@pytest.fixture
def store(minio_server: MinioProcess) -> Store:
    keys = minio_server.credentials
    bucket = minio_server.new_bucket()
    return Store(minio_server.endpoint, keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"], bucket)


def make_secret(server: ApiServer, store: Store, **wrong: str) -> None:
    keys = {"accessKey": store.access_key, "secretKey": store.secret_key, **wrong}
    data = {name: base64.b64encode(value.encode()).decode() for name, value in keys.items()}
    server.make(SECRETS, {"metadata": {"name": "credentials"}, "data": data})


def stream_cluster(store: Store, name: str = "main", memory: str = "1536Mi", **tier2: Any) -> Manifest:
    """As a resource is after the API server has set its defaults."""
    place = {"bucket": store.bucket, "prefix": name, "endpoint": store.endpoint, "credentialsSecret": "credentials"}
    spec = {
        "containers": 4,
        "segmentStore": {"replicas": 2, "workers": 2, "memory": memory},
        "controller": {"replicas": 2, "memory": "512Mi"},
        "tier2": {**place, **tier2},
    }
    return {"metadata": {"name": name}, "spec": spec}


def run_pods(server: ApiServer, name: str = "main") -> None:
    """What Kubernetes does with the workloads: all their pods are ready."""
    for kind, child in ((STATEFUL_SETS, f"{name}-store"), (DEPLOYMENTS, f"{name}-controller")):
        found = server.find(kind, child)
        assert found is not None
        count, generation = found["spec"]["replicas"], found["metadata"]["generation"]
        status = {"replicas": count, "readyReplicas": count, "updatedReplicas": count, "observedGeneration": generation}
        server.edit(kind, child, {"status": status})


def mark_of(cluster_id: str) -> bytes:
    """The cluster.json of a cluster of four containers."""
    return json.dumps({"format": 1, "cluster": cluster_id, "containers": 4}).encode()


def make_worker(server: ApiServer, worker: str) -> None:
    """The Lease of a worker that lives while the test renews it."""
    annotations = {
        "tailrace.io/incarnation": "one",
        "tailrace.io/renewal": "1",
        "tailrace.io/leaving": "false",
        "tailrace.io/internal-endpoint": "127.0.0.1:1",
    }
    labels = {"tailrace.io/cluster": "main", "tailrace.io/role": "worker"}
    metadata = {"name": f"main.worker.{worker}", "labels": labels, "annotations": annotations}
    server.make(LEASES, {"metadata": metadata, "spec": {"holderIdentity": worker}})


async def renew(server: ApiServer, worker: str) -> None:
    """Renew a worker's Lease until cancelled."""
    for number in range(2, 10_000):
        await asyncio.sleep(0.5)
        server.edit(
            LEASES, f"main.worker.{worker}", {"metadata": {"annotations": {"tailrace.io/renewal": str(number)}}}
        )


async def test_a_cluster_gets_its_children_its_map_and_its_status(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    await operators.start()
    made = server.make(STREAM_CLUSTERS, stream_cluster(store))
    await operators.until_condition("SegmentStoreReady", "False", "PodsChanging")
    assert operators.children() == CHILDREN_OF_MAIN
    run_pods(server)
    _put(store, "main/cluster.json", mark_of(made["metadata"]["uid"]))  # as a worker does before its Lease
    make_worker(server, "main-store-0-0")
    renewing = asyncio.create_task(renew(server, "main-store-0-0"))
    try:
        await operators.until_condition("Ready", "True", "Serving")
    finally:
        renewing.cancel()
    status = server.find(STREAM_CLUSTERS, "main")["status"]  # type: ignore[index]
    assert status["clusterId"] == made["metadata"]["uid"]
    assert status["controllerUri"] == f"tcp://main-controller.{NAMESPACE}.svc:9090"
    assert (status["readyStores"], status["readyControllers"], status["observedGeneration"]) == (2, 2, 1)
    assert [item["worker"] for item in status["containers"]] == ["main-store-0-0"] * 4
    wanted = {("Usable", "Normal"), ("PodsReady", "Normal"), ("Serving", "Normal")}
    await until(lambda: wanted <= {(event["reason"], event["type"]) for event in server.all(EVENTS)})
    assert await until_answer(operators.health, 200) == "ok"
    assert store.secret_key not in (operators.folder / "log-0").read_text()
    message = await operators.until_condition("ContainersPlaced", "False", "ContainersWithoutWorker")
    assert message == "4 of 4 containers have no worker: workers that take containers: 0; gone: main-store-0-0."


async def test_conditions_explain_in_kubernetes_words_why_pods_are_not_ready(
    operators: Operators, store: Store
) -> None:
    server = operators.server
    make_secret(server, store)
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await until(lambda: operators.children() == CHILDREN_OF_MAIN)
    for name, of, component in (("main-store-1", "main", "segmentstore"), ("other-store-0", "other", "segmentstore")):
        labels = {"name": "tailrace", "instance": of, "component": component}
        metadata = {"name": name, "labels": {f"app.kubernetes.io/{key}": value for key, value in labels.items()}}
        waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
        status = {"containerStatuses": [{"name": component, "ready": False, "state": {"waiting": waiting}}]}
        server.make(PODS, {"metadata": metadata})
        server.edit(PODS, name, {"status": status})
    for kind, name in ((STATEFUL_SETS, "main-store"), (DEPLOYMENTS, "main-controller")):
        ready = {"replicas": 2, "readyReplicas": 1, "updatedReplicas": 2, "observedGeneration": 1}
        server.edit(kind, name, {"status": ready})
    message = await operators.until_condition("SegmentStoreReady", "False", "PodsNotReady")
    assert (
        message == "1 of 2 segment store pods are ready: pod main-store-1: ImagePullBackOff (Back-off pulling image)."
    )
    message = await operators.until_condition("ControllerReady", "False", "PodsNotReady")
    assert message == "1 of 2 controller pods are ready."
    server.edit(PODS, "main-store-1", {"metadata": {"finalizers": ["other.io/slow"]}})
    server.remove(PODS, "main-store-1")
    ending = "1 of 2 segment store pods are ready: waiting for terminating pods: main-store-1."
    await until(lambda: operators.condition("SegmentStoreReady")[2] == ending)
    server.forbidden.add(f"/api/v1/namespaces/{NAMESPACE}/pods")  # a role that is older than the operator
    await until(lambda: operators.condition("SegmentStoreReady")[2] == "1 of 2 segment store pods are ready.")


async def test_what_drifts_is_corrected(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await until(lambda: operators.children() == CHILDREN_OF_MAIN)
    wanted = server.find(STATEFUL_SETS, "main-store")
    assert wanted is not None
    server.edit(STATEFUL_SETS, "main-store", {"spec": {"replicas": 7}, "metadata": {"annotations": {"mine": "stays"}}})
    server.remove(SERVICES, "main-store-1")
    server.edit(SERVICES, "main-controller", {"spec": {"selector": {"app.kubernetes.io/instance": "other"}}})

    def corrected() -> bool:
        store, service = server.find(STATEFUL_SETS, "main-store"), server.find(SERVICES, "main-controller")
        assert store is not None
        assert service is not None
        selector = service["spec"]["selector"]["app.kubernetes.io/instance"]
        there = server.find(SERVICES, "main-store-1") is not None
        return store["spec"] == wanted["spec"] and there and selector == "main"

    await until(corrected)
    found = server.find(STATEFUL_SETS, "main-store")
    assert found is not None
    assert found["metadata"]["annotations"] == {"mine": "stays"}


async def test_fewer_pods_keep_their_addresses_until_they_have_gone(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await until(lambda: operators.children() == CHILDREN_OF_MAIN)
    run_pods(server)
    server.edit(STREAM_CLUSTERS, "main", {"spec": {"segmentStore": {"replicas": 1}}})
    await until(lambda: server.find(STATEFUL_SETS, "main-store")["spec"]["replicas"] == 1)  # type: ignore[index]
    await until(lambda: server.find(STREAM_CLUSTERS, "main")["status"]["observedGeneration"] == 2)  # type: ignore[index]
    assert server.find(SERVICES, "main-store-1") is not None, "its pod still drains"
    server.edit(STATEFUL_SETS, "main-store", {"status": {"replicas": 1}})
    await until(lambda: server.find(SERVICES, "main-store-1") is None)
    assert server.find(SERVICES, "main-store-0") is not None


async def test_a_cluster_that_is_deleted_takes_its_children_along(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await until(lambda: operators.children() == CHILDREN_OF_MAIN)
    server.remove(STREAM_CLUSTERS, "main")
    assert server.find(STREAM_CLUSTERS, "main") is None, "nothing holds it"
    await until(lambda: any(line["event"] == "placer_stopped" for line in operators.log()))
    await until(lambda: operators.children() == {}, lambda: str(operators.children()))


@pytest.mark.parametrize(
    ("change", "secret", "condition", "reason", "named"),
    [
        ({}, None, "Tier2Ready", "SecretMissing", "spec.tier2.credentialsSecret"),
        ({}, {"secretKey": ""}, "Tier2Ready", "SecretIncomplete", "secretKey"),
        ({}, {"secretKey": "wrong-wrong"}, "Tier2Ready", "CredentialsWrong", "spec.tier2.credentialsSecret"),
        ({}, {"accessKey": "unknown"}, "Tier2Ready", "CredentialsWrong", "spec.tier2.credentialsSecret"),
        ({"endpoint": "http://127.0.0.1:9"}, {}, "Tier2Ready", "EndpointUnreachable", "spec.tier2.endpoint"),
        ({"prefix": "theirs"}, {}, "Tier2Ready", "BucketOfAnotherCluster", "spec.adoptClusterId"),
        ({"prefix": "damaged"}, {}, "Tier2Ready", "Unreadable", "spec.tier2"),
        ({"memory": "256Mi"}, {}, "Accepted", "MemoryTooSmall", "spec.segmentStore.memory"),
    ],
)
async def test_bad_input_is_reported_and_makes_no_pods(
    operators: Operators,
    store: Store,
    change: dict[str, Any],
    secret: dict[str, str] | None,
    condition: str,
    reason: str,
    named: str,
) -> None:
    server = operators.server
    marks = {"theirs/cluster.json": mark_of("other"), "damaged/cluster.json": b"{"}
    for name, content in marks.items():
        _put(store, name, content)
    if secret is not None:
        make_secret(server, store, **secret)
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store, **change))
    message = await operators.until_condition(condition, "False", reason)
    assert named in message
    assert operators.condition("Ready")[:2] == ("False", reason)

    def warnings() -> list[str]:
        return [event["reason"] for event in server.all(EVENTS) if event["type"] == "Warning"]

    await until(lambda: warnings() != [])
    looks = server.requests.count(workload := f"GET /apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/main-store")
    await until(lambda: server.requests.count(workload) >= looks + 3)
    assert warnings() == [reason], "one, not one for each period"
    assert operators.children() == {}
    found = {str(item.object_name) for item in store.client().list_objects(store.bucket, recursive=True)}
    assert found == set(marks), "no data is touched"


async def test_names_that_others_have_are_left_to_them(operators: Operators, store: Store) -> None:
    """A user who may create StreamClusters chooses the names of children; objects of other owners stay unchanged."""
    server = operators.server
    make_secret(server, store)
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    theirs = [
        server.make(SERVICE_ACCOUNTS, {"metadata": {"name": "main-store", "labels": {"mine": "yes"}}}),
        server.make(ROLES, {"metadata": {"name": "main-controller"}, "rules": rules}),
        server.make(CONFIG_MAPS, {"metadata": {"name": "main"}, "data": {"a": "b"}}),
    ]
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    message = await operators.until_condition("Accepted", "False", "NameTaken")
    assert operators.condition("Ready")[:2] == ("False", "NameTaken")
    for named in (
        "ServiceAccount main-store",
        "Role main-controller",
        "ConfigMap main",
        "another name",
        "delete these",
    ):
        assert named in message, message
    looks = server.requests.count(workload := f"GET /apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/main-store")
    await until(lambda: server.requests.count(workload) >= looks + 3)
    found = [server.find(SERVICE_ACCOUNTS, "main-store"), server.find(ROLES, "main-controller")]
    assert [*found, server.find(CONFIG_MAPS, "main")] == theirs
    assert operators.children() == {
        "ConfigMap": ["main"],
        "Role": ["main-controller"],
        "ServiceAccount": ["main-store"],
    }, "nothing is made beside them"
    assert [event["reason"] for event in server.all(EVENTS) if event["type"] == "Warning"] == ["NameTaken"]
    assert not list(store.client().list_objects(store.bucket, recursive=True))
    for kind, item in zip((SERVICE_ACCOUNTS, ROLES, CONFIG_MAPS), theirs, strict=True):
        server.remove(kind, item["metadata"]["name"])
    await operators.until_condition("Accepted", "True", "Accepted")
    await until(lambda: operators.children() == CHILDREN_OF_MAIN)


@pytest.mark.parametrize("replaces", [False, True])
async def test_what_comes_between_the_look_and_the_apply_is_not_changed(
    operators: Operators, store: Store, replaces: bool
) -> None:
    server = operators.server
    make_secret(server, store)
    made: list[Manifest] = []

    def meanwhile(manifest: Manifest) -> None:
        """Another client makes a ConfigMap as the operator is about to write a Role, which it does before."""
        ready = not replaces or operators.children() == CHILDREN_OF_MAIN
        if ready and not made:
            if replaces:
                server.remove(CONFIG_MAPS, "main")
            made.append(server.make(CONFIG_MAPS, {"metadata": {"name": "main"}, "data": {"controllerUri": "theirs"}}))

    server.refuse[ROLES.plural] = meanwhile
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await operators.until_condition("Accepted", "False", "NameTaken")
    assert [server.find(CONFIG_MAPS, "main")] == made
    server.remove(CONFIG_MAPS, "main")
    await operators.until_condition("Accepted", "True", "Accepted")


@pytest.mark.parametrize("of", [SERVICE_ACCOUNTS, STATEFUL_SETS], ids=lambda kind: kind.plural)
async def test_children_that_a_deletion_leaves_are_not_taken_back_by_the_reconciliation_it_meets(
    operators: Operators, store: Store, of: Kind
) -> None:
    """Deleted without its children while it is reconciled: none of them goes, and the next one adopts them all."""
    server = operators.server
    make_secret(server, store)
    first = server.make(STREAM_CLUSTERS, stream_cluster(store))
    left: dict[tuple[str, str], str] = {}

    def meanwhile(manifest: Manifest) -> None:
        """A user deletes the cluster as the operator is about to write a child that exists."""
        if not left and operators.children() == CHILDREN_OF_MAIN:
            server.orphan(STREAM_CLUSTERS, "main")
            for kind in CHILDREN:
                found = [one["metadata"] for one in server.all(kind)]
                left.update({(kind.plural, metadata["name"]): metadata["uid"] for metadata in found})

    server.refuse[of.plural] = meanwhile
    await operators.start()
    await until(lambda: bool(left))
    again = stream_cluster(store)
    again["spec"]["adoptClusterId"] = first["metadata"]["uid"]
    _put(store, "main/cluster.json", mark_of(first["metadata"]["uid"]))
    second = server.make(STREAM_CLUSTERS, again)

    def owners(plural: str, name: str) -> list[str]:
        metadata = (server.objects.get((plural, NAMESPACE, name)) or {"metadata": {}})["metadata"]
        assert metadata.get("uid") == left[plural, name], f"{plural} {name} was deleted"
        return [owner["uid"] for owner in metadata.get("ownerReferences") or []]

    assert len(left) == 15
    await until(lambda: all(owners(*place) == [second["metadata"]["uid"]] for place in left))


async def test_what_is_left_of_a_cluster_of_that_name_is_taken_over(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    await operators.start()
    first = server.make(STREAM_CLUSTERS, stream_cluster(store))
    await until(lambda: operators.children() == CHILDREN_OF_MAIN)
    server.orphan(STREAM_CLUSTERS, "main")
    await until(lambda: any(line["event"] == "placer_stopped" for line in operators.log()))
    left = {(kind.kind, item["metadata"]["name"]): item["metadata"] for kind in CHILDREN for item in server.all(kind)}
    assert len(left) == 15
    assert not [metadata for metadata in left.values() if metadata.get("ownerReferences")]
    again = stream_cluster(store)
    again["spec"]["adoptClusterId"] = first["metadata"]["uid"]
    _put(store, "main/cluster.json", mark_of(first["metadata"]["uid"]))
    second = server.make(STREAM_CLUSTERS, again)

    def owners(kind: str, name: str) -> list[str]:
        (found,) = (child for child in CHILDREN if child.kind == kind)
        metadata = (server.find(found, name) or {"metadata": {}})["metadata"]
        assert metadata.get("uid") == left[kind, name]["uid"], "it is the same one"
        return [owner["uid"] for owner in metadata.get("ownerReferences") or []]

    await until(lambda: all(owners(*place) == [second["metadata"]["uid"]] for place in left))


async def test_what_goes_with_the_cluster_before_is_waited_for(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    owner = {"apiVersion": "tailrace.io/v1alpha1", "kind": "StreamCluster", "name": "main", "uid": "of-the-one-before"}
    going = {"name": "main-store", "finalizers": ["other.io/slow"], "ownerReferences": [{**owner, "controller": True}]}
    server.make(SERVICE_ACCOUNTS, {"metadata": going})
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    message = await operators.until_condition("Accepted", "False", "NameTaken")
    assert "waiting for objects that are being deleted" in message
    assert operators.children() == {"ServiceAccount": ["main-store"]}
    assert not [event for event in server.all(EVENTS) if event["type"] == "Warning"]
    server.edit(SERVICE_ACCOUNTS, "main-store", {"metadata": {"finalizers": None}})
    await operators.until_condition("Accepted", "True", "Accepted")


async def test_a_secret_that_may_not_be_read_is_reported(operators: Operators, store: Store) -> None:
    make_secret(operators.server, store)
    operators.server.forbidden.add(f"/api/v1/namespaces/{NAMESPACE}/secrets/credentials")
    await operators.start()
    operators.server.make(STREAM_CLUSTERS, stream_cluster(store))
    message = await operators.until_condition("Tier2Ready", "False", "SecretForbidden")
    assert "may not read Secret credentials" in message
    assert operators.children() == {}
    operators.server.forbidden.clear()
    await operators.until_condition("Tier2Ready", "True", "Usable")


async def test_pods_that_run_are_left_alone_while_a_check_fails(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await operators.until_condition("Tier2Ready", "True", "Usable")
    await until(lambda: operators.children() == CHILDREN_OF_MAIN)
    before = [server.find(STATEFUL_SETS, "main-store"), server.find(DEPLOYMENTS, "main-controller")]
    wrong = base64.b64encode(b"wrong-wrong").decode()
    server.edit(SECRETS, "credentials", {"data": {"secretKey": wrong}})
    await operators.until_condition("Tier2Ready", "False", "CredentialsWrong")
    server.edit(STREAM_CLUSTERS, "main", {"spec": {"containers": 8}})
    message = await operators.until_condition("Accepted", "False", "ContainersChanged")
    assert "spec.containers" in message
    assert "set it to 4" in message
    assert [server.find(STATEFUL_SETS, "main-store"), server.find(DEPLOYMENTS, "main-controller")] == before
    right = base64.b64encode(store.secret_key.encode()).decode()
    server.edit(STREAM_CLUSTERS, "main", {"spec": {"containers": 4}})
    server.edit(SECRETS, "credentials", {"data": {"secretKey": right}, "metadata": {"labels": {"x": "y"}}})
    await operators.until_condition("Tier2Ready", "True", "Usable")
    assert server.find(STATEFUL_SETS, "main-store") == before[0], "the same credentials roll no pod"


async def test_new_credentials_roll_the_pods(operators: Operators, store: Store, minio_server: MinioProcess) -> None:
    server = operators.server
    make_secret(server, store)
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await until(lambda: operators.children() == CHILDREN_OF_MAIN)

    def fingerprint() -> str:
        found = server.find(STATEFUL_SETS, "main-store")
        assert found is not None
        return str(found["spec"]["template"]["metadata"]["annotations"]["tailrace.io/credentials"])

    before = fingerprint()
    access_key, secret_key = minio_server.new_user(store.bucket, ["s3:*"])
    server.remove(SECRETS, "credentials")
    make_secret(server, store, accessKey=access_key, secretKey=secret_key)
    await until(lambda: fingerprint() != before)


async def test_two_clusters_do_not_share_a_place(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    server.make(STREAM_CLUSTERS, stream_cluster(store, "first", prefix="place"))
    await asyncio.sleep(1.1)  # creation times have whole seconds; who of one second is older does not matter to users
    server.make(STREAM_CLUSTERS, stream_cluster(store, "second", prefix="place/inside"))
    await operators.start()
    message = await operators.until_condition("Accepted", "False", "BucketShared", "second")
    assert "StreamCluster here/first" in message
    await operators.until_condition("Accepted", "True", "Accepted", "first")
    assert server.find(STATEFUL_SETS, "second-store") is None


async def test_a_missing_bucket_is_made(operators: Operators, store: Store) -> None:
    make_secret(operators.server, store)
    await operators.start()
    operators.server.make(STREAM_CLUSTERS, stream_cluster(store, bucket=f"{store.bucket}-new"))
    await operators.until_condition("Tier2Ready", "True", "Usable")
    assert store.client().bucket_exists(f"{store.bucket}-new")


async def test_a_killed_leader_is_replaced(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    first = await operators.start()
    await until(lambda: operators.leader() != "")
    leader = operators.leader()
    await operators.start()
    await until_answer(lambda: operators.health("readyz", 1), 200)
    await until(lambda: any(line["event"] == "standing_by" for line in operators.log(1)))
    assert await operators.health("readyz", 1) == (200, "standing by")
    await first.kill()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await operators.until_condition("Tier2Ready", "True", "Usable")
    assert operators.leader() not in ("", leader)


@pytest.mark.usefixtures("sighup_by_default")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_leader_that_is_stopped_releases_its_lease_at_once(
    operators: Operators, number: signal.Signals
) -> None:
    first = await operators.start()
    await until(lambda: operators.leader() != "")
    first.send_signal(number)
    assert await asyncio.wait_for(first.wait(), DEADLINE_S) == 0
    assert operators.leader() == ""


@pytest.mark.parametrize("ends", [True, False])
async def test_a_namespace_that_goes_with_its_operator_does_not_hang(operators: Operators, ends: bool) -> None:
    server = operators.server
    finalizers = ["other.io/keep", FINALIZER]
    spec = {"cluster": "main", "scope": "shop", "deletionPolicy": "Delete"}
    server.make(STREAMS, {"metadata": {"name": "orders", "finalizers": finalizers}, "spec": spec})
    first = await operators.start()
    await until(lambda: operators.leader() != "")
    if ends:
        server.ending.add(NAMESPACE)
    first.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(first.wait(), DEADLINE_S) == 0
    stream = server.find(STREAMS, "orders")
    assert stream is not None
    assert stream["metadata"]["finalizers"] == (["other.io/keep"] if ends else finalizers)


async def test_a_leader_that_cannot_renew_ends_and_says_why(operators: Operators) -> None:
    first = await operators.start()
    await until(lambda: operators.leader() != "")
    operators.server.down = True
    assert await asyncio.wait_for(first.wait(), DEADLINE_S) == 1
    assert f"{LEASE_NOT_RENEWED} for 4 s" in operators.log()[-1]["reason"]


async def test_the_harness_starts_an_operator_again_that_had_no_processor(operators: Operators) -> None:
    process = await operators.start()

    def times(event: str) -> int:
        return [line["event"] for line in operators.log()].count(event)

    await until(lambda: times("leading") == 1)
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(limits.LEADER_DEADLINE_S + 1)
    process.send_signal(signal.SIGCONT)
    await until(lambda: times("ended") == 1)
    await until(lambda: times("leading") > 1)
    assert process.returncode is None


async def test_a_watch_that_falls_silent_is_noticed_and_costs_a_period(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    await operators.start()
    await until_answer(lambda: operators.health("readyz"), 200)
    server.mute.add(STREAM_CLUSTERS.plural)
    await until(lambda: operators.leader() != "")
    server.make(STREAM_CLUSTERS, stream_cluster(store, bucket=f"{store.bucket}-new"))
    await operators.until_condition("Tier2Ready", "True", "Usable")
    assert "the watch of streamclusters has stopped" in await until_answer(operators.health, 503)


async def test_its_watches_are_taken(operators: Operators) -> None:
    """As an API server takes them: whole seconds, for one."""
    process = await operators.start()
    await until(lambda: {"streamclusters", "streams", "readergroups"} <= operators.server.watched)
    assert process.returncode is None
    assert not [line for line in operators.log() if line["event"] == "library"]


async def test_definitions_may_come_later(operators: Operators, store: Store) -> None:
    server = operators.server
    make_secret(server, store)
    del server.kinds[STREAM_CLUSTERS.plural]
    await operators.start()
    await until(lambda: any(line["event"] == "kind_not_installed" for line in operators.log()))
    server.kinds[STREAM_CLUSTERS.plural] = STREAM_CLUSTERS
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await operators.until_condition("Tier2Ready", "True", "Usable")


async def test_containers_are_placed_while_other_definitions_are_missing(operators: Operators, store: Store) -> None:
    """An upgrade without its definitions must not keep containers from being placed."""
    server = operators.server
    make_secret(server, store)
    for kind in (STREAMS, PIPELINES):
        del server.kinds[kind.plural]
    await operators.start()
    server.make(STREAM_CLUSTERS, stream_cluster(store))
    await operators.until_condition("Tier2Ready", "True", "Usable")
    await until(lambda: any(line["event"] == "placer_started" for line in operators.log()))
    ready = await until_answer(lambda: operators.health("readyz"), 200)
    assert ready.startswith("leading, but without kinds that are not installed: Pipeline: ")
    assert "; Stream: " in ready
    assert "tailrace_operator_kinds_missing 2.0" in (await operators.health("metrics"))[1]
    for kind in (STREAMS, PIPELINES):
        server.kinds[kind.plural] = kind
    server.make(STREAMS, {"metadata": {"name": "orders"}, "spec": {"cluster": "none", "scope": "shop"}})
    await until(lambda: bool((server.find(STREAMS, "orders") or {}).get("status")))
    await until(lambda: {STREAMS.plural, PIPELINES.plural} <= server.watched)
    assert (await operators.health("readyz"))[1] == "leading"
    assert "tailrace_operator_kinds_missing 0.0" in (await operators.health("metrics"))[1]


def _put(store: Store, name: str, content: bytes) -> None:
    store.client().put_object(store.bucket, name, io.BytesIO(content), len(content))
