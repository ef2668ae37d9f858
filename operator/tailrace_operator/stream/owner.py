"""The owner of a stream as the controller stores it: ``NAMESPACE/NAME/UID`` of its resource (ADR 0014). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Owner(NamedTuple):
    """Identify a Stream resource."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.uid}"

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Owner:
        """Return the resource of a manifest."""
        metadata = manifest["metadata"]
        return cls(metadata["namespace"], metadata["name"], metadata["uid"])

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Parse a stored owner; None: the stream has no owner, or one that is not a Stream resource."""
        parts = text.split("/")
        return cls(*parts) if len(parts) == 3 and all(parts) else None
