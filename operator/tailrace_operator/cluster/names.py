"""Names, labels and ports of a StreamCluster's children; pure (ADR 0013)."""

from __future__ import annotations

from typing import Final

STORE: Final = "segmentstore"
CONTROLLER: Final = "controller"

FIRST_WORKER_PORT: Final = 12345
WORKER_PORT_PREFIX: Final = "worker-"
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
    """Return the name of the StatefulSet, its headless Service, PodDisruptionBudget, ServiceAccount and Role."""
    return f"{cluster}-store"


def store_pod(cluster: str, ordinal: int) -> str:
    """Return the name of a pod of the StatefulSet and of its own Service."""
    return f"{cluster}-store-{ordinal}"


def controller(cluster: str) -> str:
    """Return the name of the Deployment, its Service, PodDisruptionBudget, ServiceAccount and Role."""
    return f"{cluster}-controller"


def controller_host(cluster: str, namespace: str) -> str:
    """Return the host name of the controllers inside the Kubernetes cluster."""
    return f"{controller(cluster)}.{namespace}.svc"


def controller_uri(cluster: str, namespace: str) -> str:
    """Return the URI that clients connect to."""
    return f"tcp://{controller_host(cluster, namespace)}:{GRPC_PORT}"


def rest_uri(cluster: str, namespace: str) -> str:
    """Return the URI of the controllers' REST interface."""
    return f"http://{controller_host(cluster, namespace)}:{REST_PORT}"


def selector(cluster: str, component: str) -> dict[str, str]:
    """Return the label selector of a component's pods, which never changes."""
    return {NAME_LABEL: "tailrace", INSTANCE_LABEL: cluster, COMPONENT_LABEL: component}


def labels(cluster: str, component: str | None = None) -> dict[str, str]:
    """Return the labels of a child."""
    found = {**MANAGED, INSTANCE_LABEL: cluster}
    return {**found, COMPONENT_LABEL: component} if component else found
