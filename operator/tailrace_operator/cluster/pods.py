"""Render the pods of a StreamCluster: command lines, probes, resources, security; pure (ADR 0013)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
from tailrace_operator.cluster import names

if TYPE_CHECKING:
    from tailrace_operator.cluster.plan import Plan

USER_ID: Final = 65532
ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"

_GRACE_S: Final = 30  # more than the drain takes, for what comes before and after it
_CPU_REQUEST_MILLIS: Final = 100
_TEMPORARY: Final = "64Mi"


def store_pod(plan: Plan) -> dict[str, Any]:
    """Return the specification of a segment store pod."""
    spec = plan.spec.segment_store
    workers = [
        {
            "name": f"{names.WORKER_PORT_PREFIX}{number}",
            "containerPort": names.FIRST_WORKER_PORT + number,
            "protocol": "TCP",
        }
        for number in range(spec.workers)
    ]
    container = {
        "name": names.STORE,
        **_image(plan),
        "command": ["tailrace", "segmentstore"],
        "args": _store_arguments(plan),
        "env": [*downward(), *credentials(plan.spec.tier2.credentials_secret)],
        "ports": [*workers, {"name": "admin", "containerPort": names.ADMIN_PORT, "protocol": "TCP"}],
        "resources": resources(spec.memory_bytes, spec.cpu_millis),
        **_probes("admin", names.ADMIN_PORT, startup_s=300),
        **_container_security(),
    }
    return _pod(plan, names.store(plan.name), names.STORE, container, round(limits.DRAIN_DEADLINE_S) + _GRACE_S)


def controller_pod(plan: Plan) -> dict[str, Any]:
    """Return the specification of a controller pod."""
    spec = plan.spec.controller
    container = {
        "name": names.CONTROLLER,
        **_image(plan),
        "command": ["tailrace", "controller"],
        "args": _controller_arguments(plan),
        "env": downward(),
        "ports": [
            {"name": "grpc", "containerPort": names.GRPC_PORT, "protocol": "TCP"},
            {"name": "rest", "containerPort": names.REST_PORT, "protocol": "TCP"},
        ],
        "resources": resources(spec.memory_bytes, spec.cpu_millis),
        **_probes("rest", names.REST_PORT, startup_s=120),
        **_container_security(),
    }
    return _pod(plan, names.controller(plan.name), names.CONTROLLER, container, _GRACE_S)


def _store_arguments(plan: Plan) -> list[str]:
    tier2 = plan.spec.tier2
    options = {
        "--namespace": "$(POD_NAMESPACE)",
        "--cluster": plan.name,
        "--cluster-id": plan.cluster_id,
        "--pod": "$(POD_NAME)",
        "--containers": str(plan.spec.containers),
        "--workers": str(plan.spec.segment_store.workers),
        "--memory": str(plan.spec.segment_store.memory_bytes),
        "--tier2": tier2.url,
        "--s3-endpoint": tier2.endpoint,
        **({"--s3-region": tier2.region} if tier2.region else {}),
        "--bind": "0.0.0.0",
        "--advertise": "$(POD_NAME).$(POD_NAMESPACE).svc",
        "--store-port": str(names.FIRST_WORKER_PORT),
        "--admin-port": str(names.ADMIN_PORT),
    }
    return [text for option in options.items() for text in option]


def _controller_arguments(plan: Plan) -> list[str]:
    options = {
        "--namespace": "$(POD_NAMESPACE)",
        "--cluster": plan.name,
        "--containers": str(plan.spec.containers),
        "--bind": "0.0.0.0",
        "--advertise": names.controller_host(plan.name, plan.namespace),
        "--controller-port": str(names.GRPC_PORT),
        "--rest-port": str(names.REST_PORT),
        "--retention-period": f"{plan.spec.retention_period_ms}ms",
    }
    return [text for option in options.items() for text in option]


def _image(plan: Plan) -> dict[str, Any]:
    return {
        "image": plan.spec.image or plan.image,
        "imagePullPolicy": plan.spec.image_pull_policy or "IfNotPresent",
    }


def downward(**others: str) -> list[dict[str, Any]]:
    """Return variables with a pod's name and namespace, and with `others`: fields of the pod by variable."""
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", **others}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]


def credentials(secret: str) -> list[dict[str, Any]]:
    """Return variables with the credentials of an object store from a Secret."""
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    return [{"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for name, key in keys.items()]


def resources(memory_bytes: int, cpu_millis: int | None) -> dict[str, Any]:
    """Return requests and limits. The memory request equals the limit, because the budgets are computed from it."""
    memory = {"memory": str(memory_bytes)}
    if cpu_millis is None:
        return {"requests": {**memory, "cpu": f"{_CPU_REQUEST_MILLIS}m"}, "limits": memory}
    cpu = {"cpu": f"{cpu_millis}m"}
    return {"requests": {**memory, **cpu}, "limits": {**memory, **cpu}}


_AWAIT_HEALTH: Final = """\
import socket, time
while True:
    try:
        with socket.create_connection(("127.0.0.1", PORT), 5) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
            if connection.recv(64).split(b" ")[1:2] == [b"200"]:
                break
    except OSError:
        pass
    time.sleep(0.1)
"""
"""A program that ends when a process of the pod is healthy."""


def startup_probe(port: int, limit_s: int) -> dict[str, Any]:
    """Return a probe that waits for the start. One that asks again and again makes a Warning of each answer before.

    The chart has a copy for the operator's own pod.
    """
    program = _AWAIT_HEALTH.replace("PORT", str(port))
    return {"exec": {"command": ["python", "-ISc", program]}, "timeoutSeconds": limit_s, "failureThreshold": 1}


def _probes(port: str, number: int, startup_s: int) -> dict[str, Any]:
    """Return probes that allow a slow start, restart a pod late (load is no failure) and stop traffic early."""

    def probe(path: str, period_s: int, failures: int) -> dict[str, Any]:
        request = {"path": path, "port": port, "scheme": "HTTP"}
        return {"httpGet": request, "periodSeconds": period_s, "failureThreshold": failures, "timeoutSeconds": 5}

    return {
        "startupProbe": startup_probe(number, startup_s),
        "readinessProbe": probe("/readyz", 2, 3),
        "livenessProbe": probe("/healthz", 10, 6),
    }


def _container_security() -> dict[str, Any]:
    return {"securityContext": container_security(), "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}


def container_security() -> dict[str, Any]:
    """Return what the restricted Pod Security Standard asks of a container, and a root that is read-only."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security() -> dict[str, Any]:
    """Return what the restricted Pod Security Standard asks of a pod, with the user of the images."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _pod(plan: Plan, account: str, component: str, container: dict[str, Any], grace_s: int) -> dict[str, Any]:
    selector = {"matchLabels": names.selector(plan.name, component)}
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s,
        "securityContext": pod_security(),
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ],
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": _TEMPORARY}}],
    }
