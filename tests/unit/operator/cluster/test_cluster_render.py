"""Children of a StreamCluster: all that must hold whatever is asked for, and one example in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace_operator.cluster.names import controller_uri
from tailrace_operator.cluster.plan import Plan
from tailrace_operator.cluster.render import Child, children
from tailrace_operator.kube.objects import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ROLES,
    SERVICES,
    STATEFUL_SETS,
)
from tailrace_operator.schema.specs import ControllerSpec, SegmentStoreSpec, StreamClusterSpec, Tier2Spec

GOLDEN = Path(__file__).parent / "golden" / "streamcluster.json"
UID = "11111111-2222-4333-8444-555555555555"
MIB = limits.MIB

SPECS = st.builds(
    StreamClusterSpec,
    tier2=st.builds(
        Tier2Spec,
        bucket=st.sampled_from(["bucket", "other.bucket"]),
        endpoint=st.just("http://minio:9000"),
        credentials_secret=st.just("credentials"),
        prefix=st.sampled_from(["", "a", "a/b"]),
        region=st.sampled_from([None, "eu-west-1"]),
    ),
    containers=st.integers(1, 1024),
    segment_store=st.builds(
        SegmentStoreSpec,
        st.integers(1, 9),
        st.integers(1, 16),
        st.integers(1000 * MIB, 9000 * MIB),
        st.none() | st.integers(1, 9000),
    ),
    controller=st.builds(
        ControllerSpec, st.integers(1, 5), st.integers(256 * MIB, 900 * MIB), st.none() | st.integers(1, 9000)
    ),
    adopt_cluster_id=st.none() | st.just("99999999-2222-4333-8444-555555555555"),
    image=st.none() | st.just("localhost/other:1"),
    image_pull_policy=st.sampled_from([None, "Always", "Never"]),
)
PLANS = st.builds(
    Plan, st.sampled_from(["main", "a-b"]), st.just("there"), st.just(UID), SPECS, st.just("own:1"), st.just("print")
)


def of_kind(found: tuple[Child, ...], kind: Any) -> list[dict[str, Any]]:
    return [child.manifest for child in found if child.kind == kind]


def pods(found: tuple[Child, ...]) -> list[dict[str, Any]]:
    return [item["spec"]["template"] for kind in (STATEFUL_SETS, DEPLOYMENTS) for item in of_kind(found, kind)]


def option(pod: dict[str, Any], name: str) -> str:
    arguments = pod["spec"]["containers"][0]["args"]
    return str(arguments[arguments.index(name) + 1])


@given(PLANS)
def test_every_child_belongs_to_the_resource(plan: Plan) -> None:
    found = children(plan)
    assert len({(child.kind.plural, child.name) for child in found}) == len(found)
    for child in found:
        metadata = child.manifest["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (UID, True, False)
        assert metadata["namespace"] == "there"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "tailrace-operator"
        assert metadata["labels"]["app.kubernetes.io/instance"] == plan.name


@given(PLANS)
def test_pods_are_restricted(plan: Plan) -> None:
    """The profile "restricted" of the pod security standards, and a read-only root."""
    for pod in pods(children(plan)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all("emptyDir" in volume and volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"])
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
            resources = container["resources"]
            assert resources["requests"]["memory"] == resources["limits"]["memory"]


@given(PLANS)
def test_secrets_are_named_and_never_shown(plan: Plan) -> None:
    store, controller = (pod["spec"]["containers"][0] for pod in pods(children(plan)))
    named = {item["name"]: item["valueFrom"].get("secretKeyRef") for item in store["env"]}
    assert named["AWS_ACCESS_KEY_ID"] == {"name": "credentials", "key": "accessKey"}
    assert named["AWS_SECRET_ACCESS_KEY"] == {"name": "credentials", "key": "secretKey"}
    assert not any("secretKeyRef" in item["valueFrom"] for item in controller["env"]), "it needs none"


@given(PLANS)
def test_selectors_find_the_pods_and_nothing_else(plan: Plan) -> None:
    found = children(plan)
    for kind in (STATEFUL_SETS, DEPLOYMENTS):
        (workload,) = of_kind(found, kind)
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    store, controller = (pod["metadata"]["labels"] for pod in pods(found))
    for service in of_kind(found, SERVICES):
        selector = {k: v for k, v in service["spec"]["selector"].items() if not k.startswith("statefulset")}
        assert (selector.items() <= store.items()) != (selector.items() <= controller.items())
    for budget in of_kind(found, DISRUPTION_BUDGETS):
        assert budget["spec"]["maxUnavailable"] == 1
    selectors = [item["spec"]["selector"] for item in of_kind(found, STATEFUL_SETS)]
    other = Plan(plan.name, plan.namespace, plan.uid, StreamClusterSpec(plan.spec.tier2), "x", "y")
    assert selectors == [item["spec"]["selector"] for item in of_kind(children(other), STATEFUL_SETS)], "never changes"


@given(PLANS)
def test_every_pod_has_an_address_with_a_port_for_each_worker(plan: Plan) -> None:
    found = children(plan)
    services = {item["metadata"]["name"]: item["spec"] for item in of_kind(found, SERVICES)}
    store = pods(found)[0]["spec"]
    ports = {port["name"]: port["containerPort"] for port in store["containers"][0]["ports"]}
    for ordinal in range(plan.spec.segment_store.replicas):
        address = services[f"{plan.name}-store-{ordinal}"]
        assert address["publishNotReadyAddresses"] is True
        assert address["selector"]["statefulset.kubernetes.io/pod-name"] == f"{plan.name}-store-{ordinal}"
        assert {port["name"]: port["port"] for port in address["ports"]} == {
            f"worker-{n}": 12345 + n for n in range(plan.spec.segment_store.workers)
        }
        assert all(ports[port["targetPort"]] == port["port"] for port in address["ports"])
    assert len(services) == plan.spec.segment_store.replicas + 2


@given(PLANS)
def test_pods_get_what_was_specified(plan: Plan) -> None:
    store, controller = pods(children(plan))
    memory = store["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert option(store, "--memory") == memory == str(plan.spec.segment_store.memory_bytes)
    assert option(store, "--containers") == option(controller, "--containers") == str(plan.spec.containers)
    assert option(store, "--cluster-id") == (plan.spec.adopt_cluster_id or UID)
    assert option(store, "--tier2") == plan.spec.tier2.url
    assert store["spec"]["containers"][0]["image"] == (plan.spec.image or "own:1")
    assert store["spec"]["terminationGracePeriodSeconds"] > limits.DRAIN_DEADLINE_S
    assert store["metadata"]["annotations"]["tailrace.io/credentials"] == "print"


@given(PLANS)
def test_pods_may_do_what_they_need(plan: Plan) -> None:
    rules = {item["metadata"]["name"]: item["rules"] for item in of_kind(children(plan), ROLES)}
    allowed = {
        name: {(resource, verb) for rule in found for resource in rule["resources"] for verb in rule["verbs"]}
        for name, found in rules.items()
    }
    reads = {("streamclusters", verb) for verb in ("get", "list", "watch")}
    assert allowed[f"{plan.name}-controller"] == reads
    leases = {("leases", verb) for verb in ("get", "list", "create", "update")}
    assert allowed[f"{plan.name}-store"] == reads | leases


def example() -> list[dict[str, Any]]:
    tier2 = Tier2Spec("data", "http://minio.storage.svc:9000", "minio", "streams", "eu-west-1")
    spec = StreamClusterSpec(tier2, 16, SegmentStoreSpec(2, 2, 1536 * MIB), ControllerSpec(2, 512 * MIB, 500))
    return [child.manifest for child in children(Plan("main", "there", UID, spec, "localhost/tailrace:1", "print"))]


def test_the_example_is_as_it_was() -> None:
    """A change of what is rendered shows here; it restarts the pods of running clusters."""
    assert example() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("replicas", [1, 3])
def test_more_pods_change_no_pod(replicas: int) -> None:
    """A change of replicas alone must not roll what runs."""
    tier2 = Tier2Spec("data", "http://minio:9000", "minio")

    def template(count: int) -> dict[str, Any]:
        spec = StreamClusterSpec(tier2, 16, SegmentStoreSpec(count, 2, 1536 * MIB))
        return pods(children(Plan("main", "there", UID, spec, "x", "print")))[0]

    assert template(replicas) == template(2)


def test_clients_connect_to_the_service_of_the_controllers() -> None:
    assert controller_uri("main", "ns") == "tcp://main-controller.ns.svc:9090"
