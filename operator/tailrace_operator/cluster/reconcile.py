"""Reconcile a StreamCluster: its checks, its children, its status (docs/design.md#resources, ADR 0013).

While a check fails, no pods are created or changed: a new cluster has none, and running pods keep running. The other
children of a running cluster are still applied. Deletion needs no work: Kubernetes deletes the children by their owner
references, and the data is kept.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from tailrace.cluster.kubernetes import STREAM_CLUSTERS, ForbiddenError
from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    InvalidSpecError,
    NotFoundError,
    UnavailableError,
    WriteConflictError,
)
from tailrace_operator.cluster import checks, claims, names
from tailrace_operator.cluster.bucket_rules import RULES_FIT, rules_condition
from tailrace_operator.cluster.child_writer import ChildWriter, Existing, OwnerDeletedError
from tailrace_operator.cluster.name_conflicts import is_owned, name_conflict
from tailrace_operator.cluster.plan import Plan
from tailrace_operator.cluster.pod_diagnostics import pod_problem, terminating_pods
from tailrace_operator.cluster.render import children
from tailrace_operator.cluster.state import (
    ACCEPTED,
    CONTROLLER_READY,
    STORE_READY,
    TIER2_READY,
    open_condition,
    placed_condition,
    pods_condition,
    ready_pods,
    running_workers,
)
from tailrace_operator.cluster.tier2 import Tier2Error
from tailrace_operator.kube.manifests import is_deleted, written_condition
from tailrace_operator.kube.objects import DEPLOYMENTS, PODS, SECRETS, SERVICES, STATEFUL_SETS
from tailrace_operator.reconcile.outcome import Condition, Outcome, Status, ready
from tailrace_operator.schema.specs import StreamClusterSpec

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock
    from tailrace_operator.cluster.placement import Placements
    from tailrace_operator.cluster.tier2 import Credentials, Tier2Probe
    from tailrace_operator.kube.objects import Objects
    from tailrace_operator.schema.specs import Tier2Spec

_TRANSIENT_RETRY_S: Final = 5.0

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Workloads:
    """StatefulSet and Deployment of the cluster; None: not created yet."""

    store: Manifest | None
    controller: Manifest | None


@dataclass(frozen=True, slots=True)
class _Component:
    """Pods of one kind: their condition, their label, and their noun in messages."""

    condition: str
    label: str
    noun: str


_STORE: Final = _Component(STORE_READY, names.STORE, "segment store")
_CONTROLLER: Final = _Component(CONTROLLER_READY, names.CONTROLLER, "controller")


class StreamClusterReconciler:
    """Implements Reconciler. ``image``: of pods whose resource names none. ``namespace`` None: serves all."""

    def __init__(
        self,
        objects: Objects,
        probe: Tier2Probe,
        placements: Placements,
        clock: Clock,
        *,
        image: str,
        namespace: str | None,
        period_s: float = limits.OPERATOR_CLUSTER_PERIOD_S,
    ) -> None:
        self._objects = objects
        self._children = ChildWriter(objects, STREAM_CLUSTERS, children)
        self._probe = probe
        self._placements = placements
        self._clock = clock
        self._image = image
        self._namespace = namespace
        self._period_s = period_s
        self._fingerprints: dict[tuple[str, str], str] = {}
        """Fingerprints of credentials by uid of the StreamCluster and version of the Secret; costly to compute."""
        self._rights_proven_s: dict[tuple[str, str, Tier2Spec], float] = {}
        """By uid, version of the Secret and place: when the credentials last did all that segment stores do."""
        self._claiming = asyncio.Lock()

    @property
    def kind(self) -> Kind:
        """See Reconciler.kind."""
        return STREAM_CLUSTERS

    @property
    def period_s(self) -> float:
        """See Reconciler.period_s."""
        return self._period_s

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        """See Reconciler.away."""
        return ()

    def heard(self, manifest: Manifest) -> None:
        """Start the placer of a cluster that has had workers: after a failover it waits for no reconciliation."""
        if claims.is_placed(manifest) and not is_deleted(manifest):
            self._placements.ensure(str(manifest["metadata"]["namespace"]), str(manifest["metadata"]["name"]))

    async def gone(self, namespace: str, name: str) -> None:
        """See Reconciler.gone."""
        self._children.forget(namespace, name)
        await self._placements.end(namespace, name)

    async def reconcile(self, manifest: Manifest) -> Outcome:
        """See Reconciler.reconcile."""
        if is_deleted(manifest):
            return Outcome()  # a deletion may wait for the children: do not create them again
        try:
            return await self._reconcile(manifest)
        except OwnerDeletedError:
            return Outcome()

    async def _reconcile(self, manifest: Manifest) -> Outcome:
        metadata = manifest["metadata"]
        namespace, name = str(metadata["namespace"]), str(metadata["name"])
        workloads = await self._workloads(manifest)
        if workloads.store is not None:
            self._placements.ensure(namespace, name)  # also while its specification is invalid
        try:
            spec = StreamClusterSpec.parse(manifest)
        except InvalidSpecError as error:
            return await self._outcome(manifest, None, workloads, [_false(ACCEPTED, "InvalidSpec", str(error))])
        problem = await self._problem(manifest, spec, workloads)
        if problem is not None:
            return await self._refused(manifest, spec, workloads, problem)
        existing = await self._children.existing(self._plan(manifest, spec, ""))
        _, service = existing.get((SERVICES.plural, names.store(name)), (SERVICES, None))
        workers = running_workers(workloads.store, service)
        problem = name_conflict(STREAM_CLUSTERS, name, metadata["uid"], existing.values())
        if problem is not None:
            return await self._refused(manifest, spec, workloads, problem)
        accepted = Condition(ACCEPTED, Status.TRUE, "Accepted", "The specification is accepted.")
        try:
            credentials, rules = await self._check_tier2(manifest, spec)
        except Tier2Error as error:
            refused = _false(TIER2_READY, error.reason, str(error))
            if workloads.store is not None:
                try:
                    await self._apply(self._plan(manifest, spec, "", workers), existing, pods=False)
                except BadRequestError as why:
                    accepted = _child_refused(why)
            retry_s = _TRANSIENT_RETRY_S if error.transient else None
            return await self._outcome(manifest, spec, workloads, [accepted, refused], retry_s)
        if claims.claim_of(manifest) != claims.Place.of(spec.tier2):  # a claim stays until this makes another one
            problem = await self._claim(manifest, spec)
            if problem is not None:
                return await self._refused(manifest, spec, workloads, problem)
        message = f"{spec.tier2.url} at {spec.tier2.endpoint} can be read and written and belongs to this cluster."
        usable = Condition(TIER2_READY, Status.TRUE, "Usable", message)
        try:
            plan = self._plan(manifest, spec, credentials, workers)
            workloads = await self._apply(plan, existing, pods=True)
        except BadRequestError as error:
            return await self._outcome(manifest, spec, workloads, [_child_refused(error), usable, rules])
        self._placements.ensure(namespace, name)
        await self._prune(plan, workloads)
        return await self._outcome(manifest, spec, workloads, [accepted, usable, rules])

    def _plan(self, manifest: Manifest, spec: StreamClusterSpec, credentials: str, running_workers: int = 0) -> Plan:
        metadata = manifest["metadata"]
        return Plan(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            spec=spec,
            image=self._image,
            credentials=credentials,
            running_workers=running_workers,
        )

    # -- checks

    async def _problem(
        self, manifest: Manifest, spec: StreamClusterSpec, workloads: _Workloads
    ) -> checks.Problem | None:
        """Return the first problem that can be found without the object store."""
        problem = checks.memory_problem(spec) or checks.containers_problem(spec, workloads.store)
        if problem is not None:
            return problem
        others = await self._objects.list(STREAM_CLUSTERS, self._namespace)
        mine = next((one for one in others if one["metadata"]["uid"] == manifest["metadata"]["uid"]), manifest)
        return claims.rival_problem(mine, spec, others)

    async def _claim(self, manifest: Manifest, spec: StreamClusterSpec) -> checks.Problem | None:
        """Claim the place of a cluster whose checks have passed; return what another one has that it needs.

        Claims are made one at a time and with the newest list, so each sees all earlier ones.

        Raises:
            OwnerDeletedError. WriteConflictError: the status was written at the same time, again and again.
        """
        uid = manifest["metadata"]["uid"]
        for attempt in range(limits.OPERATOR_CONFLICTS_MAX):
            async with self._claiming:
                others = await self._objects.list(STREAM_CLUSTERS, self._namespace)
                mine = next((one for one in others if one["metadata"]["uid"] == uid), None)
                if mine is None:
                    raise OwnerDeletedError
                problem = claims.rival_problem(mine, spec, others)
                if problem is not None or claims.claim_of(mine) == claims.Place.of(spec.tier2):
                    return problem
                try:
                    await self._objects.merge_status(STREAM_CLUSTERS, mine, claims.claim(spec.tier2))
                    return None
                except NotFoundError as error:
                    raise OwnerDeletedError from error
                except WriteConflictError:
                    if attempt + 1 == limits.OPERATOR_CONFLICTS_MAX:
                        raise
        raise AssertionError("the last attempt returns or raises")

    async def _check_tier2(self, manifest: Manifest, spec: StreamClusterSpec) -> tuple[str, Condition]:
        """Check the object store, and return the fingerprint of the credentials and the condition of its rules.

        Raises Tier2Error.
        """
        metadata = manifest["metadata"]
        try:
            secret = await self._objects.get(SECRETS, metadata["namespace"], spec.tier2.credentials_secret)
        except NotFoundError:
            secret = None
        except ForbiddenError as error:
            raise checks.secret_forbidden(spec.tier2) from error
        credentials = checks.credentials_of(spec.tier2, secret)
        is_placed = claims.is_placed(manifest)
        has_data = is_placed or spec.adopt_cluster_id is not None
        mark = await self._probe.look(spec.tier2, credentials, creates_bucket=not has_data)
        is_claimed = claims.claim_of(manifest) is not None
        problem = checks.mark_problem(
            spec, spec.cluster_id(metadata["uid"]), mark, is_placed=is_placed, is_claimed=is_claimed
        )
        if problem is not None:
            raise Tier2Error(problem.reason, problem.message, transient=problem.transient)
        assert secret is not None
        version = (str(metadata["uid"]), f"{secret['metadata']['uid']} {secret['metadata']['resourceVersion']}")
        await self._check_rights(version, spec.tier2, credentials)
        if version not in self._fingerprints:
            if len(self._fingerprints) >= limits.OPERATOR_OBJECTS_MAX:
                self._fingerprints.clear()
            self._fingerprints[version] = checks.fingerprint(str(metadata["uid"]), credentials)
        try:
            rules = await self._probe.rules(spec.tier2, credentials)
        except (Tier2Error, UnavailableError) as error:  # of no use to clients, so it makes nothing unusable
            _logger.info("bucket_rules_not_read", bucket=spec.tier2.bucket, reason=str(error))
            return self._fingerprints[version], rules_condition(spec.tier2, None)
        return self._fingerprints[version], rules_condition(spec.tier2, rules)

    async def _check_rights(self, version: tuple[str, str], tier2: Tier2Spec, credentials: Credentials) -> None:
        """Check that the credentials may do what segment stores do; not again before the period is over.

        Raises Tier2Error.
        """
        key, now_s = (*version, tier2), asyncio.get_running_loop().time()
        if now_s - self._rights_proven_s.get(key, -math.inf) < limits.TIER2_RIGHTS_PERIOD_S:
            return
        await self._probe.prove_rights(tier2, credentials)
        if len(self._rights_proven_s) >= limits.OPERATOR_OBJECTS_MAX:
            self._rights_proven_s.clear()
        self._rights_proven_s[key] = now_s

    # -- children

    async def _workloads(self, manifest: Manifest) -> _Workloads:
        name = manifest["metadata"]["name"]
        store = await self._own(STATEFUL_SETS, manifest, names.store(name))
        return _Workloads(store, await self._own(DEPLOYMENTS, manifest, names.controller(name)))

    async def _own(self, kind: Kind, manifest: Manifest, name: str) -> Manifest | None:
        """Return the child of that name; None: there is none, or it is not owned by this resource."""
        metadata = manifest["metadata"]
        try:
            found = await self._objects.get(kind, metadata["namespace"], name)
        except NotFoundError:
            return None
        return found if is_owned(found, metadata["uid"]) else None

    async def _apply(self, plan: Plan, existing: Existing, *, pods: bool) -> _Workloads:
        """Apply the children, with or without the pods. Raises as ChildWriter.apply."""
        applied = await self._children.apply(plan, existing, pods=pods)
        return _Workloads(applied.get(STATEFUL_SETS.plural), applied.get(DEPLOYMENTS.plural))

    async def _prune(self, plan: Plan, workloads: _Workloads) -> None:
        """Delete the Services of pods that were removed by scaling down."""
        left = int(((workloads.store or {}).get("status") or {}).get("replicas") or 0)
        count = max(left, plan.spec.segment_store.replicas)
        pods = {names.store_pod(plan.name, ordinal) for ordinal in range(count)}
        await self._children.delete_services(plan, {*pods, names.store(plan.name)})

    # -- status

    async def _refused(
        self, manifest: Manifest, spec: StreamClusterSpec, workloads: _Workloads, problem: checks.Problem
    ) -> Outcome:
        warn_on = None if problem.transient else Status.FALSE
        refused = Condition(ACCEPTED, Status.FALSE, problem.reason, problem.message, warn_on=warn_on)
        retry_s = _TRANSIENT_RETRY_S if problem.transient else None
        return await self._outcome(manifest, spec, workloads, [refused], retry_s)

    async def _outcome(
        self,
        manifest: Manifest,
        spec: StreamClusterSpec | None,
        workloads: _Workloads,
        found: list[Condition],
        retry_after_s: float | None = None,
    ) -> Outcome:
        metadata = manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        conditions = list(found)
        if not any(condition.type == TIER2_READY for condition in found):
            reason = "The object store is not checked while the specification is not accepted."
            conditions.append(Condition(TIER2_READY, Status.UNKNOWN, "NotChecked", reason))
        if spec is not None and not any(condition.type == RULES_FIT for condition in found):
            conditions.append(rules_condition(spec.tier2, None))
        store_pods = _replicas(workloads.store, spec.segment_store.replicas if spec else 0)
        controller_pods = _replicas(workloads.controller, spec.controller.replicas if spec else 0)
        conditions += [
            await self._pods(manifest, _STORE, workloads.store, store_pods),
            await self._pods(manifest, _CONTROLLER, workloads.controller, controller_pods),
            placed_condition(
                manifest,
                self._placements.reason(namespace, name),
                self._placements.failure(namespace, name),
                self._placements.unconfirmed(namespace, name),
            ),
            open_condition(manifest, self._placements.not_open(namespace, name)),
        ]
        status: dict[str, Any] = {
            "readyStores": ready_pods(workloads.store),
            "readyControllers": ready_pods(workloads.controller),
        }
        if spec is not None:
            status["clusterId"] = spec.cluster_id(metadata["uid"])
            status["controllerUri"] = names.controller_uri(name, namespace)
        serving = [one for one in conditions if one.type != RULES_FIT]  # a bucket that frees nothing serves
        summary = ready(serving, "Serving", "Streams can be written and read.")
        return Outcome((*conditions, summary), status, retry_after_s=retry_after_s)

    async def _pods(
        self, manifest: Manifest, component: _Component, workload: Manifest | None, wanted: int
    ) -> Condition:
        """Return the condition of a component's pods; list the pods only when they are not ready."""
        before = written_condition(manifest, component.condition)
        since = before.get("lastTransitionTime") if before.get("status") == Status.FALSE else None
        now_ms = self._clock.now_ms()
        found = pods_condition(component.condition, component.noun, workload, wanted, since=since, now_ms=now_ms)
        if workload is None or found.is_true:
            return found
        metadata = manifest["metadata"]
        try:
            pods = await self._objects.list(
                PODS, metadata["namespace"], names.selector(metadata["name"], component.label)
            )
        except UnavailableError as error:  # perhaps forbidden: report the number only
            _logger.info("pods_not_listed", namespace=metadata["namespace"], name=metadata["name"], reason=str(error))
            return found
        # New pods of a Deployment have new names, so they need not wait for terminating pods.
        own_names = [names.store_pod(metadata["name"], ordinal) for ordinal in range(wanted)]
        terminating = terminating_pods(pods, own_names if component is _STORE else ())
        problem = "; ".join(filter(None, (terminating, pod_problem(pods))))
        return pods_condition(
            component.condition, component.noun, workload, wanted, problem, since=since, now_ms=now_ms
        )


def _false(condition_type: str, reason: str, message: str) -> Condition:
    return Condition(condition_type, Status.FALSE, reason, message)


def _child_refused(error: BadRequestError) -> Condition:
    return _false(ACCEPTED, "ChildRefused", f"The Kubernetes API refuses a child of this resource: {error}")


def _replicas(workload: Manifest | None, otherwise: int) -> int:
    """Return the desired number of pods of a workload."""
    found = ((workload or {}).get("spec") or {}).get("replicas")
    return found if type(found) is int else otherwise
