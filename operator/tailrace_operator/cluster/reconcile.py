"""StreamCluster: its checks, its children, its status (design §11, ADR 0013).

While a check fails no pod is made or changed: a new cluster has no pods, and pods that run are left alone. All other
children of a cluster that runs are kept as they are to be. Deletion needs nothing done: children go by their owner
references, and the data stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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
from tailrace_operator.cluster import checks, names
from tailrace_operator.cluster.name_conflicts import is_owned, name_conflict
from tailrace_operator.cluster.plan import Plan
from tailrace_operator.cluster.pod_diagnostics import pod_problem, terminating_pods
from tailrace_operator.cluster.render import Child, children
from tailrace_operator.cluster.state import (
    ACCEPTED,
    CONTROLLER_READY,
    STORE_READY,
    TIER2_READY,
    placed_condition,
    pods_condition,
    ready_pods,
)
from tailrace_operator.cluster.tier2 import Tier2Error
from tailrace_operator.kube.manifests import is_deleted
from tailrace_operator.kube.objects import DEPLOYMENTS, PODS, SECRETS, SERVICES, STATEFUL_SETS
from tailrace_operator.reconcile.outcome import Condition, Outcome, Status, ready
from tailrace_operator.schema.specs import StreamClusterSpec

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace_operator.cluster.placement import Placements
    from tailrace_operator.cluster.tier2 import Tier2Probe
    from tailrace_operator.kube.objects import Objects

_WORKLOADS: Final = (STATEFUL_SETS, DEPLOYMENTS)
_PASSING_RETRY_S: Final = 5.0

_There: TypeAlias = "dict[tuple[str, str], tuple[Kind, Manifest]]"
"""Objects by plural of their kind and name."""

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Workloads:
    """The cluster's pods as they are asked for now; None: nobody has yet."""

    store: Manifest | None
    controller: Manifest | None


class StreamClusterReconciler:
    """Implements Reconciler. ``image``: of pods whose resource names none. ``namespace`` None: all are served."""

    def __init__(
        self,
        objects: Objects,
        probe: Tier2Probe,
        placements: Placements,
        *,
        image: str,
        namespace: str | None,
        period_s: float = limits.OPERATOR_CLUSTER_PERIOD_S,
    ) -> None:
        self._objects = objects
        self._probe = probe
        self._placements = placements
        self._image = image
        self._namespace = namespace
        self._period_s = period_s
        self._fingerprints: dict[tuple[str, str], str] = {}
        """Of credentials, by uid of the StreamCluster and version of the Secret: they are costly to make."""

    @property
    def kind(self) -> Kind:
        """See Reconciler.kind."""
        return STREAM_CLUSTERS

    @property
    def period_s(self) -> float:
        """See Reconciler.period_s."""
        return self._period_s

    async def gone(self, namespace: str, name: str) -> None:
        """See Reconciler.gone."""
        await self._placements.end(namespace, name)

    async def reconcile(self, manifest: Manifest) -> Outcome:
        """See Reconciler.reconcile."""
        if is_deleted(manifest):
            return Outcome()  # whoever deletes waits for its children; they are not to come back
        metadata = manifest["metadata"]
        namespace, name = str(metadata["namespace"]), str(metadata["name"])
        workloads = await self._workloads(manifest)
        if workloads.store is not None:
            self._placements.ensure(namespace, name)  # whatever is wrong with its specification now
        try:
            spec = StreamClusterSpec.parse(manifest)
        except InvalidSpecError as error:
            return await self._outcome(manifest, None, workloads, [_false(ACCEPTED, "InvalidSpec", str(error))])
        problem = await self._problem(manifest, spec, workloads)
        if problem is not None:
            return await self._refused(manifest, spec, workloads, problem)
        there = await self._there(self._plan(manifest, spec, ""))
        problem = name_conflict(name, metadata["uid"], there.values())
        if problem is not None:
            return await self._refused(manifest, spec, workloads, problem)
        accepted = Condition(ACCEPTED, Status.TRUE, "Accepted", "The specification can be carried out.")
        try:
            credentials = await self._look(manifest, spec)
        except Tier2Error as error:
            refused = _false(TIER2_READY, error.reason, str(error))
            if workloads.store is not None:
                await self._apply(self._plan(manifest, spec, ""), there, pods=False)
            retry_s = _PASSING_RETRY_S if error.transient else None
            return await self._outcome(manifest, spec, workloads, [accepted, refused], retry_s)
        message = f"{spec.tier2.url} at {spec.tier2.endpoint} answers and is this cluster's."
        usable = Condition(TIER2_READY, Status.TRUE, "Usable", message)
        try:
            workloads = await self._apply(self._plan(manifest, spec, credentials), there, pods=True)
        except BadRequestError as error:
            refused = _false(ACCEPTED, "ChildRefused", f"The Kubernetes API does not take what this makes: {error}")
            return await self._outcome(manifest, spec, workloads, [refused, usable])
        self._placements.ensure(namespace, name)
        await self._prune(manifest, spec, workloads)
        return await self._outcome(manifest, spec, workloads, [accepted, usable])

    def _plan(self, manifest: Manifest, spec: StreamClusterSpec, credentials: str) -> Plan:
        metadata = manifest["metadata"]
        return Plan(metadata["name"], metadata["namespace"], metadata["uid"], spec, self._image, credentials)

    # -- checks

    async def _problem(
        self, manifest: Manifest, spec: StreamClusterSpec, workloads: _Workloads
    ) -> checks.Problem | None:
        """What can be told without asking the object store."""
        problem = checks.memory_problem(spec) or checks.containers_problem(spec, workloads.store)
        if problem is not None:
            return problem
        others = await self._objects.list(STREAM_CLUSTERS, self._namespace)
        return checks.rival_problem(manifest, spec, others)

    async def _look(self, manifest: Manifest, spec: StreamClusterSpec) -> str:
        """The fingerprint of credentials that work. Raises Tier2Error."""
        metadata = manifest["metadata"]
        try:
            secret = await self._objects.get(SECRETS, metadata["namespace"], spec.tier2.credentials_secret)
        except NotFoundError:
            secret = None
        except ForbiddenError as error:
            raise checks.secret_forbidden(spec.tier2) from error
        credentials = checks.credentials_of(spec.tier2, secret)
        mark = await self._probe.look(spec.tier2, credentials)
        problem = checks.mark_problem(spec, spec.cluster_id(metadata["uid"]), mark)
        if problem is not None:
            raise Tier2Error(problem.reason, problem.message)
        assert secret is not None
        version = (str(metadata["uid"]), f"{secret['metadata']['uid']} {secret['metadata']['resourceVersion']}")
        if version not in self._fingerprints:
            if len(self._fingerprints) >= limits.OPERATOR_OBJECTS_MAX:
                self._fingerprints.clear()
            self._fingerprints[version] = checks.fingerprint(secret, credentials)
        return self._fingerprints[version]

    # -- children

    async def _workloads(self, manifest: Manifest) -> _Workloads:
        name = manifest["metadata"]["name"]
        store = await self._own(STATEFUL_SETS, manifest, names.store(name))
        return _Workloads(store, await self._own(DEPLOYMENTS, manifest, names.controller(name)))

    async def _own(self, kind: Kind, manifest: Manifest, name: str) -> Manifest | None:
        """The child of that name, if there is one and it is this resource's."""
        metadata = manifest["metadata"]
        try:
            found = await self._objects.get(kind, metadata["namespace"], name)
        except NotFoundError:
            return None
        return found if is_owned(found, metadata["uid"]) else None

    async def _there(self, plan: Plan) -> _There:
        """What has the names of the children now."""
        there: _There = {}
        for child in children(plan):
            try:
                found = await self._objects.get(child.kind, plan.namespace, child.name)
            except NotFoundError:
                continue
            there[child.kind.plural, child.name] = child.kind, found
        return there

    async def _apply(self, plan: Plan, there: _There, *, pods: bool) -> _Workloads:
        """Let the children be as they are to be; without the pods, perhaps. `there`: those that were looked at.

        Raises:
            BadRequestError: the API server does not take one. WriteConflictError: another object has its name since.
        """
        applied: dict[str, Manifest] = {}
        for child in children(plan):
            if pods or child.kind not in _WORKLOADS:
                seen = there.get((child.kind.plural, child.name))
                applied[child.kind.plural] = await self._apply_one(plan, child, seen[1] if seen else None)
        return _Workloads(applied.get(STATEFUL_SETS.plural), applied.get(DEPLOYMENTS.plural))

    async def _apply_one(self, plan: Plan, child: Child, seen: Manifest | None) -> Manifest:
        """Change the object that was seen and no other, or make one where none was."""
        if seen is None:
            return await self._objects.apply(child.kind, plan.namespace, child.manifest, only_new=True)
        metadata = {**child.manifest["metadata"], "uid": seen["metadata"]["uid"]}
        return await self._objects.apply(child.kind, plan.namespace, {**child.manifest, "metadata": metadata})

    async def _prune(self, manifest: Manifest, spec: StreamClusterSpec, workloads: _Workloads) -> None:
        """Delete the addresses of pods that are not there any more and shall not come back."""
        metadata = manifest["metadata"]
        left = int(((workloads.store or {}).get("status") or {}).get("replicas") or 0)
        wanted = {names.store_pod(metadata["name"], ordinal) for ordinal in range(spec.segment_store.replicas)}
        still = {names.store_pod(metadata["name"], ordinal) for ordinal in range(left)}
        labels = names.labels(metadata["name"], names.STORE)
        for service in await self._objects.list(SERVICES, metadata["namespace"], labels):
            name = service["metadata"]["name"]
            if name in wanted | still | {names.store(metadata["name"])} or not is_owned(service, metadata["uid"]):
                continue
            try:
                await self._objects.delete(SERVICES, metadata["namespace"], name, service["metadata"]["uid"])
                _logger.info("service_deleted", namespace=metadata["namespace"], name=name, reason="its pod has gone")
            except (NotFoundError, WriteConflictError):
                continue  # somebody else did, or made another one

    # -- status

    async def _refused(
        self, manifest: Manifest, spec: StreamClusterSpec, workloads: _Workloads, problem: checks.Problem
    ) -> Outcome:
        warn_on = None if problem.transient else Status.FALSE
        refused = Condition(ACCEPTED, Status.FALSE, problem.reason, problem.message, warn_on=warn_on)
        retry_s = _PASSING_RETRY_S if problem.transient else None
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
            reason = "The object store is not asked while the specification cannot be carried out."
            conditions.append(Condition(TIER2_READY, Status.UNKNOWN, "NotChecked", reason))
        store_pods = _replicas(workloads.store, spec.segment_store.replicas if spec else 0)
        controller_pods = _replicas(workloads.controller, spec.controller.replicas if spec else 0)
        conditions += [
            await self._pods(manifest, STORE_READY, names.STORE, "segment store", workloads.store, store_pods),
            await self._pods(
                manifest, CONTROLLER_READY, names.CONTROLLER, "controller", workloads.controller, controller_pods
            ),
            placed_condition(
                manifest,
                self._placements.reason(namespace, name),
                self._placements.failure(namespace, name),
                self._placements.homes(namespace, name),
            ),
        ]
        status: dict[str, Any] = {
            "readyStores": ready_pods(workloads.store),
            "readyControllers": ready_pods(workloads.controller),
        }
        if spec is not None:
            status["clusterId"] = spec.cluster_id(metadata["uid"])
            status["controllerUri"] = names.controller_uri(name, namespace)
        summary = ready(conditions, "Serving", "Streams can be written and read.")
        return Outcome((*conditions, summary), status, retry_after_s=retry_after_s)

    async def _pods(
        self, manifest: Manifest, condition: str, component: str, what: str, workload: Manifest | None, wanted: int
    ) -> Condition:
        """Whether a component's pods are ready; they are asked for why not only when they are not."""
        found = pods_condition(condition, what, workload, wanted)
        if workload is None or found.is_true:
            return found
        metadata = manifest["metadata"]
        try:
            pods = await self._objects.list(PODS, metadata["namespace"], names.selector(metadata["name"], component))
        except UnavailableError as error:  # it may not, perhaps: then the number alone is told
            _logger.info("pods_not_listed", namespace=metadata["namespace"], name=metadata["name"], reason=str(error))
            return found
        # A Deployment's pods have names of their own: they wait for none to end.
        own_names = [names.store_pod(metadata["name"], ordinal) for ordinal in range(wanted)]
        ending = terminating_pods(pods, own_names if component == names.STORE else ())
        trouble = "; ".join(filter(None, (ending, pod_problem(pods))))
        return pods_condition(condition, what, workload, wanted, trouble)


def _false(condition_type: str, reason: str, message: str) -> Condition:
    return Condition(condition_type, Status.FALSE, reason, message)


def _replicas(workload: Manifest | None, otherwise: int) -> int:
    """How many pods a workload is asked for."""
    found = ((workload or {}).get("spec") or {}).get("replicas")
    return found if type(found) is int else otherwise
