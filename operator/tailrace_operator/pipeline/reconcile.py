"""Reconcile a Pipeline: its children, its pods, its progress (docs/pipelines.md, ADR 0039).

Deletion needs no work: Kubernetes deletes the children by their owner references, and executors with their driver. What
a job has written stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.kubernetes import ForbiddenError
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, InvalidSpecError, NotFoundError, WriteConflictError
from tailrace_operator.cluster.checks import credentials_of
from tailrace_operator.cluster.child_writer import ChildWriter, Existing, OwnerDeletedError
from tailrace_operator.cluster.name_conflicts import is_owned, name_conflict
from tailrace_operator.cluster.tier2 import ACCESS_DENIED, Tier2Error
from tailrace_operator.kube.manifests import generation_of, is_deleted
from tailrace_operator.kube.objects import CRON_JOBS, JOBS, PIPELINES, PODS, SECRETS, STREAM_CLUSTERS
from tailrace_operator.pipeline import conditions, names, runs
from tailrace_operator.pipeline.last_run import LastRun
from tailrace_operator.pipeline.observed import Observed, end_of_job, has_ended, named, observe
from tailrace_operator.pipeline.plan import Plan
from tailrace_operator.pipeline.render import RUN_ANNOTATION, WORKLOADS, children, digest_of, workload_kind
from tailrace_operator.pipeline.suspension import Suspension, is_suspended
from tailrace_operator.reconcile.keys import owner_of
from tailrace_operator.reconcile.outcome import Outcome
from tailrace_operator.schema.pipeline_spec import PipelineSpec, bucket_and_path
from tailrace_operator.schema.specs import StreamClusterSpec, Tier2Spec

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock
    from tailrace_operator.cluster.tier2 import Tier2Probe
    from tailrace_operator.kube.objects import Objects
    from tailrace_operator.pipeline.driver_status import DriverStatus
    from tailrace_operator.reconcile.outcome import Condition
    from tailrace_operator.schema.pipeline_spec import ObjectStoreSpec

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Applied:
    """Children as they were applied, and until when they need not be applied again, on the loop's clock."""

    digest: str
    until_s: float
    of: tuple[str, int | None]
    """Uid and generation of the Pipeline."""


class PipelineReconciler:
    """Implements Reconciler for Pipelines. ``image``: of Spark; None: the installation has no pipelines."""

    def __init__(
        self, objects: Objects, probe: Tier2Probe, drivers: DriverStatus, clock: Clock, image: str | None
    ) -> None:
        self._objects = objects
        self._probe = probe
        self._drivers = drivers
        self._clock = clock
        self._image = image
        self._usable: dict[tuple[str, str], object] = {}
        """By namespace and name of a Pipeline: the folders that were found usable, and where."""
        self._applied: dict[tuple[str, str], _Applied] = {}
        """By the same. Children are applied when they change, and once in `OPERATOR_PERIOD_S`."""
        self._waits: dict[tuple[str, str], int] = {}
        """By the same: how often in a row something had to end before the children could be applied."""
        self._ended: dict[tuple[str, str], Manifest] = {}
        """By the same: the newest Job that a watch event showed as ended. It may be removed before it is read."""
        self._children: ChildWriter[Plan] = ChildWriter(objects, PIPELINES, children)
        self._suspension = Suspension(objects)

    @property
    def kind(self) -> Kind:
        """See Reconciler.kind."""
        return PIPELINES

    @property
    def period_s(self) -> float:
        """See Reconciler.period_s."""
        return limits.OPERATOR_PIPELINE_PERIOD_S

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        """See Reconciler.away."""
        return (conditions.not_observed("Unavailable"),)

    async def gone(self, namespace: str, name: str) -> None:
        """See Reconciler.gone."""
        self._children.forget(namespace, name)
        self._usable.pop((namespace, name), None)
        self._applied.pop((namespace, name), None)
        self._waits.pop((namespace, name), None)
        self._ended.pop((namespace, name), None)

    def heard_job(self, job: Manifest) -> None:
        """Remember a Job of a Pipeline that has ended: its end is not in the status yet. Also one that was removed."""
        owner = owner_of(job, PIPELINES)
        if owner is None or end_of_job(job) is None:
            return
        if len(self._ended) >= limits.OPERATOR_OBJECTS_MAX:
            del self._ended[next(iter(self._ended))]  # the oldest; most are in the status by then
        kept = {name: value for name, value in job["metadata"].items() if name != "managedFields"}
        self._ended[owner.namespace, owner.name] = {"metadata": kept, "status": job["status"]}

    async def reconcile(self, manifest: Manifest) -> Outcome:
        """See Reconciler.reconcile."""
        if is_deleted(manifest):
            return Outcome()
        if not is_suspended(manifest):
            return await self._reconcile(manifest)
        # Whatever a check finds, and however long it takes, what runs stops before it.
        running = None if self._is_applied(manifest) else await self._stop(manifest)
        outcome = await self._reconcile(manifest)
        if conditions.is_observed(outcome):
            return outcome
        return conditions.with_running(outcome, running or await self._stop(manifest))

    def _is_applied(self, manifest: Manifest) -> bool:
        """Return whether the children are as the specification asks for, and need not be applied again."""
        applied = self._applied.get(_key(manifest))
        now_s = asyncio.get_running_loop().time()
        return applied is not None and applied.of == _version(manifest) and now_s < applied.until_s

    async def _stop(self, manifest: Manifest) -> Condition:
        self._applied.pop(_key(manifest), None)  # what was applied may be changed now
        return await self._suspension.stop(manifest)

    async def _reconcile(self, manifest: Manifest) -> Outcome:
        try:
            spec = PipelineSpec.parse(manifest)
        except InvalidSpecError as error:
            return conditions.refused("InvalidSpec", f"{error}.")
        if self._image is None:
            message = "This installation runs no pipelines: set the chart's value pipelines.enabled."
            return conditions.refused("PipelinesDisabled", message)
        namespace = manifest["metadata"]["namespace"]
        try:
            cluster = StreamClusterSpec.parse(await self._objects.get(STREAM_CLUSTERS, namespace, spec.cluster))
        except NotFoundError:
            message = f"spec.cluster: StreamCluster {spec.cluster} does not exist in namespace {namespace}."
            return conditions.refused("ClusterNotFound", message, retry_after_s=limits.OPERATOR_WAIT_S)
        except InvalidSpecError as error:
            message = f"spec.cluster: the specification of StreamCluster {spec.cluster} is invalid: {error}."
            return conditions.refused("ClusterInvalid", message, retry_after_s=limits.OPERATOR_WAIT_S)
        problem = inside_cluster(spec, cluster.tier2)
        if problem:
            return conditions.refused("OutputInCluster", problem)
        plan = self._plan(manifest, spec, cluster.tier2, self._image)
        try:
            await self._check_folders(plan)
            await self._forget(plan, manifest)
            return await self._carry_out(plan, _version(manifest))
        except Tier2Error as error:
            return conditions.refused(error.reason, str(error), limits.OPERATOR_WAIT_S)
        except OwnerDeletedError:
            return Outcome()

    async def _forget(self, plan: Plan, manifest: Manifest) -> None:
        """Write that the run in the status is of another specification, before one of the present one begins.

        Raises:
            OwnerDeletedError. WriteConflictError: the status was written at the same time.
        """
        if runs.is_forgotten(plan):
            try:
                await self._objects.merge_status(PIPELINES, manifest, {"lastRun": {"specification": None}})
            except NotFoundError as error:
                raise OwnerDeletedError from error

    @staticmethod
    def _plan(manifest: Manifest, spec: PipelineSpec, tier2: Tier2Spec, image: str) -> Plan:
        metadata = manifest["metadata"]
        run = str((metadata.get("annotations") or {}).get(RUN_ANNOTATION, ""))
        status = manifest.get("status") or {}
        return Plan(
            metadata["name"],
            metadata["namespace"],
            metadata["uid"],
            spec,
            tier2,
            image,
            run,
            is_observed=status.get("observedGeneration") == generation_of(manifest),
            last_run=LastRun.of_status(status),
        )

    async def _check_folders(self, plan: Plan) -> None:
        """Check that the object store takes what the job writes, and make missing buckets. Raises Tier2Error.

        With credentials that the operator may not read nothing is checked; the driver says what is wrong.
        """
        store, key = plan.store, (plan.namespace, plan.name)
        wanted = (plan.uid, store, plan.spec.written)
        if self._usable.get(key) == wanted:
            return
        try:
            secret = await self._objects.get(SECRETS, plan.namespace, store.credentials_secret)
        except NotFoundError:
            secret = None
        except ForbiddenError:
            return
        for field, url in plan.spec.written:
            await self._check_folder(field, url, store, secret)
        self._usable[key] = wanted

    async def _check_folder(self, field: str, url: str, store: ObjectStoreSpec, secret: Manifest | None) -> None:
        """Check that a folder is not among a cluster's objects, whatever name the endpoint has. Raises Tier2Error.

        Credentials may be limited to the folder: prefixes above it that they may not read are not looked at.
        """
        bucket, path = bucket_and_path(url)
        for prefix in prefixes(path):
            place = Tier2Spec(bucket, store.endpoint, store.credentials_secret, prefix, store.region)
            try:
                mark = await self._probe.look(place, credentials_of(place, secret))
            except Tier2Error as error:
                if error.reason == ACCESS_DENIED and prefix != path:
                    continue
                message = str(error).replace("spec.tier2.bucket", field).replace("spec.tier2", f"{field}, object store")
                raise Tier2Error(error.reason, message, transient=error.transient) from error
            if mark is not None:
                message = f"{field}: {url} is inside {place.url} of cluster {mark.cluster_id}: set another folder."
                raise Tier2Error("OutputInCluster", message)

    async def _carry_out(self, plan: Plan, version: tuple[str, int | None]) -> Outcome:
        key, name, kind = (plan.namespace, plan.name), names.of(plan.name), workload_kind(plan)
        digest, now_s = digest_of(plan), asyncio.get_running_loop().time()
        before = self._applied.pop(key, None)
        workload, remembered = await self._own(plan, kind, name), self._remembered(plan)
        is_there = workload is not None or remembered is not None
        message = ""
        if is_there and before is not None and before.digest == digest and now_s < before.until_s:
            self._applied[key] = before
        else:
            outcome, workload, message = await self._apply(plan)
            if outcome is not None:
                return outcome
            if not message:
                self._applied[key] = _Applied(digest, now_s + limits.OPERATOR_PERIOD_S, version)
        seen = await self._look(plan, workload)
        if workload is None and remembered is not None:
            seen = replace(seen, last=remembered)
        await self._remove_ended(plan, seen)
        progress = None
        if seen.driver is not None and seen.is_running:
            progress = await self._drivers.progress(str(seen.driver["status"].get("podIP", "")))
        return conditions.outcome(plan.spec, seen, progress, self._clock.now_ms(), message)

    def _remembered(self, plan: Plan) -> LastRun | None:
        """Return the run of the plan's specification that has ended, as the status or a watch event said; else None."""
        found, job = runs.remembered(plan), self._ended.get((plan.namespace, plan.name))
        if found is not None or job is None or workload_kind(plan) is not JOBS:
            return found
        return observe(JOBS, job, (), ()).last if is_owned(job, plan.uid) and runs.has_run(plan, job) else None

    async def _apply(self, plan: Plan) -> tuple[Outcome | None, Manifest | None, str]:
        """Apply the children. Return an outcome when nothing more can be done now; the workload; what was refused."""
        existing = await self._children.existing(plan)
        problem = name_conflict(PIPELINES, plan.name, plan.uid, existing.values())
        if problem is not None:
            return conditions.refused(problem.reason, f"{problem.message}.", limits.OPERATOR_WAIT_S), None, ""
        waits_for = await self._remove_others(plan, existing)
        if waits_for:
            return conditions.waiting(waits_for, self._pause_s(plan)), None, ""
        self._waits.pop((plan.namespace, plan.name), None)
        _, job = existing.get((JOBS.plural, names.of(plan.name)), (JOBS, None))
        if end_of_job(job) is not None:
            plan = replace(plan, ended=job)  # one that is to be made again would have been removed
        is_done = job is None and self._remembered(plan) is not None
        try:
            applied = await self._children.apply(plan, existing, pods=not is_done)
        except BadRequestError as error:
            return None, None, f"The Kubernetes API refuses a child of this resource: {error}."
        return None, applied.get(workload_kind(plan).plural), ""

    def _pause_s(self, plan: Plan) -> float:
        """Return the pause before the next look at what has to end: a pod may be gone at once, or its node be lost."""
        key = (plan.namespace, plan.name)
        count = self._waits[key] = self._waits.get(key, 0) + 1
        return min(limits.OPERATOR_WAIT_S, limits.OPERATOR_CHILD_PAUSE_S * 2.0 ** min(count - 1, 30))

    async def _remove_others(self, plan: Plan, existing: Existing) -> str:
        """Delete workloads of other kinds, and a Job that is to be made again.

        Return what has to end before the children can be applied; empty: nothing. A Job cannot be changed. Its pods end
        before the next ones begin: two drivers must not write the same files. A suspended one begins none.
        """
        wanted, name = workload_kind(plan), names.of(plan.name)
        removed: list[Kind] = []
        for kind in WORKLOADS:
            found = existing.get((kind.plural, name))
            manifest = found[1] if found else await self._own(plan, kind, name)
            if manifest is None or (kind is wanted and not (kind is JOBS and _is_made_again(plan, manifest))):
                continue
            removed.append(kind)
            if is_deleted(manifest):
                continue
            with contextlib.suppress(NotFoundError, WriteConflictError):
                await self._objects.delete(kind, plan.namespace, name, manifest["metadata"]["uid"])
                _logger.info("workload_deleted", kind=kind.kind, namespace=plan.namespace, name=name)
        found = None if wanted in removed else existing.get((wanted.plural, name))
        pods = [] if plan.spec.suspend else await self._old_pods(plan, found[1] if found else None)
        if pods:
            return f"the end of {named(pods)}"
        return f"the deletion of {removed[0].kind} {name}" if removed else ""

    async def _own(self, plan: Plan, kind: Kind, name: str) -> Manifest | None:
        try:
            found = await self._objects.get(kind, plan.namespace, name)
        except NotFoundError:
            return None
        return found if is_owned(found, plan.uid) else None

    async def _old_pods(self, plan: Plan, workload: Manifest | None) -> list[Manifest]:
        """Return the drivers that have not ended and are not of this workload."""
        owners = {workload["metadata"]["uid"]} if workload else set()
        if workload_kind(plan) is CRON_JOBS and workload:
            jobs = await self._objects.list(JOBS, plan.namespace, names.labels(plan.name))
            owners = {job["metadata"]["uid"] for job in jobs if is_owned(job, workload["metadata"]["uid"])}
        pods = await self._objects.list(PODS, plan.namespace, names.driver_labels(plan.name))
        return [pod for pod in pods if not has_ended(pod) and not any(is_owned(pod, uid) for uid in owners)]

    async def _look(self, plan: Plan, workload: Manifest | None) -> Observed:
        kind = workload_kind(plan)
        jobs = await self._objects.list(JOBS, plan.namespace, names.labels(plan.name)) if kind is CRON_JOBS else ()
        if plan.spec.suspend and workload is not None:
            await self._suspension.stop_scheduled(plan.namespace, workload, jobs)
        pods = await self._objects.list(PODS, plan.namespace, names.labels(plan.name))
        return observe(kind, workload, jobs, pods)

    async def _remove_ended(self, plan: Plan, seen: Observed) -> None:
        """Delete executors that have ended: a killed driver leaves them, and its successor has its own."""
        for pod in seen.ended_executors:
            metadata = pod["metadata"]
            with contextlib.suppress(NotFoundError, WriteConflictError):
                await self._objects.delete(PODS, plan.namespace, metadata["name"], metadata["uid"])


def inside_cluster(spec: PipelineSpec, tier2: Tier2Spec) -> str:
    """Return why a folder cannot be written: it is among the cluster's objects, which a sweep may delete."""
    if spec.object_store is not None and spec.object_store.endpoint != tier2.endpoint:
        return ""
    for field, url in spec.written:
        bucket, path = bucket_and_path(url)
        within = f"{path}/".startswith(f"{tier2.prefix}/") if tier2.prefix else True
        if bucket == tier2.bucket and within:
            return f"{field}: {url} is inside {tier2.url} of the StreamCluster: set another bucket or folder."
    return ""


def prefixes(path: str) -> list[str]:
    """Return a path and all that it is below, the whole bucket first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _version(manifest: Manifest) -> tuple[str, int | None]:
    return manifest["metadata"]["uid"], generation_of(manifest)


def _is_made_again(plan: Plan, job: Manifest) -> bool:
    return not runs.is_current(plan, job) and not runs.has_run(plan, job)
