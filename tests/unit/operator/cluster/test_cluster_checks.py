"""Checks of StreamClusters: each names the field and the fix."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.cluster.placer import Unconfirmed
from tailrace.common import limits
from tailrace_operator.cluster import checks
from tailrace_operator.cluster.plan import Plan
from tailrace_operator.cluster.render import children
from tailrace_operator.cluster.state import open_condition, placed_condition, pods_condition, watched_fields
from tailrace_operator.cluster.tier2 import Credentials, Tier2Error
from tailrace_operator.kube.objects import STATEFUL_SETS
from tailrace_operator.reconcile.outcome import Status, ready
from tailrace_operator.schema.specs import ControllerSpec, SegmentStoreSpec, StreamClusterSpec, Tier2Spec

TIER2 = Tier2Spec("data", "http://minio:9000", "minio", "streams")
MIB = limits.MIB


def secret(**data: str) -> dict[str, Any]:
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}
    return {"metadata": {"uid": "u", "resourceVersion": "1"}, "data": encoded}


def test_memory_that_does_not_fit() -> None:
    assert checks.memory_problem(StreamClusterSpec(TIER2)) is None, "the defaults fit"
    problem = checks.memory_problem(StreamClusterSpec(TIER2, 16, SegmentStoreSpec(2, 8, 1024 * MIB)))
    assert problem is not None
    assert problem.message.startswith("spec.segmentStore.memory: ")
    assert "8 workers" in problem.message
    problem = checks.memory_problem(StreamClusterSpec(TIER2, controller=ControllerSpec(memory_bytes=128 * MIB)))
    assert problem is not None
    assert problem.message.startswith("spec.controller.memory: memory of 128 MiB is too small for a controller: ")


def test_a_changed_number_of_containers() -> None:
    spec = StreamClusterSpec(TIER2, 16)
    plan = Plan("main", "here", "uid", spec, "image", "print")
    (running,) = (child.manifest for child in children(plan) if child.kind == STATEFUL_SETS)
    assert checks.containers_problem(spec, running) is None
    assert checks.containers_problem(spec, None) is None
    problem = checks.containers_problem(StreamClusterSpec(TIER2, 8), running)
    assert problem is not None
    assert problem.message == (
        "spec.containers: the cluster has 16 containers, and this number cannot change: set it to 16"
    )


@pytest.mark.parametrize("damaged", [{}, {"spec": {}}, {"spec": {"template": {"spec": {"containers": []}}}}])
def test_a_foreign_workload_gives_no_number(damaged: dict[str, Any]) -> None:
    assert checks.containers_of(damaged) is None


def test_marks_of_others() -> None:
    spec = StreamClusterSpec(TIER2, 16)
    assert checks.mark_problem(spec, "ours", None, is_placed=False) is None
    assert checks.mark_problem(spec, "ours", ClusterIdentity("ours", 16), is_placed=True) is None
    missing = checks.mark_problem(spec, "ours", None, is_placed=True)
    assert missing is not None
    assert (missing.reason, missing.transient) == ("DataMissing", True)
    assert "has no cluster.json, but this cluster has written data" in missing.message
    adopting = StreamClusterSpec(TIER2, 16, adopt_cluster_id="former")
    nothing = checks.mark_problem(adopting, "former", None, is_placed=False)
    assert nothing is not None
    assert (nothing.reason, nothing.transient) == ("DataMissing", True)
    assert "has no cluster.json, but spec.adoptClusterId says that cluster former has written data" in nothing.message
    assert checks.mark_problem(adopting, "former", ClusterIdentity("former", 16), is_placed=False) is None
    theirs = checks.mark_problem(spec, "ours", ClusterIdentity("theirs", 16), is_placed=False)
    assert theirs is not None
    assert theirs.reason == "BucketOfAnotherCluster"
    assert "set spec.adoptClusterId to theirs" in theirs.message
    other = checks.mark_problem(spec, "ours", ClusterIdentity("ours", 8), is_placed=True)
    assert other is not None
    assert other.reason == "ContainersChanged"


def test_what_is_immutable_once_containers_are_placed_is_no_cure() -> None:
    theirs = checks.mark_problem(StreamClusterSpec(TIER2, 16), "ours", ClusterIdentity("theirs", 16), is_placed=True)
    assert theirs is not None
    assert theirs.reason == "BucketOfAnotherCluster"
    assert "correct spec.tier2.endpoint, or bring the data of ours back" in theirs.message
    assert "create another StreamCluster with spec.adoptClusterId theirs" in theirs.message
    assert "set " not in theirs.message


@pytest.mark.parametrize("cure", [{"is_placed": True}, {"is_placed": False, "is_claimed": True}], ids=str)
def test_the_number_of_containers_is_set_only_before_the_place_is_claimed(cure: dict[str, bool]) -> None:
    spec, mark = StreamClusterSpec(TIER2, 16, adopt_cluster_id="former"), ClusterIdentity("former", 8)
    before = checks.mark_problem(spec, "former", mark, is_placed=False)
    assert before is not None
    assert before.message.endswith("has 8 containers, and this number cannot change: set it to 8")
    after = checks.mark_problem(spec, "former", mark, **cure)
    assert after is not None
    assert after.message.endswith("and this number cannot change: create another StreamCluster with 8 containers")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "SecretMissing"),
        (secret(), "SecretIncomplete"),
        (secret(accessKey="a"), "SecretIncomplete"),
        (secret(accessKey="a", secretKey=""), "SecretIncomplete"),
        ({"metadata": {"uid": "u"}, "data": {"accessKey": "%%%", "secretKey": "eA=="}}, "SecretIncomplete"),
    ],
)
def test_secrets_that_lack_something(found: dict[str, Any] | None, reason: str) -> None:
    with pytest.raises(Tier2Error, match=r"^spec\.tier2\.credentialsSecret: ") as caught:
        checks.credentials_of(TIER2, found)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("accessKey", value) for value in ("hidden\n", "hidden\r\n", " hidden", "hid\tden", "hidd\u00e9n", "hi\0en")),
        *(("secretKey", value) for value in ("hidden\n", "hidden\r\n", "hid\tden", "hid\0den", "hidden\x7f")),
    ],
)
def test_credentials_with_characters_that_they_cannot_have(key: str, value: str) -> None:
    found = secret(**{"accessKey": "a", "secretKey": "b", key: value})
    with pytest.raises(Tier2Error) as caught:
        checks.credentials_of(TIER2, found)
    assert caught.value.reason == "SecretInvalid"
    assert str(caught.value) == (
        f"spec.tier2.credentialsSecret: key {key} of Secret minio has a character that it cannot have; often it is a "
        "line break at the end: store the key without it"
    )


def test_credentials_of_printable_characters() -> None:
    every = "".join(map(chr, range(0x21, 0x7F)))
    phrase = f"a phr\u00e4se {every}"
    found = checks.credentials_of(TIER2, secret(accessKey=every, secretKey=phrase))
    assert (found.access_key, found.secret_key) == (every, phrase)


def test_the_fingerprint_is_of_a_cluster_s_credentials_alone() -> None:
    one = checks.fingerprint("u", Credentials("a", "bc"))
    assert checks.fingerprint("u", Credentials("a", "bc")) == one
    assert checks.fingerprint("u", Credentials("ab", "c")) != one
    assert checks.fingerprint("other", Credentials("a", "bc")) != one
    assert "bc" not in repr(Credentials("a", "bc"))


def workload(generation: int = 1, **status: int) -> dict[str, Any]:
    return {"metadata": {"generation": generation}, "status": {"observedGeneration": 1, **status}}


@pytest.mark.parametrize(
    ("found", "status", "reason", "is_warning"),
    [
        (None, Status.FALSE, "NotCreated", False),
        (workload(), Status.FALSE, "PodsChanging", False),
        (workload(readyReplicas=1, updatedReplicas=1), Status.FALSE, "PodsChanging", False),
        (workload(2, readyReplicas=2, updatedReplicas=2), Status.FALSE, "PodsChanging", False),
        (workload(readyReplicas=1, updatedReplicas=2), Status.FALSE, "PodsNotReady", True),
        (workload(readyReplicas=2, updatedReplicas=2), Status.TRUE, "PodsReady", False),
    ],
)
def test_pods(found: dict[str, Any] | None, status: Status, reason: str, is_warning: bool) -> None:
    condition = pods_condition("SegmentStoreReady", "segment store", found, 2)
    assert (condition.status, condition.reason, condition.is_warning) == (status, reason, is_warning)


def test_pods_before_the_change_is_taken_note_of_do_not_count_as_changed() -> None:
    message = pods_condition("SegmentStoreReady", "segment store", workload(2, readyReplicas=2, updatedReplicas=2), 2)
    assert message.message == "2 of 2 segment store pods are ready, the update is starting."
    later = pods_condition("SegmentStoreReady", "segment store", workload(readyReplicas=2, updatedReplicas=1), 2)
    assert later.message == "2 of 2 segment store pods are ready, 1 are up to date."


def controllers(**status: int) -> dict[str, Any]:
    """A Deployment, which starts a new pod before it ends an old one."""
    return {"kind": "Deployment", **workload(**status)}


def test_a_rollout_whose_new_pod_does_not_get_ready() -> None:
    """A ready pod of before the change takes the place of the one that is not."""
    stuck = controllers(replicas=3, readyReplicas=2, updatedReplicas=2)
    found = pods_condition("ControllerReady", "controller", stuck, 2, "pod a: ImagePullBackOff")
    assert (found.status, found.reason) == (Status.FALSE, "PodsChanging")
    assert found.message == "2 of 3 controller pods are ready, 1 not up to date: pod a: ImagePullBackOff."
    ending = pods_condition(
        "ControllerReady", "controller", controllers(replicas=3, readyReplicas=3, updatedReplicas=2), 2
    )
    assert ending.message == "3 of 3 controller pods are ready, 1 not up to date."
    done = pods_condition(
        "ControllerReady", "controller", controllers(replicas=2, readyReplicas=2, updatedReplicas=2), 2
    )
    assert done.status is Status.TRUE


def test_fewer_pods_are_ready_while_others_drain() -> None:
    """A StatefulSet counts a pod that ends among its pods, but not among those that are up to date."""
    draining = {"kind": "StatefulSet", **workload(replicas=3, readyReplicas=2, updatedReplicas=2)}
    assert pods_condition("SegmentStoreReady", "segment store", draining, 2).status is Status.TRUE
    fewer = controllers(replicas=3, readyReplicas=3, updatedReplicas=3)
    assert pods_condition("ControllerReady", "controller", fewer, 2).status is Status.TRUE


def placed_on_a(status: str | None = None) -> dict[str, Any]:
    """A StreamCluster of two containers, both of worker a, with that status of ContainersPlaced."""
    containers = [{"id": number, "worker": "a"} for number in (0, 1)]
    conditions = [{"type": "ContainersPlaced", "status": status, "reason": "Any"}] if status else []
    workers = [{"name": "a", "internal": "h:1"}]
    return {
        "spec": {"containers": 2},
        "status": {"containers": containers, "workers": workers, "conditions": conditions},
    }


def test_containers_placed() -> None:
    manifest = placed_on_a()
    del manifest["status"]["containers"][1]
    partly = placed_condition(manifest, "workers that take containers: 1", None, Unconfirmed())
    assert (partly.reason, partly.is_warning) == ("ContainersWithoutWorker", True)
    assert partly.message == "1 of 2 containers have no worker: workers that take containers: 1."
    none = placed_condition({"spec": {"containers": 2}}, "nothing yet", None, None)
    assert (none.reason, none.is_warning) == ("ContainersWithoutWorker", False)
    seen = watched_fields(manifest)
    manifest["status"]["containers"].append({"id": 1, "worker": "gone"})
    assert watched_fields(manifest) != seen
    assert placed_condition(manifest, "x", None, Unconfirmed()).status is Status.FALSE, "the worker is unknown"
    placed = placed_condition(placed_on_a(), "x", None, Unconfirmed())
    assert (placed.status, placed.reason) == (Status.TRUE, "AllPlaced")
    assert placed.message == "2 of 2 containers have a worker; workers with containers: 1."
    assert placed_condition(manifest, "x", "it ended", Unconfirmed()).reason == "PlacerFailed"


def test_containers_that_workers_cannot_open_are_named() -> None:
    """Placed is not open: the log of a container may be damaged."""
    manifest = placed_on_a("True")
    fine = open_condition(manifest, {})
    assert (fine.status, fine.reason) == (Status.TRUE, "AllOpen")
    damaged = open_condition(
        manifest, {"b": "container 1 is not open: corruption in log", "a": "container 0 is not open: x"}
    )
    assert (damaged.status, damaged.reason, damaged.is_warning) == (Status.FALSE, "ContainersNotOpen", True)
    assert damaged.message == (
        "Worker a: container 0 is not open: x. Worker b: container 1 is not open: corruption in log."
    )
    assert ready([fine, damaged], "Serving", "Fine.").message == damaged.message


def test_an_operator_that_has_just_begun_leaves_it_as_it_was() -> None:
    manifest = placed_on_a("True")
    assert open_condition(manifest, None).reason == "WorkersNotHeard"
    written = {"type": "ContainersOpen", "status": "False", "reason": "ContainersNotOpen", "message": "Worker a: x."}
    manifest["status"]["conditions"].append(written)
    kept = open_condition(manifest, None)
    assert (kept.status, kept.reason, kept.message) == (Status.FALSE, "ContainersNotOpen", "Worker a: x.")
    written["reason"] = "not one"
    assert open_condition(manifest, None).status is Status.UNKNOWN


def test_containers_of_workers_that_are_gone_wait_for_one() -> None:
    """The map keeps them where they were while no worker can take them."""
    reason = "workers that take containers: 0; gone: a"
    found = placed_condition(placed_on_a("True"), reason, None, Unconfirmed(worker_dead=frozenset({0, 1})))
    assert (found.status, found.reason, found.is_warning) == (Status.FALSE, "ContainersWithoutWorker", True)
    assert found.message == "2 of 2 containers have no worker: workers that take containers: 0; gone: a."
    one = placed_condition(placed_on_a("True"), reason, None, Unconfirmed(worker_dead=frozenset({1})))
    assert one.message.startswith("1 of 2 containers have no worker: ")


@pytest.mark.parametrize(
    "unconfirmed", [None, Unconfirmed(worker_unknown=frozenset({0, 1})), Unconfirmed(worker_unknown=frozenset({1}))]
)
@pytest.mark.parametrize(
    ("before", "status", "reason"),
    [
        ("True", Status.TRUE, "AllPlaced"),
        ("False", Status.FALSE, "ContainersWithoutWorker"),
        ("Unknown", Status.UNKNOWN, "WorkersNotHeard"),
        (None, Status.UNKNOWN, "WorkersNotHeard"),
    ],
)
def test_who_has_not_heard_of_the_workers_yet_leaves_it_as_it_was(
    unconfirmed: Unconfirmed | None, before: str | None, status: Status, reason: str
) -> None:
    """Another operator that begins to lead is no news, neither good nor bad."""
    found = placed_condition(placed_on_a(before), "the placer has just started", None, unconfirmed)
    assert (found.status, found.reason) == (status, reason)
    if status is not Status.TRUE:
        unknown = len(unconfirmed.worker_unknown) if unconfirmed else 2
        assert found.message == (
            f"{unknown} of 2 containers have a worker that is not confirmed alive: the placer has just started."
        )
