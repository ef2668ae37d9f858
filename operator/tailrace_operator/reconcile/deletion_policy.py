"""Whether what a Stream or ReaderGroup stands for is deleted with it (ADR 0014)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.cluster.kubernetes import ForbiddenError
from tailrace_operator.connections.controllers import ClusterState

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.connections.controllers import ClusterName, Controllers
    from tailrace_operator.kube.objects import Objects

FORCE_DELETE: Final = "tailrace.io/force-delete"
"""Annotation: let the resource go, whatever becomes of what it stands for."""


async def why_kept(
    objects: Objects, controllers: Controllers, manifest: Manifest, cluster: ClusterName, deletion_policy: str
) -> str | None:
    """Why nothing is deleted although the resource goes; None: it has to be deleted. Raises UnavailableError."""
    if FORCE_DELETE in (manifest["metadata"].get("annotations") or {}):
        return f"the annotation {FORCE_DELETE} is set"
    if deletion_policy != "Delete":
        return f"spec.deletionPolicy is {deletion_policy}"
    state = await controllers.state(cluster, fresh=True)
    if state is ClusterState.MISSING:
        return f"there is no StreamCluster {cluster.name} to delete it from"
    if state is ClusterState.LEAVING:
        return f"StreamCluster {cluster.name} is being deleted, too"
    if await _namespace_ends(objects, cluster.namespace):
        return f"namespace {cluster.namespace} is being deleted"
    return None


async def _namespace_ends(objects: Objects, namespace: str) -> bool:
    """Whether the namespace goes. Raises UnavailableError: not known, so nothing is decided.

    Where this may not be asked, namespaces count as staying, and what was asked for is done.
    """
    try:
        return await objects.namespace_ends(namespace)
    except ForbiddenError:
        return False
