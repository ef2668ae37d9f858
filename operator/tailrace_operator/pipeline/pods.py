"""Render the pods of a Pipeline: the driver, and what Spark makes executors of; pure (ADR 0039)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tailrace_operator.cluster import pods as parts
from tailrace_operator.pipeline import names, settings
from tailrace_operator.pipeline.arguments import driver_arguments

if TYPE_CHECKING:
    from tailrace_operator.pipeline.plan import Plan

_GRACE_S: Final = 30
_SCRATCH: Final = {"name": "tmp", "emptyDir": {"sizeLimit": "8Gi"}}
_SCRATCH_MOUNT: Final = {"name": "tmp", "mountPath": "/tmp"}
CONTAINER: Final = "driver"


def driver_pod(plan: Plan, restart_policy: str) -> dict[str, Any]:
    """Return the specification of the driver's pod."""
    driver, credentials = plan.spec.driver, parts.credentials(plan.store.credentials_secret)
    container = {
        "name": CONTAINER,
        "image": plan.used_image,
        "imagePullPolicy": plan.pull_policy,
        "args": driver_arguments(plan),
        "env": [*parts.downward(POD_IP="status.podIP"), *_variables(plan), *credentials],
        "ports": [
            {"name": "status", "containerPort": names.STATUS_PORT, "protocol": "TCP"},
            {"name": "ui", "containerPort": names.UI_PORT, "protocol": "TCP"},
        ],
        "resources": parts.resources(driver.memory_bytes, driver.cpu_millis),
        "securityContext": parts.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [_SCRATCH_MOUNT, {"name": "settings", "mountPath": settings.FOLDER, "readOnly": True}],
    }
    return {
        **_common(plan),
        "automountServiceAccountToken": plan.spec.executors.instances > 0 or plan.spec.service_account is not None,
        "restartPolicy": restart_policy,
        "terminationGracePeriodSeconds": _GRACE_S,
        "containers": [container],
        "volumes": [_SCRATCH, {"name": "settings", "configMap": {"name": names.of(plan.name)}}],
    }


def executor_template(plan: Plan) -> dict[str, Any]:
    """Return the pod from which Spark makes executors. Spark adds resources, variables and arguments."""
    container = {
        "name": names.EXECUTOR,
        "securityContext": parts.container_security(),
        "volumeMounts": [_SCRATCH_MOUNT],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": names.labels(plan.name)},
        "spec": {
            **_common(plan),
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [_SCRATCH],
        },
    }


def _variables(plan: Plan) -> list[dict[str, Any]]:
    variables = {
        "SPARK_PROPERTIES": f"{settings.FOLDER}/{settings.SETTINGS_FILE}",
        "TAILRACE_CONTROLLER": plan.controller,
        "TAILRACE_STATUS_PORT": str(names.STATUS_PORT),
    }
    return [{"name": name, "value": value} for name, value in variables.items()]


def _common(plan: Plan) -> dict[str, Any]:
    placement = plan.spec.placement
    return {
        "serviceAccountName": plan.service_account,
        "enableServiceLinks": False,
        "securityContext": parts.pod_security(),
        **({"nodeSelector": dict(placement.node_selector)} if placement.node_selector else {}),
        **({"tolerations": [dict(one) for one in placement.tolerations]} if placement.tolerations else {}),
    }
