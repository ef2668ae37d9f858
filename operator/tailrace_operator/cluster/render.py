"""Render all children of a StreamCluster from its specification; pure (ADR 0013).

Fields that are named here are applied and kept. Other fields, such as annotations of users and defaults of the API
server, are left unchanged. Fields that Kubernetes does not allow to change (selectors, the StatefulSet's Service)
depend on the resource's name only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
from tailrace_operator.cluster import names, pods
from tailrace_operator.kube.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    STREAM_CLUSTERS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace_operator.cluster.plan import Plan

CREDENTIALS_ANNOTATION: Final = "tailrace.io/credentials"

_LEASES: Final = {
    "apiGroups": ["coordination.k8s.io"],
    "resources": ["leases"],
    "verbs": ["get", "list", "create", "update"],
}
_MAP: Final = {"apiGroups": ["tailrace.io"], "resources": ["streamclusters"], "verbs": ["get", "list", "watch"]}


@dataclass(frozen=True, slots=True)
class Child:
    """An object that a StreamCluster owns."""

    kind: Kind
    manifest: Manifest

    @property
    def name(self) -> str:
        """Return its name."""
        return str(self.manifest["metadata"]["name"])


def children(plan: Plan) -> tuple[Child, ...]:
    """Return all children in the order in which they are applied: what pods need comes before the pods."""
    store, controller = names.store(plan.name), names.controller(plan.name)
    return (
        *_identity(plan, store, names.STORE, [_LEASES, _MAP]),
        *_identity(plan, controller, names.CONTROLLER, [_MAP]),
        _config_map(plan),
        *_services(plan),
        _disruption_budget(plan, store, names.STORE),
        _disruption_budget(plan, controller, names.CONTROLLER),
        _stateful_set(plan),
        _deployment(plan),
    )


def _child(plan: Plan, kind: Kind, name: str, component: str | None, content: Mapping[str, Any]) -> Child:
    owner = {
        "apiVersion": STREAM_CLUSTERS.api_version,
        "kind": STREAM_CLUSTERS.kind,
        "name": plan.name,
        "uid": plan.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    metadata = {
        "name": name,
        "namespace": plan.namespace,
        "labels": names.labels(plan.name, component),
        "ownerReferences": [owner],
    }
    return Child(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **content})


def _identity(plan: Plan, name: str, component: str, rules: list[dict[str, Any]]) -> tuple[Child, ...]:
    subject = {"kind": SERVICE_ACCOUNTS.kind, "name": name, "namespace": plan.namespace}
    role = {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": name}
    return (
        _child(plan, SERVICE_ACCOUNTS, name, component, {"automountServiceAccountToken": False}),
        _child(plan, ROLES, name, component, {"rules": rules}),
        _child(plan, ROLE_BINDINGS, name, component, {"roleRef": role, "subjects": [subject]}),
    )


def _config_map(plan: Plan) -> Child:
    """Return the ConfigMap with what clients need to know."""
    data = {
        "controllerUri": names.controller_uri(plan.name, plan.namespace),
        "restUri": names.rest_uri(plan.name, plan.namespace),
        "clusterId": plan.cluster_id,
    }
    return _child(plan, CONFIG_MAPS, plan.name, None, {"data": data})


def _services(plan: Plan) -> tuple[Child, ...]:
    # Also ports of workers that are to go: they have containers until their pod is replaced.
    count = max(plan.spec.segment_store.workers, plan.running_workers)
    workers = [
        _port(f"{names.WORKER_PORT_PREFIX}{number}", names.FIRST_WORKER_PORT + number) for number in range(count)
    ]
    store = names.selector(plan.name, names.STORE)
    # Also addresses that are not ready: a worker that starts or drains still redirects clients to the new owners.
    headless = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": store,
        "ports": [*workers, _port("admin", names.ADMIN_PORT)],
    }
    addresses = []
    for ordinal in range(plan.spec.segment_store.replicas):
        pod = names.store_pod(plan.name, ordinal)
        spec = {
            "type": "ClusterIP",
            "publishNotReadyAddresses": True,
            "selector": {**store, names.POD_NAME_LABEL: pod},
            "ports": workers,
        }
        addresses.append(_child(plan, SERVICES, pod, names.STORE, {"spec": spec}))
    controller = {
        "type": "ClusterIP",
        "selector": names.selector(plan.name, names.CONTROLLER),
        "ports": [_port("grpc", names.GRPC_PORT), _port("rest", names.REST_PORT)],
    }
    return (
        _child(plan, SERVICES, names.store(plan.name), names.STORE, {"spec": headless}),
        *addresses,
        _child(plan, SERVICES, names.controller(plan.name), names.CONTROLLER, {"spec": controller}),
    )


def _port(name: str, port: int) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def _disruption_budget(plan: Plan, name: str, component: str) -> Child:
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a pod that cannot become ready must not block a drain
        "selector": {"matchLabels": names.selector(plan.name, component)},
    }
    return _child(plan, DISRUPTION_BUDGETS, name, component, {"spec": spec})


def _stateful_set(plan: Plan) -> Child:
    spec = {
        "replicas": plan.spec.segment_store.replicas,
        "serviceName": names.store(plan.name),
        # Pods are independent: none waits for another to start or stop. A rollout replaces one at a time, also one that
        # is not ready.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "minReadySeconds": round(limits.POD_STEADY_S),  # a container that stops just after it opened ends a rollout
        "selector": {"matchLabels": names.selector(plan.name, names.STORE)},
        "template": _template(plan, names.STORE, pods.store_pod(plan)),
    }
    return _child(plan, STATEFUL_SETS, names.store(plan.name), names.STORE, {"spec": spec})


def _deployment(plan: Plan) -> Child:
    spec = {
        "replicas": plan.spec.controller.replicas,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": {"matchLabels": names.selector(plan.name, names.CONTROLLER)},
        "template": _template(plan, names.CONTROLLER, pods.controller_pod(plan)),
    }
    return _child(plan, DEPLOYMENTS, names.controller(plan.name), names.CONTROLLER, {"spec": spec})


def _template(plan: Plan, component: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"labels": names.labels(plan.name, component)}
    if component == names.STORE:
        metadata["annotations"] = {CREDENTIALS_ANNOTATION: plan.credentials}
    return {"metadata": metadata, "spec": spec}
