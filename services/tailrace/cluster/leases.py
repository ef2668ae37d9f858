"""Reads and writes the Leases (coordination.k8s.io/v1) of containers and workers; pure (docs/design.md#ownership).

A label distinguishes the two kinds. A *container's* Lease carries the last epoch and the worker that took it. A
*worker's* Lease carries the worker's endpoints, and the worker renews it. Times in Leases are for people; no code
compares them with a clock. Fields that cannot be read count as lost, and losing a Lease loses no data (`ownership`).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.kubernetes import LEASES, Manifest
from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

CLUSTER_LABEL: Final = "tailrace.io/cluster"
ROLE_LABEL: Final = "tailrace.io/role"
CONTAINER_ROLE: Final = "container"
WORKER_ROLE: Final = "worker"

_CLUSTER_ID: Final = "tailrace.io/cluster-id"
_EPOCH: Final = "tailrace.io/epoch"
_CONTAINER: Final = "tailrace.io/container"
_INCARNATION: Final = "tailrace.io/incarnation"
_RENEWAL: Final = "tailrace.io/renewal"
_INTERNAL: Final = "tailrace.io/internal-endpoint"
_EXTERNAL: Final = "tailrace.io/external-endpoint"
_LEAVING: Final = "tailrace.io/leaving"
_NOT_OPEN: Final = "tailrace.io/not-open"
_STORE_SILENT: Final = "tailrace.io/store-silent-seconds"
_NUMBER_MAX: Final = 2**62
_TRANSITIONS_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ContainerLease:
    """``epoch``: the last one taken, 0 for none; ``holder``: the worker that took it, empty after its release.

    ``cluster_id``: the cluster of that epoch; empty when unknown.
    """

    container_id: int
    holder: str
    epoch: int
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class WorkerLease:
    """``incarnation`` names the process; ``renewal`` counts its renewals; ``leaving``: it wants no containers.

    ``cluster_id``: the cluster whose data it serves; empty when unknown. ``not_open``: which containers it cannot open,
    and why; empty when there are none. ``store_silent_s``: for how long the object store has not answered it, in whole
    seconds; 0 while that is less than ``limits.WORKER_STORE_SILENT_REPORT_S``.
    """

    worker: str
    incarnation: str
    renewal: int
    leaving: bool = False
    endpoints: ContainerEndpoints | None = None
    cluster_id: str = ""
    not_open: str = ""
    store_silent_s: int = 0


def container_lease_name(cluster: str, container_id: int) -> str:
    """Return the Lease's name. Dots separate its parts, because names of clusters and workers have none."""
    return f"{cluster}.container.{container_id}"


def worker_lease_name(cluster: str, worker: str) -> str:
    """The Lease's name."""
    return f"{cluster}.worker.{worker}"


def labels_of(cluster: str, role: str) -> dict[str, str]:
    """Return the label selector of a cluster's Leases with a role."""
    return {CLUSTER_LABEL: cluster, ROLE_LABEL: role}


def read_container_lease(manifest: Manifest) -> ContainerLease | None:
    """Read a container's Lease; None when the manifest is not one."""
    annotations = _annotations(manifest)
    container_id = _number(annotations.get(_CONTAINER))
    if container_id is None:
        return None
    holder = _spec(manifest).get("holderIdentity")
    epoch = _number(annotations.get(_EPOCH)) or 0
    return ContainerLease(container_id, holder if isinstance(holder, str) else "", epoch, _cluster_id(annotations))


def write_container_lease(cluster: str, lease: ContainerLease, found: Manifest | None, now_ms: int) -> Manifest:
    """The manifest that says so: a new one, or `found` changed."""
    manifest = _changed(container_lease_name(cluster, lease.container_id), cluster, CONTAINER_ROLE, found)
    annotations = manifest["metadata"]["annotations"]
    annotations[_CONTAINER] = str(lease.container_id)
    annotations[_EPOCH] = str(lease.epoch)
    _set_cluster_id(annotations, lease.cluster_id)
    spec = manifest["spec"]
    spec["holderIdentity"] = lease.holder
    spec["leaseTransitions"] = min(lease.epoch, _TRANSITIONS_MAX)  # a column of kubectl; the annotation counts
    if lease.holder:
        spec["acquireTime"] = spec["renewTime"] = micro_time(now_ms)
    return manifest


def read_worker_lease(manifest: Manifest) -> WorkerLease | None:
    """Read a worker's Lease; None when the manifest is not one."""
    annotations = _annotations(manifest)
    worker = _spec(manifest).get("holderIdentity")
    incarnation = annotations.get(_INCARNATION)
    if not isinstance(worker, str) or not worker or not isinstance(incarnation, str):
        return None
    internal = read_endpoint(annotations.get(_INTERNAL))
    endpoints = ContainerEndpoints(internal, read_endpoint(annotations.get(_EXTERNAL))) if internal else None
    renewal = _number(annotations.get(_RENEWAL)) or 0
    leaving = annotations.get(_LEAVING) == "true"
    text = annotations.get(_NOT_OPEN)
    not_open = text[: limits.WORKER_REASON_MAX_CHARACTERS] if isinstance(text, str) else ""
    silent_s = _number(annotations.get(_STORE_SILENT)) or 0
    return WorkerLease(worker, incarnation, renewal, leaving, endpoints, _cluster_id(annotations), not_open, silent_s)


def write_worker_lease(cluster: str, lease: WorkerLease, found: Manifest | None, now_ms: int) -> Manifest:
    """The manifest that says so: a new one, or `found` changed."""
    manifest = _changed(worker_lease_name(cluster, lease.worker), cluster, WORKER_ROLE, found)
    annotations = manifest["metadata"]["annotations"]
    began = annotations.get(_INCARNATION) != lease.incarnation
    annotations[_INCARNATION] = lease.incarnation
    annotations[_RENEWAL] = str(lease.renewal)
    annotations[_LEAVING] = "true" if lease.leaving else "false"
    _set_cluster_id(annotations, lease.cluster_id)
    annotations.pop(_NOT_OPEN, None)
    if lease.not_open:
        annotations[_NOT_OPEN] = lease.not_open
    annotations.pop(_STORE_SILENT, None)
    if lease.store_silent_s:
        annotations[_STORE_SILENT] = str(lease.store_silent_s)
    for name, endpoint in zip((_INTERNAL, _EXTERNAL), _both(lease.endpoints), strict=True):
        annotations.pop(name, None)
        if endpoint is not None:
            annotations[name] = str(endpoint)
    spec = manifest["spec"]
    spec["holderIdentity"] = lease.worker
    spec["leaseDurationSeconds"] = round(limits.WORKER_LEASE_LAPSE_S)
    spec["renewTime"] = micro_time(now_ms)
    if began:
        spec["acquireTime"] = spec["renewTime"]
    return manifest


def read_endpoint(text: object) -> Endpoint | None:
    """Parse an endpoint that ``str`` formatted; None when the text is not one."""
    if not isinstance(text, str):
        return None
    host, colon, port = text.rpartition(":")
    if not (colon and host and len(port) <= 5 and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return None
    return Endpoint(host, int(port))


def micro_time(now_ms: int) -> str:
    """Format a time as Leases have it."""
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


def _cluster_id(annotations: Mapping[str, Any]) -> str:
    found = annotations.get(_CLUSTER_ID)
    return found if isinstance(found, str) else ""


def _set_cluster_id(annotations: dict[str, Any], cluster_id: str) -> None:
    annotations.pop(_CLUSTER_ID, None)
    if cluster_id:
        annotations[_CLUSTER_ID] = cluster_id


def _both(endpoints: ContainerEndpoints | None) -> tuple[Endpoint | None, Endpoint | None]:
    return (endpoints.internal, endpoints.external) if endpoints is not None else (None, None)


def _changed(name: str, cluster: str, role: str, found: Manifest | None) -> Manifest:
    metadata: dict[str, Any] = dict((found or {}).get("metadata") or {"name": name})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels_of(cluster, role)}
    metadata["annotations"] = dict(metadata.get("annotations") or {})
    spec = dict(_spec(found or {}))
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


def _annotations(manifest: Manifest) -> Mapping[str, Any]:
    found = (manifest.get("metadata") or {}).get("annotations")
    return found if isinstance(found, dict) else {}


def _spec(manifest: Manifest) -> Mapping[str, Any]:
    found = manifest.get("spec")
    return found if isinstance(found, dict) else {}


def _number(text: object) -> int | None:
    """Parse a number that a person may have edited."""
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > 19:
        return None
    number = int(text)
    return number if number <= _NUMBER_MAX else None
