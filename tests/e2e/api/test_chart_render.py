"""The chart as a real API server sees it, without waiting for any pod: manifests, rights, pod security, credentials.

What no server here knows (ServiceMonitor, PodMonitor) or enforces (NetworkPolicy) is checked in its rendered form.
"""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.kubectl import Kubectl, KubeError
from tailrace_operator.cluster.plan import Plan
from tailrace_operator.cluster.render import children
from tailrace_operator.pipeline import plan as pipeline_plans
from tailrace_operator.pipeline import render as pipeline
from tailrace_operator.pipeline.settings import EXECUTOR_FILE
from tailrace_operator.schema.pipeline_spec import PipelineSpec
from tailrace_operator.schema.specs import StreamClusterSpec

CHART = Path(__file__).resolve().parents[3] / "charts/tailrace"
RELEASE = "shop"
ACCOUNT = "shop-tailrace-operator"
TIER2 = ["bucket=data", "endpoint=http://minio.storage.svc:9000", "credentialsSecret=minio"]
OWN_TIER2 = [f"cluster.spec.tier2.{each}" for each in TIER2]
NO_IMAGE = ["image.repository=localhost/none", "image.pullPolicy=Never"]
NO_MINIO_IMAGE = ["minio.image.repository=localhost/none", "minio.image.pullPolicy=Never"]
VALUES = {
    "defaults": [],
    "trial": ["cluster.enabled=true", "minio.enabled=true"],
    "pipelines": ["cluster.enabled=true", "minio.enabled=true", "pipelines.enabled=true"],
    "own object store": ["cluster.enabled=true", "cluster.name=main", *OWN_TIER2],
    "all namespaces": ["operator.allNamespaces=true", "operator.allSecrets=true", "operator.replicas=1"],
    "another operator": ["operator.enabled=false", "cluster.enabled=true", "minio.enabled=true"],
    "everything": [
        "cluster.enabled=true",
        "cluster.spec.segmentStore.memory=2Gi",
        "minio.enabled=true",
        "minio.persistence.enabled=false",
        "minio.existingSecret=mine",
        "monitoring.serviceMonitor.enabled=true",
        "monitoring.serviceMonitor.labels.team=a",
        "monitoring.dashboards.enabled=true",
        "operator.nodeSelector.disk=fast",
    ],
    "nothing more than needed": ["networkPolicy.enabled=false", "podDisruptionBudget.enabled=false"],
}
STREAM_CLUSTER = {
    "apiVersion": "tailrace.io/v1alpha1",
    "kind": "StreamCluster",
    "spec": {"tier2": {"bucket": "data", "endpoint": "http://minio.storage.svc:9000", "credentialsSecret": "minio"}},
}
WORKLOADS = {"Deployment", "StatefulSet"}
FOREIGN = {"ServiceMonitor", "PodMonitor"}
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def kube(definitions: Kubectl) -> Iterator[Kubectl]:
    """A namespace of its own in which pods must be restricted ones."""
    kubectl = definitions.within(f"chart-{uuid.uuid4().hex[:8]}")
    kubectl("create", "namespace", kubectl.namespace)
    kubectl("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")
    yield kubectl
    kubectl("delete", "namespace", kubectl.namespace, "--wait=false")


def chosen(values: list[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def rendered(kube: Kubectl, values: list[str]) -> list[Manifest]:
    text = kube.helm("template", RELEASE, str(CHART), "--kube-version", "1.30.0", *chosen(values))
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def try_out(kube: Kubectl, manifest: Manifest, *words: str) -> None:
    kube("create", "--dry-run=server", "--validate=strict", "--filename=-", *words, stdin=json.dumps(manifest))


def pods_of(manifests: list[Manifest]) -> list[Manifest]:
    """Every pod that stands in these, as one."""
    found = []
    for manifest in manifests:
        template = manifest if manifest["kind"] == "Pod" else (manifest.get("spec") or {}).get("template")
        if template is not None and manifest["kind"] in WORKLOADS | {"Job", "Pod"}:
            name = f"{manifest['metadata']['name']}-try"
            found.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]})
            claims = manifest["spec"].get("volumeClaimTemplates", [])
            volumes = [{"name": claim["metadata"]["name"], "emptyDir": {}} for claim in claims]
            found[-1]["spec"]["volumes"] = [*found[-1]["spec"].get("volumes", []), *volumes]
    return found


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_api_server_takes_every_manifest(kube: Kubectl, values: list[str]) -> None:
    manifests = rendered(kube, values)
    for manifest in manifests:
        if manifest["kind"] not in FOREIGN:
            try_out(kube, manifest)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_pod_is_a_restricted_one(kube: Kubectl, values: list[str]) -> None:
    manifests = rendered(kube, values)
    for account in ("default", ACCOUNT):  # admission asks for it; no controller creates it here
        if kube.find("serviceaccount", account) is None:
            kube("create", "serviceaccount", account)
    try:
        for pod in pods_of(manifests):
            assert pod["spec"]["automountServiceAccountToken"] is ("operator" in pod["metadata"]["name"])
            try_out(kube, pod)
            for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
                assert container["resources"]["limits"]["memory"]
    finally:
        kube.delete("serviceaccount", ACCOUNT)


@pytest.mark.parametrize("wide", [False, True])
def test_before_removal_a_job_of_this_operator_and_no_other_object_lets_go(kube: Kubectl, wide: bool) -> None:
    manifests = rendered(kube, ["operator.nodeSelector.disk=fast", f"operator.allNamespaces={json.dumps(wide)}"])
    hooks = [each for each in manifests if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    (job,) = hooks
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert job["metadata"]["labels"]["app.kubernetes.io/component"] != "operator", "no Service or budget may choose it"
    pod, (deployment,) = job["spec"]["template"]["spec"], of_kind(manifests, "Deployment")
    (container,) = pod["containers"]
    assert container["args"][container["args"].index("--deployment") + 1] == deployment["metadata"]["name"]
    assert ("--all-namespaces" in container["args"]) is wide
    assert job["spec"]["activeDeadlineSeconds"] > int(container["args"][-1])
    beside = deployment["spec"]["template"]["spec"]
    assert container["image"] == beside["containers"][0]["image"]
    assert pod["serviceAccountName"] == beside["serviceAccountName"]
    assert pod["nodeSelector"] == beside["nodeSelector"] == {"disk": "fast"}


def test_what_only_other_operators_know_names_ports_that_there_are(kube: Kubectl) -> None:
    manifests = rendered(kube, VALUES["everything"])
    monitors = {each["metadata"]["name"]: each for each in of_kind(manifests, "ServiceMonitor")}
    services = [child.manifest for child in children(plan(kube)) if child.manifest["kind"] == "Service"]
    for name, path in (("segmentstore", "/metrics"), ("controller", "/prometheus")):
        monitor = monitors[f"shop-tailrace-{name}"]
        assert monitor["metadata"]["labels"]["team"] == "a"
        (endpoint,) = monitor["spec"]["endpoints"]
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        ports = [
            port["name"]
            for service in services
            if wanted <= service["metadata"]["labels"].items()
            for port in service["spec"]["ports"]
        ]
        assert ports.count(endpoint["port"]) == 1
        assert endpoint["path"] == path
    (monitor,) = of_kind(manifests, "PodMonitor")
    (deployment,) = of_kind(manifests, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in [port["name"] for port in container["ports"]]


def test_network_policies_choose_the_pods_that_there_are(kube: Kubectl) -> None:
    manifests = rendered(kube, VALUES["trial"])
    made = [child.manifest for child in children(plan(kube))]
    templates = [each["spec"]["template"] for each in (*manifests, *made) if each["kind"] in WORKLOADS]
    labels = [template["metadata"]["labels"] for template in templates]
    policies = of_kind(manifests, "NetworkPolicy")
    assert len(policies) == len(labels) == 4
    for policy in policies:
        wanted = policy["spec"]["podSelector"]["matchLabels"].items()
        assert len([one for one in labels if wanted <= one.items()]) == 1
    stores = next(each for each in policies if each["metadata"]["name"].endswith("segmentstore"))
    (port,) = stores["spec"]["ingress"][0]["ports"]
    assert (port["port"], port["endPort"]) == (12345, 12345 + 63)


def test_clients_of_other_namespaces_take_no_access_from_pods_of_our_own(kube: Kubectl) -> None:
    """Pipelines and `helm test` use streams, too."""
    clients = "networkPolicy.clients[0].namespaceSelector.matchLabels.team=shop"
    manifests = rendered(kube, [*VALUES["pipelines"], clients])
    policies = {each["metadata"]["name"]: each for each in of_kind(manifests, "NetworkPolicy")}
    pipelines = [child.manifest for child in pipeline.children(pipeline_plan(kube, {}))]
    (test,), (driver,) = of_kind(manifests, "Pod"), of_kind(pipelines, "Job")
    executor = json.loads(of_kind(pipelines, "ConfigMap")[0]["data"][EXECUTOR_FILE])
    cluster = [child.manifest for child in children(plan(kube))]
    workloads = [each for each in (*of_kind(manifests, "Deployment"), *cluster) if each["kind"] in WORKLOADS]
    assert len(workloads) == 3, "the operator, stores and controllers"
    pods = [test, executor, *(each["spec"]["template"] for each in (driver, *workloads))]
    for name in ("shop-tailrace-segmentstore", "shop-tailrace-controller"):
        peers = policies[name]["spec"]["ingress"][0]["from"]
        assert {"namespaceSelector": {"matchLabels": {"team": "shop"}}} in peers
        allowed = [peer["podSelector"]["matchLabels"].items() for peer in peers if "podSelector" in peer]
        for labels in (pod["metadata"]["labels"] for pod in pods):
            assert any(wanted <= labels.items() for wanted in allowed), (name, labels)


def test_a_release_without_an_operator_lets_that_of_another_namespace_in(kube: Kubectl) -> None:
    manifests = rendered(kube, VALUES["another operator"])
    assert not [each for each in manifests if each["metadata"]["labels"]["app.kubernetes.io/component"] == "operator"]
    assert of_kind(manifests, "Job") == [], "what is left behind is for the other operator to look after"
    (peer,) = (
        peer
        for policy in of_kind(manifests, "NetworkPolicy")
        if policy["metadata"]["name"].endswith("minio")
        for peer in policy["spec"]["ingress"][0]["from"]
        if "namespaceSelector" in peer
    )
    assert peer["namespaceSelector"] == {}
    labels = {"app.kubernetes.io/name": "tailrace", "app.kubernetes.io/component": "operator"}
    assert peer["podSelector"]["matchLabels"] == labels


def without_owner(manifest: Manifest) -> Manifest:
    """Its owner does not exist, so that it would be taken away."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "ownerReferences"}
    return {**manifest, "metadata": metadata}


def plan(kube: Kubectl, name: str = "main") -> Plan:
    tier2 = dict(each.split("=", 1) for each in TIER2)
    manifest = {"metadata": {"name": name}, "spec": {"tier2": tier2}}
    return Plan(name, kube.namespace, str(uuid.uuid4()), StreamClusterSpec.parse(manifest), "localhost/x:1", "c")


def test_the_operator_may_make_all_children_of_a_cluster_and_pods_of_them_are_restricted(kube: Kubectl) -> None:
    manifests = rendered(kube, VALUES["trial"])
    rights = [each for each in manifests if each["kind"] in {"ServiceAccount", "Role", "RoleBinding"}]
    kube.apply(*rights)
    made = [without_owner(child.manifest) for child in children(plan(kube))]
    account = f"--as=system:serviceaccount:{kube.namespace}:{ACCOUNT}"
    apply = ("apply", "--server-side", "--field-manager=tailrace-operator", "--filename=-", account)
    try:
        for manifest in made:
            words = ("--dry-run=server",) if manifest["kind"] in WORKLOADS else ()  # nothing is to run
            kube(*apply, *words, stdin=json.dumps(manifest))
        for pod in pods_of(made):
            try_out(kube, pod)
    finally:
        for manifest in (*made, *rights):
            kube.delete(manifest["kind"], manifest["metadata"]["name"])


@pytest.mark.parametrize(
    "when", [{}, {"schedule": "@daily"}, {"everySeconds": 5}], ids=["once", "scheduled", "endless"]
)
def test_the_operator_may_make_all_children_of_a_pipeline_where_pipelines_are_enabled(
    kube: Kubectl, when: dict[str, Any]
) -> None:
    manifests = rendered(kube, VALUES["pipelines"])
    rights = [each for each in manifests if each["kind"] in {"ServiceAccount", "Role", "RoleBinding"}]
    kube.apply(*rights)
    made = [without_owner(child.manifest) for child in pipeline.children(pipeline_plan(kube, when))]
    account = f"--as=system:serviceaccount:{kube.namespace}:{ACCOUNT}"
    apply = ("apply", "--server-side", "--field-manager=tailrace-operator", "--filename=-", account)
    try:
        for manifest in made:
            words = ("--dry-run=server",) if manifest["kind"] in WORKLOADS | {"Job", "CronJob"} else ()
            kube(*apply, *words, stdin=json.dumps(manifest))
        (data,) = (manifest["data"] for manifest in made if manifest["kind"] == "ConfigMap")
        executor = json.loads(data[EXECUTOR_FILE])
        executor["metadata"]["name"] = "executor-try"
        executor["spec"]["containers"][0]["image"] = "localhost/none:1"
        for pod in (*pods_of(made), executor):
            try_out(kube, pod)
    finally:
        for manifest in (*made, *rights):
            kube("delete", manifest["kind"], manifest["metadata"]["name"], "--ignore-not-found")


def pipeline_plan(kube: Kubectl, when: dict[str, Any]) -> pipeline_plans.Plan:
    spec = {"cluster": "main", "job": "archive", "stream": "shop/orders", "output": "s3a://lake/orders", **when}
    parsed = PipelineSpec.parse({"metadata": {"name": "nightly"}, "spec": spec})
    return pipeline_plans.Plan(
        "nightly", kube.namespace, str(uuid.uuid4()), parsed, plan(kube).spec.tier2, "localhost/x:1", ""
    )


def test_the_operator_may_do_nothing_that_it_does_not_need(kube: Kubectl) -> None:
    manifests = rendered(kube, VALUES["trial"])
    rights = [each for each in manifests if each["kind"] in {"ServiceAccount", "Role", "RoleBinding"}]
    kube.apply(*rights)

    def may(*words: str, namespace: str = kube.namespace) -> bool:
        account = f"--as=system:serviceaccount:{kube.namespace}:{ACCOUNT}"
        try:
            return kube.within(namespace)("auth", "can-i", *words, account).strip() == "yes"
        except KubeError as error:
            if "exit" in error.answer or error.answer.strip() in {"no", ""} or "no\n" in error.answer:
                return False
            raise

    try:
        assert may("get", "secret/shop-tailrace-minio")
        assert may("get", f"namespace/{kube.namespace}")
        assert may("patch", "streams", "--subresource=status")
        assert may("list", "pods")
        for words in (
            ("get", "secret/other"),
            ("list", "secrets"),
            ("create", "pods"),
            ("delete", "pods"),
            ("create", "pods", "--subresource=exec"),
            ("create", "streamclusters"),
            ("delete", "streams"),
            ("delete", "leases"),
            ("delete", "statefulsets"),
            ("delete", "roles"),
            ("list", "configmaps"),
            ("get", "pods"),
            ("escalate", "roles"),
            ("bind", "roles"),
            ("impersonate", "serviceaccounts"),
        ):
            assert not may(*words), words
        assert not may("get", "streams", namespace="default")
        assert not may("get", "leases", namespace="default")
    finally:
        for manifest in rights:
            kube.delete(manifest["kind"], manifest["metadata"]["name"])


def test_credentials_of_the_trial_minio_are_kept_over_upgrades(kube: Kubectl) -> None:
    trial = [*VALUES["trial"], *NO_IMAGE, *NO_MINIO_IMAGE, "minio.persistence.enabled=false"]
    notes = kube.helm("install", RELEASE, str(CHART), *chosen(trial))
    try:
        assert f"streamcluster/{RELEASE}" in notes
        before = kube.get("secret", "shop-tailrace-minio")["data"]
        assert len(before["accessKey"]) >= 20
        kube.helm("upgrade", RELEASE, str(CHART), *chosen([*trial, "cluster.spec.segmentStore.memory=2Gi"]))
        assert kube.get("secret", "shop-tailrace-minio")["data"] == before
        spec = kube.get("streamcluster", RELEASE)["spec"]
        assert spec["segmentStore"]["memory"] == "2Gi"
        assert spec["tier2"]["endpoint"] == f"http://shop-tailrace-minio.{kube.namespace}:9000"
        assert spec["tier2"]["credentialsSecret"] == "shop-tailrace-minio"
    finally:
        kube.helm("uninstall", RELEASE, "--no-hooks")  # there is no image that a hook could run


@pytest.mark.parametrize(
    ("installed", "upgraded", "message"),
    [
        ("enabled=false", "enabled=true", "enabled cannot be changed after installation: it is false."),
        ("enabled=true", "enabled=false", "enabled cannot be changed after installation: it is true."),
        ("storageClass=none", "storageClass=other", 'storageClass cannot be changed after installation: it is "none"'),
        ("size=10240Mi", "size=20Gi", "size cannot be changed after installation: it is 10Gi."),
    ],
)
def test_the_volume_of_the_trial_minio_is_that_of_the_install(
    kube: Kubectl, installed: str, upgraded: str, message: str
) -> None:
    trial = [*VALUES["trial"], *NO_IMAGE, *NO_MINIO_IMAGE]
    kube.helm("install", RELEASE, str(CHART), *chosen([*trial, f"minio.persistence.{installed}"]))
    try:
        with pytest.raises(KubeError) as caught:
            kube.helm("upgrade", RELEASE, str(CHART), *chosen([*trial, f"minio.persistence.{upgraded}"]))
        assert f"minio.persistence.{message}" in caught.value.answer
        kube.helm("upgrade", RELEASE, str(CHART), *chosen([*trial, f"minio.persistence.{installed}"]))
    finally:
        kube.helm("uninstall", RELEASE, "--no-hooks")


@pytest.mark.parametrize(
    "values", [[], ["cluster.enabled=true", "cluster.name=other", *OWN_TIER2]], ids=["none", "other"]
)
def test_an_upgrade_deletes_the_cluster_of_the_release_only_when_it_may(kube: Kubectl, values: list[str]) -> None:
    """Helm takes the values of before only by an option."""
    installed = ["cluster.enabled=true", "cluster.name=main", *OWN_TIER2, *NO_IMAGE]
    kube.apply({**STREAM_CLUSTER, "metadata": {"name": "of-a-user"}})
    kube.helm("install", RELEASE, str(CHART), *chosen(installed))
    try:
        with pytest.raises(KubeError) as caught:
            kube.helm("upgrade", RELEASE, str(CHART), *chosen([*NO_IMAGE, *values]))
        assert "would delete the StreamCluster main of this release" in caught.value.answer
        assert kube.find("streamcluster", "main") is not None
        kube.helm("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values", *chosen(["operator.replicas=1"]))
        kube.helm("upgrade", RELEASE, str(CHART), *chosen(installed))
        kube.helm("upgrade", RELEASE, str(CHART), *chosen([*NO_IMAGE, *values, "cluster.allowDeletion=true"]))
        assert kube.find("streamcluster", "main") is None
        kube.helm("upgrade", RELEASE, str(CHART), *chosen([*NO_IMAGE, *values]))
    finally:
        kube.helm("uninstall", RELEASE, "--no-hooks")
        kube.delete("streamcluster", "of-a-user")


@pytest.mark.parametrize("values", [[], ["operator.enabled=false"]], ids=["forgotten", "disabled"])
def test_an_operator_of_all_namespaces_serves_fewer_only_when_it_may(kube: Kubectl, values: list[str]) -> None:
    wide = [*NO_IMAGE, "operator.allNamespaces=true"]
    kube.helm("install", RELEASE, str(CHART), *chosen(wide))
    try:
        with pytest.raises(KubeError) as caught:
            kube.helm("upgrade", RELEASE, str(CHART), *chosen([*NO_IMAGE, *values]))
        assert "would no longer serve all namespaces" in caught.value.answer
        assert "operator.allowNarrowing=true" in caught.value.answer
        kube.helm("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values", *chosen(["operator.replicas=1"]))
        kube.helm("upgrade", RELEASE, str(CHART), *chosen(wide))
        kube.helm("upgrade", RELEASE, str(CHART), *chosen([*NO_IMAGE, *values, "operator.allowNarrowing=true"]))
        kube.helm("upgrade", RELEASE, str(CHART), *chosen([*NO_IMAGE, *values]))
        kube.helm("upgrade", RELEASE, str(CHART), *chosen(wide))
    finally:
        kube.helm("uninstall", RELEASE, "--no-hooks")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["cluster.enabled=true"], "cluster.spec.tier2.bucket is required; for a trial, set minio.enabled"),
        (["operator.replicas=0"], "replicas"),
        (["minio.bucket=Data"], "bucket"),
        (["colour=red"], "colour"),
        (["image.pullPolicy=Often"], "pullPolicy"),
        (["cluster.name=a.b"], "name"),
        (["cluster.enabled=true", "minio.enabled=true", "cluster.spec.segmentstore.replicas=3"], "segmentstore"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_values_that_make_no_sense_are_refused(kube: Kubectl, values: list[str], message: str) -> None:
    with pytest.raises(KubeError) as caught:
        rendered(kube, values)
    assert message in caught.value.answer


TEXTS = {"name", "namespace", "serviceName", "serviceAccountName", "storageClassName", "matchNames"}


def numbers_and_switches(found: Any, path: str = "") -> list[str]:
    """Where a number, a switch or nothing stands for a name, a label or a selector."""
    if isinstance(found, list):
        return [each for number, item in enumerate(found) for each in numbers_and_switches(item, f"{path}[{number}]")]
    if not isinstance(found, dict):
        return []
    wrong = []
    for key, value in found.items():
        is_text = key in TEXTS or path.endswith(("abels", "selector")) or key.startswith("app.kubernetes.io/")
        for item in value if isinstance(value, list) else [value]:
            if is_text and not isinstance(item, str | dict):
                wrong.append(f"{path}.{key}: {value!r}")
        wrong += numbers_and_switches(value, f"{path}.{key}")
    return wrong


@pytest.mark.parametrize("name", ["123", "true", "1e3", "null"])
@pytest.mark.parametrize("wide", ["true", "false"])
def test_names_that_could_be_numbers_or_switches_are_texts(kube: Kubectl, name: str, wide: str) -> None:
    texts = [f"minio.existingSecret={name}", f"minio.persistence.storageClass={name}"]
    monitoring = [f"monitoring.{each}.enabled=true" for each in ("serviceMonitor", "prometheusRule", "dashboards")]
    values = [*VALUES["pipelines"], *monitoring, f"operator.allNamespaces={wide}"]
    words = ["--kube-version", "1.30.0", *chosen(values), *(word for text in texts for word in ("--set-string", text))]
    found = yaml.safe_load_all(kube.within(name).helm("template", name, str(CHART), *words))
    manifests = [manifest for manifest in found if manifest]
    assert len(manifests) > 20
    wrong = [f"{each['kind']}{where}" for each in manifests for where in numbers_and_switches(each)]
    assert wrong == []
    (cluster,) = of_kind(manifests, "StreamCluster")
    assert (cluster["metadata"]["name"], cluster["spec"]["tier2"]["credentialsSecret"]) == (name, name)


@pytest.mark.parametrize(
    "path",
    [
        "cluster.spec",
        "networkPolicy.clients",
        "networkPolicy.monitoring",
        "operator.credentialsSecrets",
        "monitoring.serviceMonitor.labels",
        "monitoring.prometheusRule.labels",
        "monitoring.dashboards.labels",
    ],
)
def test_a_value_that_is_left_empty_counts_as_none(kube: Kubectl, path: str) -> None:
    """As `spec:` without anything below, when all of it was made a comment."""
    monitoring = [f"monitoring.{each}.enabled=true" for each in ("serviceMonitor", "prometheusRule", "dashboards")]
    value: Any = None
    for name in reversed(path.split(".")):
        value = {name: value}
    words = ["--kube-version", "1.30.0", *chosen([*VALUES["trial"], *monitoring]), "--values", "-"]
    text = kube.helm("template", RELEASE, str(CHART), *words, stdin=yaml.safe_dump(value))
    assert len([manifest for manifest in yaml.safe_load_all(text) if manifest]) > 20


def test_helm_finds_nothing_to_object_to(kube: Kubectl) -> None:
    for values in VALUES.values():
        assert "0 chart(s) failed" in kube.helm("lint", "--strict", str(CHART), *chosen(values))
