"""What the children of a StreamCluster are rendered from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_operator.schema.specs import StreamClusterSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """What a StreamCluster's children are made of.

    ``image``: when the specification names none. ``credentials``: changes when the credentials do, so that pods take
    new ones; says nothing about them.
    """

    name: str
    namespace: str
    uid: str
    spec: StreamClusterSpec
    image: str
    credentials: str

    @property
    def cluster_id(self) -> str:
        """What the bucket is marked with."""
        return self.spec.cluster_id(self.uid)
