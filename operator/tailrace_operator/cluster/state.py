"""Derive the conditions of a StreamCluster from its children; pure (docs/design.md#resources, ADR 0013)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailrace.cluster.cluster_map import read_map
from tailrace.common.errors import BadRequestError
from tailrace_operator.cluster import names
from tailrace_operator.cluster.pod_diagnostics import missing_pods
from tailrace_operator.kube.manifests import CONTAINERS_OPEN, written_condition
from tailrace_operator.kube.objects import DEPLOYMENTS
from tailrace_operator.reconcile.outcome import READY, Condition, Status

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace.cluster.placer import Unconfirmed

TIER2_READY = "Tier2Ready"
ACCEPTED = "Accepted"
STORE_READY = "SegmentStoreReady"
CONTROLLER_READY = "ControllerReady"
CONTAINERS_PLACED = "ContainersPlaced"


def ready_pods(workload: Manifest | None) -> int:
    """Return how many pods of a StatefulSet or Deployment are ready."""
    return _count(_status(workload), "readyReplicas")


def pods_condition(
    condition_type: str,
    what: str,
    workload: Manifest | None,
    wanted: int,
    problem: str = "",
    *,
    since: object = None,
    now_ms: int = 0,
) -> Condition:
    """Return whether all wanted pods are ready and up to date.

    `problem`: why pods are not ready, from their status. `since`: the time since when they are not, as written in the
    status; None: they were. `now_ms`: the time in ms since 1970.
    """
    if workload is None:
        return Condition(
            condition_type, Status.FALSE, "NotCreated", f"No {what} pods have been created yet.", warn_on=None
        )
    status = _status(workload)
    ready, updated = ready_pods(workload), _count(status, "updatedReplicas")
    missing = missing_pods(workload, since, now_ms)
    problem = "; ".join(filter(None, (missing.why if missing else "", problem)))
    why = f": {problem}" if problem else ""
    rolling = _count(status, "observedGeneration") < int(workload["metadata"].get("generation") or 0)
    old = _old_pods(workload)
    if updated < wanted or rolling or old:
        # Until the change is observed, the number of updated pods is that of the previous change.
        if rolling:
            changed = "the update is starting"
        else:
            changed = f"{updated} are up to date" if updated < wanted else f"{old} not up to date"
        count = max(wanted, updated + old)
        message = f"{ready} of {count} {what} pods are ready, {changed}{why}."
        if missing is not None and missing.is_lasting:
            return Condition(condition_type, Status.FALSE, "PodsMissing", message)
        return Condition(condition_type, Status.FALSE, "PodsChanging", message, warn_on=None)
    if ready < wanted:
        message = f"{ready} of {wanted} {what} pods are ready{why}."
        return Condition(condition_type, Status.FALSE, "PodsNotReady", message)
    return Condition(condition_type, Status.TRUE, "PodsReady", f"{wanted} of {wanted} {what} pods are ready.")


def _old_pods(workload: Manifest) -> int:
    """Return how many pods of before a change run beside the new ones, and count as ready.

    Only a Deployment has both at a time. A StatefulSet counts a pod that drains, because fewer are wanted, among its
    pods, but not among those that are up to date.
    """
    if workload.get("kind") != DEPLOYMENTS.kind:
        return 0
    status = _status(workload)
    return max(0, _count(status, "replicas") - _count(status, "updatedReplicas"))


def placed_condition(
    manifest: Manifest, reason: str, failure: str | None, unconfirmed: Unconfirmed | None
) -> Condition:
    """Return whether the map assigns every container to a known worker that has not failed.

    `reason`: of the placer's last decision. `failure`: why the placer failed. `unconfirmed`: the containers whose
    worker the placer has not confirmed alive; None: it has not looked yet. The status is kept while it is unknown
    whether some workers live, which is so just after an operator starts to lead.
    """
    if failure is not None:
        return Condition(CONTAINERS_PLACED, Status.UNKNOWN, "PlacerFailed", failure, warn_on=Status.UNKNOWN)
    try:
        cluster_map = read_map(manifest)
    except BadRequestError as error:
        return Condition(CONTAINERS_PLACED, Status.FALSE, "NoMap", str(error))
    count = cluster_map.container_count
    named = {number for number, found in cluster_map.assignments.items() if found.worker in cluster_map.workers}
    placed = named - unconfirmed.worker_dead if unconfirmed else named
    warn_on = Status.FALSE if named else None  # before the first pods run, no container has a worker
    if len(placed) < count:
        message = f"{count - len(placed)} of {count} containers have no worker: {reason}."
        return Condition(CONTAINERS_PLACED, Status.FALSE, "ContainersWithoutWorker", message, warn_on=warn_on)
    unknown, before = placed & unconfirmed.worker_unknown if unconfirmed else placed, _placed_before(manifest)
    if unknown and before != Status.TRUE:
        message = f"{len(unknown)} of {count} containers have a worker that is not confirmed alive: {reason}."
        if before == Status.FALSE:
            return Condition(CONTAINERS_PLACED, Status.FALSE, "ContainersWithoutWorker", message, warn_on=warn_on)
        return Condition(CONTAINERS_PLACED, Status.UNKNOWN, "WorkersNotHeard", message, warn_on=None)
    workers = len({assignment.worker for assignment in cluster_map.assignments.values()})
    message = f"{count} of {count} containers have a worker; workers with containers: {workers}."
    return Condition(CONTAINERS_PLACED, Status.TRUE, "AllPlaced", message)


def open_condition(manifest: Manifest, not_open: Mapping[str, str] | None) -> Condition:
    """Return whether workers can open the containers that they have been given.

    `not_open`: which ones they cannot open, and why, by worker. None: not known yet, just after an operator starts to
    lead; the condition then stays as it was.
    """
    if not_open is None:
        before = written_condition(manifest, CONTAINERS_OPEN)
        try:
            kept = Status(str(before.get("status")))
            return Condition(CONTAINERS_OPEN, kept, str(before.get("reason")), str(before.get("message")))
        except ValueError:
            message = "The workers have not reported yet which containers they cannot open."
            return Condition(CONTAINERS_OPEN, Status.UNKNOWN, "WorkersNotHeard", message, warn_on=None)
    if not_open:
        message = ". ".join(f"Worker {worker}: {text}" for worker, text in sorted(not_open.items()))
        return Condition(CONTAINERS_OPEN, Status.FALSE, "ContainersNotOpen", f"{message}.")
    message = "No worker reports a container that it cannot open."
    return Condition(CONTAINERS_OPEN, Status.TRUE, "AllOpen", message)


def _placed_before(manifest: Manifest) -> object:
    """Return the condition's status as last written, for any generation."""
    return written_condition(manifest, CONTAINERS_PLACED).get("status")


def watched_fields(manifest: Manifest) -> Any:
    """Return the fields of the status whose change requeues a StreamCluster: the map, which the placer writes."""
    status = manifest.get("status") or {}
    return (
        [(item.get("id"), item.get("worker")) for item in status.get("containers") or [] if isinstance(item, dict)],
        [item.get("name") for item in status.get("workers") or [] if isinstance(item, dict)],
    )


def fields_for_dependents(manifest: Manifest) -> Any:
    """Return the fields whose change requeues its Streams and ReaderGroups: uid, deletion, condition Ready."""
    metadata = manifest["metadata"]
    conditions = [one for one in _status(manifest).get("conditions") or [] if isinstance(one, dict)]
    found = [one.get("status") for one in conditions if one.get("type") == READY]
    return metadata.get("uid"), bool(metadata.get("deletionTimestamp")), found


def running_workers(store: Manifest | None, service: Manifest | None) -> int:
    """Return how many workers a pod that runs has at most; ``service``: the segment stores' Service now.

    Until all pods are those of the StatefulSet's template, the Service has the ports of those before.
    """
    if store is None:
        return 0
    status, template = _status(store), store["spec"]["template"]["spec"]
    count = _workers(template["containers"][0].get("ports"))
    rolling = _count(status, "observedGeneration") < int(store["metadata"].get("generation") or 0)
    if rolling or _count(status, "updatedReplicas") < _count(status, "replicas"):
        return max(count, _workers(((service or {}).get("spec") or {}).get("ports")))
    return count


def _workers(ports: Any) -> int:
    return sum(str(port.get("name", "")).startswith(names.WORKER_PORT_PREFIX) for port in ports or ())


def _status(workload: Manifest | None) -> Mapping[str, Any]:
    return (workload or {}).get("status") or {}


def _count(status: Mapping[str, Any], name: str) -> int:
    found = status.get(name)
    return found if type(found) is int else 0
