"""The input from which a StreamCluster's children are rendered. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_operator.schema.specs import StreamClusterSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """The input of `children`.

    ``image``: the image when the specification names none. ``credentials``: the fingerprint of the credentials, so that
    pods restart with new ones; it does not reveal them. ``running_workers``: a pod that runs has so many at most, more
    than the specification while pods of before an edit run.
    """

    name: str
    namespace: str
    uid: str
    spec: StreamClusterSpec
    image: str
    credentials: str
    running_workers: int = 0

    @property
    def cluster_id(self) -> str:
        """Return the id in the object store's `cluster.json`."""
        return self.spec.cluster_id(self.uid)
