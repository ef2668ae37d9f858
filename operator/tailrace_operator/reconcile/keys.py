"""Keys of the objects that are reconciled, and of those that a manifest names. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.cluster.kubernetes import STREAM_CLUSTERS

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """An object; ``plural`` names its kind."""

    plural: str
    namespace: str
    name: str


def key_of(kind: Kind, manifest: Manifest) -> Key:
    """The key of an object of that kind."""
    return Key(kind.plural, str(manifest["metadata"]["namespace"]), str(manifest["metadata"]["name"]))


def owner_of(manifest: Manifest, kind: Kind) -> Key | None:
    """The object of that kind that another one belongs to."""
    metadata = manifest.get("metadata") or {}
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("kind") == kind.kind and str(owner.get("apiVersion", "")).startswith(f"{kind.group}/"):
            return Key(kind.plural, str(metadata.get("namespace", "")), str(owner.get("name", "")))
    return None


def cluster_of(manifest: Manifest) -> Key:
    """The StreamCluster that a Stream or ReaderGroup names."""
    name = (manifest.get("spec") or {}).get("cluster")
    return Key(STREAM_CLUSTERS.plural, str(manifest["metadata"]["namespace"]), str(name))
