"""StreamClusters that cannot be: a condition names the field and the fix, nothing restarts, no data is touched."""

from __future__ import annotations

import base64
import copy
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from harness.kubectl import Kubectl, Manifest, condition_of
from harness.kubeload import PROGRAM_FOLDER, Images, Programs
from harness.kubesystem import API_VERSION, StreamSystem, reasons
from tailrace.cluster.kubernetes_requests import kubeconfig_configuration
from tailrace.common.errors import WriteConflictError
from tailrace_operator.kube.objects import SERVICE_ACCOUNTS, HttpObjects

REPORTED_S = 90.0
GONE_S = 90.0
FOREIGN_ID = "0a0a0a0a-1b1b-2c2c-3d3d-4e4e4e4e4e4e"
FOREIGN_CONTAINERS = 4
NAME = "bad"


@dataclass(frozen=True)
class Bad:
    """What is wrong, and how the operator reports it: reason and words of the message."""

    title: str
    spoil: Callable[[Manifest], None]
    reason: str
    words: tuple[str, ...]


def _tier2(**fields: Any) -> Callable[[Manifest], None]:
    return lambda spec: spec["tier2"].update(fields)


def _foreign(spec: Manifest) -> None:
    spec["tier2"]["prefix"] = "foreign"


def _adopted_with_other_containers(spec: Manifest) -> None:
    _foreign(spec)
    spec.update(adoptClusterId=FOREIGN_ID, containers=FOREIGN_CONTAINERS * 2)


def _memory(spec: Manifest) -> None:
    spec["segmentStore"].update(memory="128Mi", workers=4)


BAD = (
    Bad("no Secret", _tier2(credentialsSecret="no-such-secret"), "SecretMissing", ("spec.tier2.credentialsSecret",)),
    Bad("half a Secret", _tier2(credentialsSecret="half"), "SecretIncomplete", ("credentialsSecret", "secretKey")),
    Bad("wrong credentials", _tier2(credentialsSecret="wrong"), "CredentialsWrong", ("credentialsSecret", "correct")),
    Bad(
        "unreachable endpoint",
        _tier2(endpoint="http://nowhere.invalid:9000"),
        "EndpointUnreachable",
        ("spec.tier2.endpoint", "correct it"),
    ),
    Bad("bucket of another cluster", _foreign, "BucketOfAnotherCluster", ("spec.tier2", "adoptClusterId", FOREIGN_ID)),
    Bad("same prefix as another", _tier2(prefix="{main}"), "BucketShared", ("spec.tier2.prefix", "another bucket")),
    Bad("memory too small", _memory, "MemoryTooSmall", ("spec.segmentStore.memory", "raise it")),
    Bad(
        "other number of containers",
        _adopted_with_other_containers,
        "ContainersChanged",
        ("spec.containers", f"set it to {FOREIGN_CONTAINERS}"),
    ),
)


@pytest.fixture(scope="module")
def secrets(system: StreamSystem) -> Iterator[None]:
    """Secrets that do not do."""
    for name, data in (("half", {"accessKey": "a"}), ("wrong", {"accessKey": "unknown", "secretKey": "knows-nothing"})):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
        system.kube.apply(secret)
    yield
    system.kube.delete("secret", "half", "wrong")


@dataclass(frozen=True)
class Bucket:
    """The bucket of the installed system."""

    system: StreamSystem
    programs: Programs
    images: Images

    def objects(self, *words: str) -> dict[str, str]:
        """Return what ``programs/objects.py`` prints."""
        tier2 = self.system.resource()["spec"]["tier2"]
        data = self.system.kube.get("secret", tier2["credentialsSecret"])["data"]
        keys = {"ACCESS_KEY": "accessKey", "SECRET_KEY": "secretKey"}
        environment = {name: base64.b64decode(data[key]).decode() for name, key in keys.items()}
        command = ["python3.11", f"{PROGRAM_FOLDER}/objects.py", tier2["endpoint"], tier2["bucket"], *words]
        output = self.programs.run("objects", self.images.python, command, environment=environment)
        found: dict[str, str] = json.loads(output.strip().splitlines()[-1])
        return found


@pytest.fixture
def bucket(healthy: StreamSystem, programs: Programs, images: Images) -> Bucket:
    """The bucket, with a prefix that belongs to a cluster which does not exist any more."""
    made = Bucket(healthy, programs, images)
    made.objects("mark", "foreign", FOREIGN_ID, str(FOREIGN_CONTAINERS))
    return made


@pytest.fixture
def kube(healthy: StreamSystem) -> Iterator[Kubectl]:
    """kubectl; the bad cluster is gone afterwards."""
    healthy.kube.delete("streamcluster", NAME, deadline_s=GONE_S)
    yield healthy.kube
    healthy.kube.delete("streamcluster", NAME, deadline_s=GONE_S)


def spoiled(system: StreamSystem, bad: Bad) -> Manifest:
    """A StreamCluster beside the good one with one thing wrong."""
    main = system.resource()["spec"]
    spec: Manifest = {
        "containers": FOREIGN_CONTAINERS,
        "segmentStore": {"replicas": 1, "workers": 1, "memory": "1Gi"},
        "controller": {"replicas": 1},
        "tier2": {**copy.deepcopy(main["tier2"]), "prefix": f"other-{uuid.uuid4().hex[:8]}"},
    }
    bad.spoil(spec)
    prefix = main["tier2"].get("prefix", "")
    spec["tier2"]["prefix"] = spec["tier2"]["prefix"].replace("{main}", prefix)
    return {"apiVersion": API_VERSION, "kind": "StreamCluster", "metadata": {"name": NAME}, "spec": spec}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.title.replace(" ", "-"))
def test_a_condition_says_what_is_wrong(
    bad: Bad, healthy: StreamSystem, kube: Kubectl, bucket: Bucket, secrets: None
) -> None:
    restarts = healthy.restarts()
    foreign = bucket.objects("list", "foreign")
    kube.apply(spoiled(healthy, bad))
    found = kube.until_condition("streamcluster", NAME, "Ready", "False", REPORTED_S)
    assert found["reason"] == bad.reason, found
    for word in bad.words:
        assert word in found["message"], found
    assert bad.reason in reasons(kube, NAME)
    assert not kube.list("pods", f"app.kubernetes.io/instance={NAME}"), "pods that cannot work were made"
    assert bucket.objects("list", "foreign") == foreign
    assert condition_of(healthy.resource(), "Ready")["status"] == "True"
    assert healthy.restarts() == restarts


@pytest.fixture
def theirs(kube: Kubectl) -> Iterator[list[Manifest]]:
    """Objects of another user under names of children of the bad cluster; gone afterwards."""
    metadata = {"name": f"{NAME}-store", "labels": {"mine": "yes"}}
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": f"{NAME}-controller"}}
    made: list[Manifest] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {**role, "rules": rules},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {"a": "b"}},
    ]
    kube.apply(*made)
    yield [kube.get(item["kind"], item["metadata"]["name"]) for item in made]
    for item in made:
        kube.delete(item["kind"], item["metadata"]["name"])


def test_names_that_are_taken_are_left_to_whose_they_are(
    healthy: StreamSystem, kube: Kubectl, theirs: list[Manifest]
) -> None:
    """A ServiceAccount, a Role and a ConfigMap of others: reported, not changed; without them the cluster comes up."""
    kube.apply(spoiled(healthy, Bad("names", lambda spec: None, "NameTaken", ())))
    found = kube.until_condition("streamcluster", NAME, "Ready", "False", REPORTED_S)
    assert found["reason"] == "NameTaken", found
    for item in theirs:
        assert f"{item['kind']} {item['metadata']['name']}" in found["message"], found
    assert "NameTaken" in reasons(kube, NAME)
    assert [kube.get(item["kind"], item["metadata"]["name"]) for item in theirs] == theirs, "they were changed"
    for kind in ("statefulset", "deployment", "service", "rolebinding", "poddisruptionbudget"):
        assert not kube.list(kind, f"app.kubernetes.io/instance={NAME}"), f"a {kind} was made"
    for item in theirs:
        kube.delete(item["kind"], item["metadata"]["name"])
    StreamSystem(kube, NAME).until_ready()


def test_what_is_left_of_a_cluster_has_names_that_are_not_taken(healthy: StreamSystem, kube: Kubectl) -> None:
    """Deleted without its children and made again, with its data: all of them are the new one's, and the same ones."""
    resource = spoiled(healthy, Bad("none", lambda spec: None, "", ()))
    kube.apply(resource)
    StreamSystem(kube, NAME).until_ready()
    cluster_id = kube.get("streamcluster", NAME)["status"]["clusterId"]

    def accounts() -> list[tuple[str, list[str]]]:
        found = [kube.get("serviceaccount", f"{NAME}-{of}")["metadata"] for of in ("store", "controller")]
        found.append(kube.get("statefulset", f"{NAME}-store")["metadata"])
        return [(item["uid"], [owner["uid"] for owner in item.get("ownerReferences", [])]) for item in found]

    before = accounts()
    kube("delete", "streamcluster", NAME, "--cascade=orphan")
    assert accounts() == [(uid, []) for uid, _ in before]
    resource["spec"]["adoptClusterId"] = cluster_id
    kube.apply(resource)
    owner = kube.get("streamcluster", NAME)["metadata"]["uid"]
    wanted = [(uid, [owner]) for uid, _ in before]
    kube.until("its children are the new one's", lambda: True if accounts() == wanted else None, REPORTED_S)
    StreamSystem(kube, NAME).until_ready()


async def test_an_apply_that_may_only_make_takes_no_name_that_is_taken(healthy: StreamSystem) -> None:
    """What the operator's applies rely on, of a real API server: neither changes an object that was not looked at."""
    kube = healthy.kube
    objects = HttpObjects(kubeconfig_configuration(str(kube.kubeconfig)), "test")
    manifest: Manifest = {"metadata": {"name": "taken-or-not"}, "automountServiceAccountToken": False}
    certain = {**manifest, "metadata": {**manifest["metadata"], "uid": FOREIGN_ID}}
    try:
        with pytest.raises(WriteConflictError):
            await objects.apply(SERVICE_ACCOUNTS, kube.namespace, certain)
        assert kube.find("serviceaccount", "taken-or-not") is None
        made = await objects.apply(SERVICE_ACCOUNTS, kube.namespace, manifest, only_new=True)
        with pytest.raises(WriteConflictError):
            await objects.apply(SERVICE_ACCOUNTS, kube.namespace, {**manifest, "secrets": []}, only_new=True)
        with pytest.raises(WriteConflictError):
            await objects.apply(SERVICE_ACCOUNTS, kube.namespace, certain)
        assert await objects.get(SERVICE_ACCOUNTS, kube.namespace, "taken-or-not") == made
        version = {name: made["metadata"][name] for name in ("uid", "resourceVersion")}
        seen = {**manifest, "metadata": {**manifest["metadata"], **version}, "secrets": []}
        await objects.apply(SERVICE_ACCOUNTS, kube.namespace, {**manifest, "automountServiceAccountToken": True})
        with pytest.raises(WriteConflictError):
            await objects.apply(SERVICE_ACCOUNTS, kube.namespace, seen)
    finally:
        objects.close()
        kube.delete("serviceaccount", "taken-or-not")


def test_a_cluster_that_is_mended_comes_up(healthy: StreamSystem, kube: Kubectl, secrets: None) -> None:
    """Wrong credentials, then the right Secret; no deletion in between."""
    bad = next(item for item in BAD if item.reason == "CredentialsWrong")
    kube.apply(spoiled(healthy, bad))
    kube.until_condition("streamcluster", NAME, "Ready", "False", REPORTED_S)
    right = healthy.resource()["spec"]["tier2"]["credentialsSecret"]
    kube.patch("streamcluster", NAME, {"spec": {"tier2": {"credentialsSecret": right}}})
    StreamSystem(kube, NAME).until_ready()


def test_bad_input_to_a_running_cluster_stops_nothing(healthy: StreamSystem, kube: Kubectl) -> None:
    """Memory that is too small: a condition, and the pods stay as they are."""

    def own_pods() -> dict[str, str]:
        """Only this cluster's: those of an earlier test may still be ending."""
        found = kube.list("pods", f"app.kubernetes.io/instance={healthy.cluster}")
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    pods = own_pods()
    assert pods
    right = healthy.resource()["spec"]["segmentStore"]
    kube.patch("streamcluster", healthy.cluster, {"spec": {"segmentStore": {"memory": "128Mi"}}})
    try:
        found = kube.until_condition("streamcluster", healthy.cluster, "Ready", "False", REPORTED_S)
        assert found["reason"] == "MemoryTooSmall", found
        assert own_pods() == pods
    finally:
        kube.patch("streamcluster", healthy.cluster, {"spec": {"segmentStore": {"memory": right["memory"]}}})
    healthy.until_ready()
    assert own_pods() == pods
