"""Render all children of a Pipeline from its specification; pure (ADR 0039).

One workload runs the driver: a Job, a CronJob when there is a schedule, and a StatefulSet when the job has no end. A
StatefulSet never runs two pods at a time, and restarts its pod without a limit.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tailrace_operator.cluster.render import Child
from tailrace_operator.kube.objects import (
    CONFIG_MAPS,
    CRON_JOBS,
    JOBS,
    PIPELINES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
)
from tailrace_operator.pipeline import names, pods, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.cluster.kubernetes import Kind
    from tailrace_operator.pipeline.plan import Plan

WORKLOADS: Final = (JOBS, CRON_JOBS, STATEFUL_SETS)
RUN_ANNOTATION: Final = "tailrace.io/run"
"""On a Pipeline: a new value begins a new run. On its workload and pods: what they were made of."""
SPECIFICATION_ANNOTATION: Final = "tailrace.io/specification"
"""On a Job: of which specification it is a run, whatever image and object store that was made of."""
USAGE_CODE: Final = 2
"""Exit code of a driver for options that it does not know: no restart mends them."""
FINDINGS_CODE: Final = 3
"""Exit code of an audit that has findings: another run would find them again."""
_START_LATE_S: Final = 600
_EXECUTORS: Final = {
    "apiGroups": [""],
    "resources": ["pods"],
    "verbs": ["get", "list", "watch", "create", "delete", "deletecollection"],
}


def children(plan: Plan) -> tuple[Child, ...]:
    """Return all children in the order in which they are applied: what the driver needs comes before it."""
    name = names.of(plan.name)
    subject = {"kind": SERVICE_ACCOUNTS.kind, "name": plan.service_account, "namespace": plan.namespace}
    role = {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": name}
    rules = [_EXECUTORS] if plan.spec.executors.instances else []
    data = {
        settings.SETTINGS_FILE: settings.text(plan),
        settings.EXECUTOR_FILE: json.dumps(pods.executor_template(plan)),
    }
    account = _child(plan, SERVICE_ACCOUNTS, {"automountServiceAccountToken": False})
    return (
        *([account] if plan.spec.service_account is None else []),
        _child(plan, ROLES, {"rules": rules}),
        _child(plan, ROLE_BINDINGS, {"roleRef": role, "subjects": [subject]}),
        _child(plan, CONFIG_MAPS, {"data": data}),
        _workload(plan, data),
    )


def digest_of(plan: Plan) -> str:
    """Return a text that changes with any child."""
    return _digest([child.manifest for child in children(plan)])


def workload_kind(plan: Plan) -> Kind:
    """Return the kind of object that runs the driver."""
    if plan.spec.is_endless:
        return STATEFUL_SETS
    return JOBS if plan.spec.schedule is None else CRON_JOBS


def _workload(plan: Plan, data: Mapping[str, str]) -> Child:
    kind = workload_kind(plan)
    restart = "Always" if kind is STATEFUL_SETS else "Never"
    pod = pods.driver_pod(plan, restart)
    made_of = {RUN_ANNOTATION: _digest([plan.run, pod, data, plan.spec.restarts])}
    template = {"metadata": {"labels": names.driver_labels(plan.name), "annotations": made_of}, "spec": pod}
    if kind is STATEFUL_SETS:
        return _child(plan, kind, {"spec": _stateful_set(plan, template)}, made_of)
    job = _job(plan, template)
    if kind is JOBS:
        return _run_once(plan, {**job, "suspend": plan.spec.suspend}, made_of)
    spec = {
        "schedule": plan.spec.schedule,
        "timeZone": "Etc/UTC",
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": _START_LATE_S,
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "suspend": plan.spec.suspend,
        "jobTemplate": {"metadata": {"labels": names.labels(plan.name)}, "spec": job},
    }
    return _child(plan, kind, {"spec": spec}, made_of)


def _run_once(plan: Plan, spec: Mapping[str, Any], made_of: Mapping[str, str]) -> Child:
    if plan.ended is not None:
        before = plan.ended["metadata"].get("annotations") or {}
        spec, made_of = plan.ended["spec"], {RUN_ANNOTATION: before.get(RUN_ANNOTATION, "")}
    # Not on the pods: those of Jobs that earlier versions made cannot be changed.
    annotations = {**made_of, SPECIFICATION_ANNOTATION: specification_of(plan)}
    return _child(plan, JOBS, {"spec": spec}, annotations)


def specification_of(plan: Plan) -> str:
    """Return a text that changes with what the user asks of a run. The next versions must not change it by themselves.

    What is not set is left out, so that a new field does not change it.
    """
    return _digest([plan.run, _given(replace(plan.spec, suspend=False))])


def _given(value: Any) -> Any:
    if not is_dataclass(value):
        return value
    found = {one.name: _given(getattr(value, one.name)) for one in fields(value)}
    return {name: item for name, item in found.items() if item or type(item) is int}


def _job(plan: Plan, template: dict[str, Any]) -> dict[str, Any]:
    codes = [USAGE_CODE, FINDINGS_CODE] if plan.spec.job == "audit" else [USAGE_CODE]
    final = {"containerName": pods.CONTAINER, "operator": "In", "values": codes}
    return {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": plan.spec.restarts,
        "podReplacementPolicy": "Failed",  # a driver begins when the one before it has ended
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": final},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": template,
    }


def _stateful_set(plan: Plan, template: dict[str, Any]) -> dict[str, Any]:
    return {
        "replicas": 0 if plan.spec.suspend else 1,
        "serviceName": names.of(plan.name),
        "podManagementPolicy": "Parallel",  # otherwise a pod that never gets ready is not replaced by a mended one
        "selector": {"matchLabels": names.driver_labels(plan.name)},
        "template": template,
    }


def _child(plan: Plan, kind: Kind, content: Mapping[str, Any], annotations: Mapping[str, str] | None = None) -> Child:
    owner = {
        "apiVersion": PIPELINES.api_version,
        "kind": PIPELINES.kind,
        "name": plan.name,
        "uid": plan.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    metadata = {
        "name": names.of(plan.name),
        "namespace": plan.namespace,
        "labels": names.labels(plan.name),
        "ownerReferences": [owner],
        **({"annotations": dict(annotations)} if annotations else {}),
    }
    return Child(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **content})


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
