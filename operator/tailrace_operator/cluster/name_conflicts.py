"""Find objects that have the name of a child but belong to another owner; pure (ADR 0017).

A user who may create StreamClusters chooses the names of their children, and the operator writes these with its own
rights. So the operator reads existing objects first, and writes only to those that belong to the StreamCluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailrace_operator.cluster import names
from tailrace_operator.cluster.checks import Problem
from tailrace_operator.kube.manifests import FIELD_MANAGER, is_deleted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.cluster.kubernetes import Kind, Manifest


def name_conflict(owner: Kind, name: str, uid: str, found: Iterable[tuple[Kind, Manifest]]) -> Problem | None:
    """Return a problem when children's names are in use by objects that are not the owner's.

    `found`: the existing objects with the names of the children. Children that a deleted owner left behind
    (`kubectl delete --cascade=orphan`) are adopted.
    """
    foreign = [(kind, item) for kind, item in found if not (is_owned(item, uid) or _is_orphaned(item))]
    if not foreign:
        return None
    listed = ", ".join(f"{kind.kind} {item['metadata']['name']}" for kind, item in foreign)
    if all(_will_be_deleted(item, owner, name) for _, item in foreign):
        return Problem(
            "NameTaken", f"metadata.name: waiting for objects that are being deleted: {listed}", transient=True
        )
    return Problem(
        "NameTaken",
        f"metadata.name: objects with the names of its children already exist: {listed}: give the {owner.kind} "
        "another name, or delete these objects",
    )


def is_owned(manifest: Manifest, uid: str) -> bool:
    """Return whether an object is owned by the one with that uid."""
    return any(owner.get("uid") == uid for owner in _owners(manifest))


def _is_orphaned(manifest: Manifest) -> bool:
    """Return whether the operator created the object for a StreamCluster that was deleted without its children.

    Labels prove nothing, because users copy them. The API server itself records which manager applied which fields.
    """
    if _owners(manifest):
        return False
    return any(_is_of_a_child(entry) for entry in manifest["metadata"].get("managedFields") or [])


def _is_of_a_child(entry: Mapping[str, object]) -> bool:
    """Return whether the fields are those of a child. Uninstalling applies to the operator's Deployment, too."""
    if (entry.get("manager"), entry.get("operation")) != (FIELD_MANAGER, "Apply") or entry.get("subresource"):
        return False
    fields: object = entry.get("fieldsV1")
    for field in ("f:metadata", "f:labels", f"f:{names.MANAGED_BY_LABEL}"):
        fields = fields.get(field) if isinstance(fields, Mapping) else None
    return fields is not None


def _will_be_deleted(manifest: Manifest, owner: Kind, name: str) -> bool:
    """Return whether an object will be deleted: it is being deleted, or is owned by an earlier owner of the name."""
    before = (owner.api_version, owner.kind, name)
    owners = {(one.get("apiVersion"), one.get("kind"), one.get("name")) for one in _owners(manifest)}
    return is_deleted(manifest) or owners == {before}


def _owners(manifest: Manifest) -> list[Manifest]:
    return manifest["metadata"].get("ownerReferences") or []
