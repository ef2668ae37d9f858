"""Stop what a Pipeline runs, also while its specification is refused (docs/pipelines.md#what-runs-when)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import structlog

from tailrace.cluster.kubernetes import ForbiddenError
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError, WriteConflictError
from tailrace_operator.cluster.name_conflicts import is_owned
from tailrace_operator.kube.manifests import is_deleted, written_condition
from tailrace_operator.kube.objects import CONFIG_MAPS, CRON_JOBS, JOBS, PODS, ROLES, STATEFUL_SETS
from tailrace_operator.pipeline import conditions, names
from tailrace_operator.pipeline.observed import end_of_job, left_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace_operator.kube.objects import Objects
    from tailrace_operator.reconcile.outcome import Condition

_STOPPED: Final[tuple[tuple[Kind, dict[str, Any]], ...]] = (
    (STATEFUL_SETS, {"replicas": 0}),
    (CRON_JOBS, {"suspend": True}),
    (JOBS, {"suspend": True}),
)
"""What each kind of workload has in its specification when it starts no pods."""

_logger = structlog.get_logger()


def is_suspended(manifest: Manifest) -> bool:
    """Return whether a Pipeline asks for no pods, also when its specification cannot be parsed."""
    spec = manifest.get("spec")
    return isinstance(spec, dict) and spec.get("suspend") is True


class Suspension:
    """Stops the workloads of Pipelines; changes only objects that the Pipeline owns."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def stop(self, manifest: Manifest) -> Condition:
        """Let the workloads start no pods, and end those that run; return condition Running of it.

        Raises:
            WriteConflictError: others change a workload all the time. UnavailableError: the API server does not answer.
        """
        metadata = manifest["metadata"]
        namespace, name, uid = str(metadata["namespace"]), str(metadata["name"]), str(metadata["uid"])
        owns, problem, forbidden = False, "", ""
        for kind, wanted in _STOPPED:
            try:
                owns |= await self._stop_one(kind, namespace, name, uid, wanted)
            except ForbiddenError as error:
                # Without pipelines.enabled there are no rights on Jobs and CronJobs. Beside a StatefulSet none is left.
                forbidden = forbidden or ("" if owns else str(error))
            except BadRequestError as error:
                problem = problem or str(error)
        if forbidden and not await self._can_have_no_workload(manifest):
            problem = problem or f"{forbidden}; with the chart's value pipelines.enabled it may"
        if problem:
            _logger.warning("pipeline_not_stopped", namespace=namespace, name=name, reason=problem)
            return conditions.not_stopped(problem)
        return conditions.suspended(left_of(await self._objects.list(PODS, namespace, names.labels(name))))

    async def _can_have_no_workload(self, manifest: Manifest) -> bool:
        """Return whether nothing can start pods, although the operator may not look at Jobs.

        An operator without rights on Jobs makes none: so it is when the Pipeline was stopped before, or when it never
        got the children that come before its workload.
        """
        if written_condition(manifest, conditions.RUNNING).get("reason") == conditions.SUSPENDED:
            return True
        metadata = manifest["metadata"]
        for kind in (ROLES, CONFIG_MAPS):
            try:
                found = await self._objects.get(kind, metadata["namespace"], names.of(metadata["name"]))
            except NotFoundError:
                continue
            except ForbiddenError:
                return False
            if is_owned(found, metadata["uid"]):
                return False
        return True

    async def _stop_one(self, kind: Kind, namespace: str, name: str, uid: str, wanted: dict[str, Any]) -> bool:
        """Stop the workload of a kind; return whether the Pipeline of that uid has one."""
        child = names.of(name)
        for attempt in range(limits.OPERATOR_CONFLICTS_MAX):
            try:
                found = await self._objects.get(kind, namespace, child)
                if not is_owned(found, uid):
                    return False
                if not (is_deleted(found) or end_of_job(found) is not None or found["spec"].items() >= wanted.items()):
                    await self._objects.merge_spec(kind, found, wanted)
                    _logger.info("workload_stopped", kind=kind.kind, namespace=namespace, name=child)
                if kind is CRON_JOBS:
                    jobs = await self._objects.list(JOBS, namespace, names.labels(name))
                    await self.stop_scheduled(namespace, found, jobs)
                return True
            except NotFoundError:
                return False
            except WriteConflictError:
                if attempt + 1 == limits.OPERATOR_CONFLICTS_MAX:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def stop_scheduled(self, namespace: str, schedule: Manifest, jobs: Iterable[Manifest]) -> None:
        """Delete the Jobs of a CronJob that have not ended: its own suspension only starts no more of them."""
        for job in jobs:
            metadata = job["metadata"]
            if not is_owned(job, schedule["metadata"]["uid"]) or end_of_job(job) is not None:
                continue
            with contextlib.suppress(NotFoundError, WriteConflictError):
                await self._objects.delete(JOBS, namespace, metadata["name"], metadata["uid"])
                _logger.info("scheduled_run_stopped", namespace=namespace, name=metadata["name"])
