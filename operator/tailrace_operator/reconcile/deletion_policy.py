"""Decide whether the stream or reader group of a deleted resource is deleted, too (ADR 0014)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.cluster.kubernetes import ForbiddenError
from tailrace_operator.connections.controllers import ClusterState

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.connections.controllers import ClusterName, Controllers
    from tailrace_operator.kube.objects import Objects

FORCE_DELETE: Final = "tailrace.io/force-delete"
"""Annotation: release the resource at once and keep its stream or reader group."""


async def retention_reason(
    objects: Objects, controllers: Controllers, manifest: Manifest, cluster: ClusterName, deletion_policy: str
) -> str | None:
    """Return why the stream or group is kept although its resource is deleted; None: delete it.

    Raises:
        UnavailableError: the API server does not answer, so nothing is decided.
    """
    if FORCE_DELETE in (manifest["metadata"].get("annotations") or {}):
        return f"the annotation {FORCE_DELETE} is set"
    if deletion_policy != "Delete":
        return f"spec.deletionPolicy is {deletion_policy}"
    state = await controllers.state(cluster, fresh=True)
    if state is ClusterState.MISSING:
        return f"StreamCluster {cluster.name} does not exist"
    if state is ClusterState.DELETING:
        return f"StreamCluster {cluster.name} is being deleted"
    if await _namespace_is_terminating(objects, cluster.namespace):
        return f"namespace {cluster.namespace} is being deleted"
    return None


async def _namespace_is_terminating(objects: Objects, namespace: str) -> bool:
    """Return whether the namespace is being deleted; False where the operator may not read namespaces.

    Raises:
        UnavailableError: the API server does not answer.
    """
    try:
        return await objects.namespace_is_terminating(namespace)
    except ForbiddenError:
        return False
