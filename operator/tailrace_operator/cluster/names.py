"""Names, labels and ports of what belongs to a StreamCluster; pure (ADR 0013)."""

from __future__ import annotations

from typing import Final

STORE: Final = "segmentstore"
CONTROLLER: Final = "controller"

FIRST_WORKER_PORT: Final = 12345
ADMIN_PORT: Final = 6061
GRPC_PORT: Final = 9090
REST_PORT: Final = 9091

NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"

MANAGED: Final = {NAME_LABEL: "tailrace", MANAGED_BY_LABEL: "tailrace-operator"}


def store(cluster: str) -> str:
    """The StatefulSet, its headless Service, PodDisruptionBudget, ServiceAccount and Role."""
    return f"{cluster}-store"


def store_pod(cluster: str, ordinal: int) -> str:
    """A pod of the StatefulSet, and the Service that is its address."""
    return f"{cluster}-store-{ordinal}"


def controller(cluster: str) -> str:
    """The Deployment, its Service, PodDisruptionBudget, ServiceAccount and Role."""
    return f"{cluster}-controller"


def controller_host(cluster: str, namespace: str) -> str:
    """Where the controllers are reached inside the Kubernetes cluster."""
    return f"{controller(cluster)}.{namespace}.svc"


def controller_uri(cluster: str, namespace: str) -> str:
    """What clients connect to."""
    return f"tcp://{controller_host(cluster, namespace)}:{GRPC_PORT}"


def rest_uri(cluster: str, namespace: str) -> str:
    """Where the controllers' REST interface is."""
    return f"http://{controller_host(cluster, namespace)}:{REST_PORT}"


def selector(cluster: str, component: str) -> dict[str, str]:
    """What the pods of a component are found by; never changes."""
    return {NAME_LABEL: "tailrace", INSTANCE_LABEL: cluster, COMPONENT_LABEL: component}


def labels(cluster: str, component: str | None = None) -> dict[str, str]:
    """Labels of a child."""
    found = {**MANAGED, INSTANCE_LABEL: cluster}
    return {**found, COMPONENT_LABEL: component} if component else found
