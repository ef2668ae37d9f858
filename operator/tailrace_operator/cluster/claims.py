"""Which StreamCluster may use a place in an object store (docs/kubernetes.md#tailrace-operator, ADR 0042). Pure.

A StreamCluster claims its place in its status, once all its checks have passed and before its pods are created. A
claimed place is not given to another StreamCluster, whatever is edited later, until the resource is deleted. Claims are
made one at a time (`StreamClusterReconciler`), so of two StreamClusters that want one place at once one gets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.common.errors import InvalidSpecError
from tailrace_operator.cluster.checks import Problem
from tailrace_operator.cluster.state import ACCEPTED, TIER2_READY
from tailrace_operator.reconcile.outcome import Status, condition_of
from tailrace_operator.schema.specs import StreamClusterSpec, bucket_url

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.schema.specs import Tier2Spec

CLAIM: Final = "tier2"
"""The field of the status that holds the claim."""


@dataclass(frozen=True, slots=True)
class Place:
    """A prefix of a bucket of an object store."""

    endpoint: str
    bucket: str
    prefix: str = ""

    @classmethod
    def of(cls, tier2: Tier2Spec) -> Place:
        """Return the place that a specification asks for."""
        return cls(tier2.endpoint, tier2.bucket, tier2.prefix)

    def __str__(self) -> str:
        return bucket_url(self.bucket, self.prefix)

    def overlaps(self, other: Place) -> bool:
        """Return whether objects of one are below the prefix of the other, whose orphan sweep could delete them."""
        if (self.endpoint, self.bucket) != (other.endpoint, other.bucket):
            return False
        first, second = (f"{place.prefix}/" if place.prefix else "" for place in (self, other))
        return first.startswith(second) or second.startswith(first)


def claim_of(manifest: Manifest) -> Place | None:
    """Return the place that a StreamCluster has claimed in its status; None: it has claimed none."""
    status = manifest.get("status")
    found = status.get(CLAIM) if isinstance(status, dict) else None
    if not isinstance(found, dict):
        return None
    return Place(*(str(found.get(name) or "") for name in ("endpoint", "bucket", "prefix")))


def claim(tier2: Tier2Spec) -> dict[str, Any]:
    """Return the fields of the status that claim a specification's place."""
    place = Place.of(tier2)
    return {CLAIM: {"endpoint": place.endpoint, "bucket": place.bucket, "prefix": place.prefix}}


def rival_problem(manifest: Manifest, spec: StreamClusterSpec, others: Iterable[Manifest]) -> Problem | None:
    """Check that no other StreamCluster goes before this one at the same id, or at a place that overlaps with its own.

    One that holds its place goes before one that does not. Of two that hold none, the older one does, unless its
    specification or its object store has been refused. Ids are compared, too, because an endpoint can be written in
    several ways, and because `cluster.json` in the object store cannot distinguish two resources of one id.
    """
    mine, cluster_id = Place.of(spec.tier2), spec.cluster_id(manifest["metadata"]["uid"])
    for other in others:
        metadata = other["metadata"]
        if metadata["uid"] == manifest["metadata"]["uid"] or not _goes_before(other, manifest, mine):
            continue
        whose = f"StreamCluster {metadata['namespace']}/{metadata['name']}"
        theirs = _spec_of(other)
        if theirs is not None and theirs.cluster_id(metadata["uid"]) == cluster_id:
            return Problem(
                "ClusterIdShared",
                f"spec.adoptClusterId: {cluster_id} is the id of {whose}, which still exists: delete it first",
            )
        place = claim_of(other) or (Place.of(theirs.tier2) if theirs is not None else None)
        if place is not None and place.overlaps(mine):
            return Problem(
                "BucketShared",
                f"spec.tier2.prefix: {mine} overlaps with {place} of {whose}: set another bucket or prefix",
            )
    return None


def _goes_before(other: Manifest, manifest: Manifest, place: Place) -> bool:
    """Return whether another StreamCluster goes before one that wants `place`."""
    claimed = claim_of(manifest)
    holds = claimed == place or (claimed is None and is_placed(manifest))
    if _holds(other) != holds:
        return _holds(other)
    if not holds and _is_refused(other):
        return False
    return _age(other) < _age(manifest)


def _holds(manifest: Manifest) -> bool:
    """Return whether a StreamCluster holds a place; those of operators that wrote no claim do once they are placed."""
    return claim_of(manifest) is not None or is_placed(manifest)


def is_placed(manifest: Manifest) -> bool:
    """Return whether a container of a StreamCluster has had a worker, which writes into its object store first."""
    status = manifest.get("status")
    return isinstance(status, dict) and bool(status.get("containers"))


def _is_refused(manifest: Manifest) -> bool:
    """Return whether the current specification, or its object store, has been refused."""
    return any(condition_of(manifest, name) is Status.FALSE for name in (ACCEPTED, TIER2_READY))


def _age(manifest: Manifest) -> tuple[str, str]:
    """Return what orders StreamClusters by age; one of two of the same second comes first, too."""
    metadata = manifest["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["uid"])


def _spec_of(manifest: Manifest) -> StreamClusterSpec | None:
    """Return the specification; None: it is invalid."""
    try:
        return StreamClusterSpec.parse(manifest)
    except InvalidSpecError:
        return None
