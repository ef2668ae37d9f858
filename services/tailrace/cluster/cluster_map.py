"""The container map: which worker is to own which container, and where workers are reached; pure (design §9, §11).

It stands in the status of the StreamCluster resource, written by the placer alone. It tells who *should* own a
container; who does is decided by epochs and the log. It can be lost at any time: the placer makes it again from the
Leases, and until then everybody keeps what they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace.cluster.endpoints import ContainerEndpoints
from tailrace.cluster.leases import read_endpoint
from tailrace.common import limits
from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest

_CONTAINERS: Final = "containers"
_WORKERS: Final = "workers"


@dataclass(frozen=True, slots=True)
class Assignment:
    """``handed_over_by``: a living worker that lets go of the container; the new one waits a little for it."""

    worker: str
    handed_over_by: str = ""


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Assignments by container; endpoints of workers by name. A container without an assignment stays where it is."""

    container_count: int
    assignments: Mapping[int, Assignment] = field(default_factory=dict)
    workers: Mapping[str, ContainerEndpoints] = field(default_factory=dict)


def read_map(manifest: Manifest) -> ClusterMap:
    """The map in a StreamCluster. What cannot be read in its status counts as lost.

    Raises:
        BadRequestError: the resource does not say how many containers there are.
    """
    count = (manifest.get("spec") or {}).get("containers")
    if type(count) is not int or not 1 <= count <= limits.CONTAINERS_MAX:
        raise BadRequestError(f"spec.containers is {count!r}, not a number from 1 to {limits.CONTAINERS_MAX}")
    status = manifest.get("status") or {}
    assignments = {}
    for item in _items(status, _CONTAINERS):
        number, worker, before = item.get("id"), item.get("worker"), item.get("handedOverBy", "")
        if type(number) is int and 0 <= number < count and isinstance(worker, str) and worker:
            assignments[number] = Assignment(worker, before if isinstance(before, str) else "")
    workers = {}
    for item in _items(status, _WORKERS):
        name, internal = item.get("name"), read_endpoint(item.get("internal"))
        if isinstance(name, str) and name and internal is not None:
            workers[name] = ContainerEndpoints(internal, read_endpoint(item.get("external")))
    return ClusterMap(count, assignments, workers)


def is_of_cluster(manifest: Manifest, cluster_id: str) -> bool:
    """Whether a Lease with that id is of the StreamCluster's own (ADR 0013), and not of one that had the name before.

    What does not tell its cluster is.
    """
    adopted = (manifest.get("spec") or {}).get("adoptClusterId")
    ids = {text for text in (manifest["metadata"].get("uid"), adopted) if isinstance(text, str) and text}
    return not cluster_id or not ids or cluster_id in ids


def write_map(manifest: Manifest, cluster_map: ClusterMap) -> Manifest:
    """The resource with the map in its status; all else in it stays."""
    containers: list[dict[str, Any]] = []
    for number in sorted(cluster_map.assignments):
        assignment = cluster_map.assignments[number]
        containers.append({"id": number, "worker": assignment.worker})
        if assignment.handed_over_by:
            containers[-1]["handedOverBy"] = assignment.handed_over_by
    workers: list[dict[str, Any]] = []
    for name in sorted(cluster_map.workers):
        endpoints = cluster_map.workers[name]
        workers.append({"name": name, "internal": str(endpoints.internal)})
        if endpoints.external is not None:
            workers[-1]["external"] = str(endpoints.external)
    return {**manifest, "status": {**(manifest.get("status") or {}), _CONTAINERS: containers, _WORKERS: workers}}


def _items(status: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = status.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
