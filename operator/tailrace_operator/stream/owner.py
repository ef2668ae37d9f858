"""How a resource signs the stream that belongs to it: ``NAMESPACE/NAME/UID`` (ADR 0014). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Owner(NamedTuple):
    """A Stream resource."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.uid}"

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Owner:
        """The resource of a manifest."""
        metadata = manifest["metadata"]
        return cls(metadata["namespace"], metadata["name"], metadata["uid"])

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Whose signature it is; None for nobody's, or one that no Stream resource ever made."""
        parts = text.split("/")
        return cls(*parts) if len(parts) == 3 and all(parts) else None
