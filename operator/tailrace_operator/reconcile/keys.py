"""Keys of reconciled objects, and the keys that a manifest refers to. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.cluster.kubernetes import STREAM_CLUSTERS

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Identify an object by the plural of its kind, its namespace and its name."""

    plural: str
    namespace: str
    name: str


def key_of(kind: Kind, manifest: Manifest) -> Key:
    """Return the key of an object of that kind."""
    return Key(kind.plural, str(manifest["metadata"]["namespace"]), str(manifest["metadata"]["name"]))


def owner_of(manifest: Manifest, kind: Kind) -> Key | None:
    """Return the owner of that kind from the owner references; None: there is no such reference."""
    metadata = manifest.get("metadata") or {}
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("kind") == kind.kind and str(owner.get("apiVersion", "")).startswith(f"{kind.group}/"):
            return Key(kind.plural, str(metadata.get("namespace", "")), str(owner.get("name", "")))
    return None


def cluster_of(manifest: Manifest) -> Key:
    """Return the StreamCluster that a Stream or ReaderGroup names."""
    name = (manifest.get("spec") or {}).get("cluster")
    return Key(STREAM_CLUSTERS.plural, str(manifest["metadata"]["namespace"]), str(name))


def endpoint_of(manifest: Manifest) -> str:
    """Return the endpoint of the object store that a StreamCluster names; empty: it names none."""
    tier2 = (manifest.get("spec") or {}).get("tier2") or {}
    return str(tier2.get("endpoint") or "")
