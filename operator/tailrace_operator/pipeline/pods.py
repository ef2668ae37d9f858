"""Render the pods of a Pipeline: the driver, and what Spark makes executors of; pure (ADR 0039)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tailrace_operator.cluster.pods import ACCESS_KEY, SECRET_KEY, USER_ID
from tailrace_operator.pipeline import names, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_operator.pipeline.plan import Plan

_GRACE_S: Final = 30
_CPU_REQUEST_MILLIS: Final = 100
_SCRATCH: Final = {"name": "tmp", "emptyDir": {"sizeLimit": "8Gi"}}
_SCRATCH_MOUNT: Final = {"name": "tmp", "mountPath": "/tmp"}
_OF_SESSION: Final = {"spark.ui.enabled": "true", "spark.log.level": "WARN"}
"""Where the driver does all work, jobs would turn both off."""
CONTAINER: Final = "driver"


def driver_pod(plan: Plan, restart_policy: str) -> dict[str, Any]:
    """Return the specification of the driver's pod."""
    driver = plan.spec.driver
    of_spark = [f"--conf={name}={value}" for name, value in _OF_SESSION.items()]
    arguments = [_literal(text) for text in (*plan.spec.arguments, f"--master={settings.master(plan)}", *of_spark)]
    container = {
        "name": CONTAINER,
        "image": plan.used_image,
        "imagePullPolicy": plan.pull_policy,
        "args": ["driver", *arguments],
        "env": [*_places(), *_variables(plan), *_credentials(plan)],
        "ports": [
            {"name": "status", "containerPort": names.STATUS_PORT, "protocol": "TCP"},
            {"name": "ui", "containerPort": names.UI_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(driver.memory_bytes, driver.cpu_millis),
        "securityContext": _container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [_SCRATCH_MOUNT, {"name": "settings", "mountPath": settings.FOLDER, "readOnly": True}],
    }
    return {
        **_pod_security(plan),
        "automountServiceAccountToken": plan.spec.executors.instances > 0,
        "restartPolicy": restart_policy,
        "terminationGracePeriodSeconds": _GRACE_S,
        "containers": [container],
        "volumes": [_SCRATCH, {"name": "settings", "configMap": {"name": names.of(plan.name)}}],
    }


def executor_template(plan: Plan) -> dict[str, Any]:
    """Return the pod from which Spark makes executors. Spark adds resources, variables and arguments."""
    container = {
        "name": names.EXECUTOR,
        "securityContext": _container_security(),
        "volumeMounts": [_SCRATCH_MOUNT],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": names.labels(plan.name)},
        "spec": {
            **_pod_security(plan),
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [_SCRATCH],
        },
    }


def _places() -> list[dict[str, Any]]:
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]


def _variables(plan: Plan) -> list[dict[str, Any]]:
    variables = {
        "SPARK_PROPERTIES": f"{settings.FOLDER}/{settings.SETTINGS_FILE}",
        "TAILRACE_CONTROLLER": plan.controller,
        "TAILRACE_STATUS_PORT": str(names.STATUS_PORT),
    }
    return [{"name": name, "value": value} for name, value in variables.items()]


def _credentials(plan: Plan) -> list[dict[str, Any]]:
    keys: Mapping[str, str] = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    secret = plan.store.credentials_secret
    return [{"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for name, key in keys.items()]


def _resources(memory_bytes: int, cpu_millis: int | None) -> dict[str, Any]:
    memory = {"memory": str(memory_bytes)}
    if cpu_millis is None:
        return {"requests": {**memory, "cpu": f"{_CPU_REQUEST_MILLIS}m"}, "limits": memory}
    both = {**memory, "cpu": f"{cpu_millis}m"}
    return {"requests": both, "limits": both}


def _container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _pod_security(plan: Plan) -> dict[str, Any]:
    return {
        "serviceAccountName": names.of(plan.name),
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _literal(text: str) -> str:
    """Return an argument so that Kubernetes replaces no ``$(NAME)`` in it."""
    return text.replace("$(", "$$(")
