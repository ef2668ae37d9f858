"""What can be said of the chart and of the examples without helm and without a cluster."""

import copy
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tailrace.common.budgets import controller_budgets, smallest_controller_bytes
from tailrace.common.errors import InvalidSpecError
from tailrace_operator.cluster.pods import startup_probe
from tailrace_operator.schema.pipeline_spec import PipelineSpec
from tailrace_operator.schema.specs import ReaderGroupSpec, StreamClusterSpec, StreamSpec

REPOSITORY = Path(__file__).resolve().parents[3]
CHART = REPOSITORY / "charts/tailrace"
EXAMPLES = sorted((REPOSITORY / "examples/kubernetes").glob("*.yaml"))
TIER2 = {"bucket": "data", "endpoint": "http://minio:9000", "credentialsSecret": "s3"}
PARSERS = {
    "StreamCluster": StreamClusterSpec.parse,
    "Stream": StreamSpec.parse,
    "ReaderGroup": ReaderGroupSpec.parse,
    "Pipeline": PipelineSpec.parse,
}
SOURCES = (
    "services/tailrace/segmentstore/worker/metrics.py",
    "services/tailrace/segmentstore/container/container.py",
    "services/tailrace/processes/workers_admin.py",
)


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [found for field in schema.get("properties", {}).values() for found in objects(field)]
    return [*([schema] if "properties" in schema else []), *inner]


def test_the_chart_is_of_this_version() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project
    assert chart["version"].replace("-dev.", ".dev") == project


def test_the_operators_start_is_awaited_as_that_of_other_pods() -> None:
    text = (CHART / "templates/operator/deployment.yaml").read_text()
    block = re.search(r"^          startupProbe:\n((?:            .*\n)+)", text, re.MULTILINE)
    assert block is not None
    assert yaml.safe_load(block.group(1)) == startup_probe(8080, 60)
    assert "{name: health, containerPort: 8080, protocol: TCP}" in text


def test_the_schema_of_values_is_one_and_takes_the_defaults() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    jsonschema.validate(values(), schema())
    assert all(each["additionalProperties"] is False for each in objects(schema()))


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    def compare(found: dict[str, Any], expected: dict[str, Any], path: str) -> None:
        names = set(expected["properties"]) - {"global", "claims"}
        assert set(found) == names, path
        for name in names:
            field = expected["properties"][name]
            if "properties" in field and name not in ("resources", "spec"):
                compare(found[name], field, f"{path}.{name}")

    compare(values(), schema(), "")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("operator.replicas", 0),
        ("operator.replicas", "2"),
        ("operator.releaseDeadlineSeconds", 1),
        ("operator.credentialsSecrets", ["A"]),
        ("image.pullPolicy", "Often"),
        ("cluster.name", "a.b"),
        ("cluster.colour", "red"),
        ("cluster.spec.segmentstore", {"memory": "2Gi"}),
        ("cluster.spec.segmentStore", {"memory": "2 GB"}),
        ("cluster.spec.segmentStore", {"cpu": 0.5}),
        ("cluster.spec.controller", {"memory": "64Mi"}),
        ("cluster.spec.tier2", {"bukket": "data"}),
        ("minio.bucket", "ab"),
        ("minio.persistence.size", "much"),
        ("networkPolicy.clients", [{}]),
        ("monitoring.serviceMonitor.interval", "often"),
        ("test.deadlineSeconds", 1),
    ],
)
def test_wrong_values_are_refused(path: str, value: object) -> None:
    changed = copy.deepcopy(values())
    *places, name = path.split(".")
    inner = changed
    for place in places:
        inner = inner[place]
    inner[name] = value
    assert not jsonschema.Draft7Validator(schema()).is_valid(changed)


SECTIONS = [
    "image",
    "image.repository",
    "operator",
    "operator.enabled",
    "operator.allNamespaces",
    "cluster",
    "cluster.enabled",
    "pipelines",
    "pipelines.image",
    "minio",
    "minio.image",
    "minio.persistence",
    "networkPolicy",
    "networkPolicy.enabled",
    "podDisruptionBudget",
    "monitoring",
    "monitoring.serviceMonitor",
    "monitoring.prometheusRule",
    "monitoring.dashboards",
    "test",
]


def without(path: str) -> dict[str, Any]:
    """The values as helm checks them when one is set to null: it is left out."""
    changed = copy.deepcopy(values())
    *places, name = path.split(".")
    inner = changed
    for place in places:
        inner = inner[place]
    del inner[name]
    return changed


@pytest.mark.parametrize("path", SECTIONS)
def test_a_section_that_is_null_is_named(path: str) -> None:
    """Templates would end in nil pointers, or take a switch that is on for one that is off."""
    (error,) = jsonschema.Draft7Validator(schema()).iter_errors(without(path))
    *places, name = path.split(".")
    assert [*error.absolute_path] == places
    assert f"'{name}' is a required property" in error.message


@pytest.mark.parametrize(
    "path",
    ["operator.resources", "operator.resources.limits", "operator.affinity", "cluster.spec", "networkPolicy.clients"],
)
def test_a_value_that_may_be_empty_may_be_null(path: str) -> None:
    jsonschema.validate(without(path), schema())


@pytest.mark.parametrize(
    "memory", ["175Mi", "175.999Mi", "00175Mi", "9Mi", "0", "180223Ki", "184M", "1", 176 * 2**20 - 1]
)
def test_a_controller_s_memory_that_its_pods_would_refuse(memory: str | int) -> None:
    """The least that the chart takes is the least with which a pod starts; fractions are left to the resource."""
    assert smallest_controller_bytes() == 176 * 2**20
    spec = {"controller": {"memory": memory}}
    changed = {**values(), "cluster": {"enabled": True, "name": "", "spec": spec}}
    fits = memory == "184M"  # left to the resource's own rule: 184.6M would do
    assert jsonschema.Draft7Validator(schema()).is_valid(changed) == fits
    cluster = {"metadata": {"name": "main"}, "spec": {**spec, "tier2": TIER2}}
    with pytest.raises(InvalidSpecError, match=re.escape("memory must be at least 176Mi, for example 512Mi")):
        StreamClusterSpec.parse(cluster)


@pytest.mark.parametrize(
    "memory", ["176Mi", "0176Mi", "176.5Mi", "1000Mi", "0.5Gi", "1G", "185M", 176 * 2**20, "200000k"]
)
def test_a_controller_s_memory_with_which_its_pods_start(memory: str | int) -> None:
    spec = {"controller": {"memory": memory}}
    jsonschema.validate({**values(), "cluster": {"enabled": True, "name": "", "spec": spec}}, schema())
    parsed = StreamClusterSpec.parse({"metadata": {"name": "main"}, "spec": {**spec, "tier2": TIER2}})
    controller_budgets(parsed.controller.memory_bytes)


def test_a_spec_of_a_cluster_is_taken_in_parts() -> None:
    for path in EXAMPLES:
        for manifest in yaml.safe_load_all(path.read_text()):
            if manifest["kind"] == "StreamCluster":
                whole = {**values(), "cluster": {"enabled": True, "name": "", "spec": manifest["spec"]}}
                jsonschema.validate(whole, schema())
    part = {**values(), "cluster": {"enabled": True, "name": "", "spec": {"segmentStore": {"replicas": 3}}}}
    jsonschema.validate(part, schema())


def test_the_chart_has_the_definitions_of_the_repository() -> None:
    there, here = (
        {path.name: path.read_text() for path in folder.iterdir()} for folder in (REPOSITORY / "crds", CHART / "crds")
    )
    assert there == here
    assert len(there) == 4


TEMPLATES = [*sorted((CHART / "templates").rglob("*.yaml")), CHART / "templates/NOTES.txt"]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_names_that_users_choose_are_quoted(path: Path) -> None:
    """Else a namespace called 12 is a number to Kubernetes, and a cluster called true a switch."""
    chosen = r'\.Release\.Name(space)?|include "tailrace\.(cluster|minioSecret)" [.$]'
    whole = re.findall(r"[:\[-] \{\{-? ([^{}]+?) -?\}\}(?=[,\]}]|$)", path.read_text(), re.MULTILINE)
    assert [each for each in whole if re.fullmatch(rf"\$?(?:{chosen})", each)] == []


@pytest.mark.parametrize("path", ["docs/kubernetes.md", "charts/tailrace/templates/NOTES.txt"])
def test_definitions_that_helm_installed_are_taken_over(path: str) -> None:
    """Helm's fields conflict with another manager that applies a different definition."""
    commands = re.findall(r"kubectl apply [^\n`]*crds/", (REPOSITORY / path).read_text())
    assert commands
    assert all("--server-side --force-conflicts" in command for command in commands)


def exposed(metric: str) -> bool:
    """Whether the code has such a metric: by its whole name, or by a prefix in a template and the rest as a word."""
    text = "".join((REPOSITORY / source).read_text() for source in SOURCES)
    text += (REPOSITORY / "services/tailrace/controller/rest/health.py").read_text()
    text += (REPOSITORY / "operator/tailrace_operator/runtime/health.py").read_text()
    text += (REPOSITORY / "operator/tailrace_operator/runtime/main.py").read_text()
    text += (REPOSITORY / "operator/tailrace_operator/runtime/metrics.py").read_text()
    prefixes = re.findall(r"\b(tailrace_\w*_)\{name\}", text)
    for name in (metric, metric.removesuffix("_total")):  # CounterMetricFamily adds the suffix
        if re.search(rf"\b{name}\b", text):
            return True
        if any(name.startswith(each) and f'"{name.removeprefix(each)}"' in text for each in prefixes):
            return True
    return False


@pytest.mark.parametrize("path", sorted((CHART / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_dashboards_show_metrics_that_there_are(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    metrics = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"tailrace_\w+", target["expr"])
    }
    assert len(metrics) >= 5
    assert [metric for metric in sorted(metrics) if not exposed(metric)] == []


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts of the chart by name."""
    groups = yaml.safe_load((CHART / "rules/tailrace.yaml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_alerts_use_metrics_that_there_are() -> None:
    for name, rule in alerts().items():
        metrics = re.findall(r"tailrace_\w+", rule["expr"])
        assert metrics, name
        assert [metric for metric in metrics if not exposed(metric)] == [], name
        assert rule["labels"]["severity"] in ("warning", "critical")
        for counter in re.findall(r"(?:rate|increase)\((\w+)", rule["expr"]):
            assert counter.endswith("_total"), f"{name}: {counter} is not a counter"


def test_every_alert_says_what_to_do() -> None:
    page = (REPOSITORY / "docs/operations/alerts.md").read_text()
    sections = dict(re.findall(r"^## (Tailrace\w+)\n\n(.+?)(?=\n##|\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(alerts())
    for name, rule in alerts().items():
        assert "**What to do:**" in sections[name]
        assert rule["annotations"]["runbook"] == f"docs/operations/alerts.md#{name.lower()}"


def test_dashboards_take_rates_of_counters_only() -> None:
    for path in (CHART / "dashboards").glob("*.json"):
        for counter in re.findall(r"(?:rate|increase)\((\w+)", path.read_text()):
            assert counter.endswith(("_total", "_count", "_sum", "_bucket")) or "sequence" in counter, (
                f"{path}: {counter}"
            )


def test_a_metric_that_is_not_there_is_noticed() -> None:
    assert not exposed("tailrace_container_colour")
    assert not exposed("tailrace_operator_colour")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_good_resources_of_one_cluster(path: Path) -> None:
    manifests = list(yaml.safe_load_all(path.read_text()))
    assert manifests
    for manifest in manifests:
        spec = PARSERS[manifest["kind"]](manifest)
        assert manifest["apiVersion"] == "tailrace.io/v1alpha1"
        assert getattr(spec, "cluster", "main") == "main"


def test_there_are_examples_of_every_kind() -> None:
    kinds = {manifest["kind"] for path in EXAMPLES for manifest in yaml.safe_load_all(path.read_text())}
    assert kinds == PARSERS.keys()
