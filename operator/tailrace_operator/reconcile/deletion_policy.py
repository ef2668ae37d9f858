"""Decide whether the stream or reader group of a deleted resource is deleted, too (ADR 0014)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_operator.connections.controllers import ClusterState
from tailrace_operator.kube.manifests import Notice

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.connections.controllers import ClusterName, Controllers
    from tailrace_operator.kube.objects import Objects

FORCE_DELETE: Final = "tailrace.io/force-delete"
"""Annotation: release the resource at once. Nothing is deleted, unless the deletion began before."""
DELETION_WAITS: Final = "DeletionWaits"
"""Reason of conditions after an attempt to delete failed."""


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
    if await objects.namespace_is_terminating(cluster.namespace):
        return f"namespace {cluster.namespace} is being deleted"
    return None


def release_notice(manifest: Manifest, kind: str, what: str, why: str) -> Notice:
    """Return the Event of a resource that is released: what was to be deleted is kept, or may be deleted later.

    After an attempt that failed, the controllers may have recorded the deletion, and then go on with it by themselves.
    """
    if _was_tried(manifest):
        message = (
            f"{what} may still be deleted: the operator waits for it no longer ({why}), but its deletion may have "
            "begun; then the controllers complete it."
        )
        return Notice(f"{kind}DeletionUnfinished", message)
    return Notice(f"{kind}Retained", f"{what} is kept: {why}.")


def _was_tried(manifest: Manifest) -> bool:
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return any(condition.get("reason") == DELETION_WAITS for condition in conditions)
