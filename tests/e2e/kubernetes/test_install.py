"""From an empty namespace to a system that works: how long it takes, what is there then."""

from __future__ import annotations

from typing import Any

from harness import kubechart
from harness.figures import Figures
from harness.kubectl import condition_of

FIRST_WRITE_BOUND_S = 120.0


def test_installed_until_the_first_write(installed: Any, figures: Figures) -> None:
    if installed.first_write_s is not None:
        figure = figures.add(
            "helm install to first write", "tailrace", installed.first_write_s, "s", FIRST_WRITE_BOUND_S
        )
        assert figure.holds, figure
    resource = installed.system.resource()
    for condition in resource["status"]["conditions"]:
        assert condition["status"] == "True", condition
        assert condition["observedGeneration"] == resource["metadata"]["generation"]
    assert condition_of(resource, "Ready")
    assert resource["status"]["controllerUri"] == installed.system.controller_uri
    assert resource["status"]["clusterId"] == resource["metadata"]["uid"]


def test_a_start_makes_no_warning(healthy: Any) -> None:
    """A pod that is not ready yet is no failure; those of MinIO are asked again and again."""
    warnings = [
        (event["involvedObject"]["name"], event["message"])
        for event in healthy.kube.list("events")
        if "Startup probe" in event["message"] and "minio" not in event["involvedObject"]["name"]
    ]
    assert not warnings


def test_columns_of_a_cluster(system: Any) -> None:
    heads, row = (line.split() for line in system.kube("get", "tsc").splitlines())
    assert heads == ["NAME", "READY", "REASON", "STORES", "CONTROLLERS", "AGE"]
    assert row[:2] == [system.cluster, "True"]
    assert row[3:5] == ["2", "2"]


def test_helm_test_passes(healthy: Any) -> None:
    kubechart.test(healthy.kube)


def test_every_pod_keeps_to_the_restricted_standard(healthy: Any) -> None:
    """The namespace enforces what the standard asks for; a token of the API is only where it has rights of its own."""
    for pod in healthy.kube.list("pods", "app.kubernetes.io/name=tailrace"):
        spec = pod["spec"]
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"], pod["metadata"]["name"]
            assert security["capabilities"] == {"drop": ["ALL"]}, pod["metadata"]["name"]
        if spec["serviceAccountName"] == "default":
            assert spec["automountServiceAccountToken"] is False, pod["metadata"]["name"]
