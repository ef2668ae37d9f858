"""The container map: which worker should own each container, and the endpoints of workers; pure.

See docs/design.md#ownership, docs/design.md#resources.

It is in the status of the StreamCluster resource; only the placer writes it. It says which worker *should* own a
container; epochs and the log decide which does. It can be lost at any time: the placer makes it again from the Leases,
and until then workers keep their containers.
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
    """The worker of a container. It waits briefly for ``handed_over_by``, a living worker that releases it."""

    worker: str
    handed_over_by: str = ""


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Assignments by container; endpoints of workers by name. A container without an assignment stays where it is."""

    container_count: int
    assignments: Mapping[int, Assignment] = field(default_factory=dict)
    workers: Mapping[str, ContainerEndpoints] = field(default_factory=dict)


def read_map(manifest: Manifest) -> ClusterMap:
    """Read the map of a StreamCluster. Invalid entries of its status count as lost.

    Raises:
        BadRequestError: the resource has no valid number of containers.
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
    """Return whether a Lease with that id belongs to this StreamCluster, not to an earlier one of its name (ADR 0013).

    A Lease without an id belongs to it.
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
