"""Whose an object is that has the name of a child; pure (ADR 0017).

Who may write StreamClusters chooses the names of their children, and the operator writes those with rights of its own.
So it looks first, and writes to nothing that is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailrace_operator.cluster import names
from tailrace_operator.cluster.checks import Problem
from tailrace_operator.kube.manifests import FIELD_MANAGER, is_deleted
from tailrace_operator.kube.objects import STREAM_CLUSTERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.cluster.kubernetes import Kind, Manifest


def name_conflict(name: str, uid: str, found: Iterable[tuple[Kind, Manifest]]) -> Problem | None:
    """Objects in the way of a StreamCluster's children: neither its own nor left of one before.

    `found`: what is there now under the names of the children.
    """
    strange = [(kind, item) for kind, item in found if not (is_owned(item, uid) or _is_left(item))]
    if not strange:
        return None
    listed = ", ".join(f"{kind.kind} {item['metadata']['name']}" for kind, item in strange)
    if all(_goes(item, name) for _, item in strange):
        return Problem("NameTaken", f"metadata.name: it waits for what is being deleted: {listed}", transient=True)
    return Problem(
        "NameTaken",
        f"metadata.name: there is already, and not of this StreamCluster: {listed}: give the StreamCluster another "
        "name, or remove what is in its way",
    )


def is_owned(manifest: Manifest, uid: str) -> bool:
    """Whether an object belongs to the one with that uid."""
    return any(owner.get("uid") == uid for owner in _owners(manifest))


def _is_left(manifest: Manifest) -> bool:
    """Whether the operator made the object, for a StreamCluster that was deleted without its children.

    Labels do not tell: everybody copies them. Which manager applied what the API server writes itself.
    """
    if _owners(manifest):
        return False
    return any(_is_of_a_child(entry) for entry in manifest["metadata"].get("managedFields") or [])


def _is_of_a_child(entry: Mapping[str, object]) -> bool:
    """Whether fields are those of a child; an operator that is uninstalled applies to its own Deployment, too."""
    if (entry.get("manager"), entry.get("operation")) != (FIELD_MANAGER, "Apply") or entry.get("subresource"):
        return False
    fields: object = entry.get("fieldsV1")
    for field in ("f:metadata", "f:labels", f"f:{names.MANAGED_BY_LABEL}"):
        fields = fields.get(field) if isinstance(fields, Mapping) else None
    return fields is not None


def _goes(manifest: Manifest, name: str) -> bool:
    """Whether an object goes by itself: it is being deleted, or belongs to the StreamCluster of that name before."""
    before = (STREAM_CLUSTERS.api_version, STREAM_CLUSTERS.kind, name)
    owners = {(owner.get("apiVersion"), owner.get("kind"), owner.get("name")) for owner in _owners(manifest)}
    return is_deleted(manifest) or owners == {before}


def _owners(manifest: Manifest) -> list[Manifest]:
    return manifest["metadata"].get("ownerReferences") or []
