"""What a task verifies: an object, and the references to it that the snapshots have. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.pipelines.audit.classify import Newest
from tailrace.pipelines.audit.rows import INDEX_PAGE
from tailrace.segmentstore.metadata.fields import ChunkRef


@dataclass(frozen=True)
class Reference:
    """A reference to an object, as a snapshot has it. ``kind`` is `rows.CHUNK` or `rows.INDEX_PAGE`."""

    segment: str
    segment_id: int
    kind: str
    ref: ChunkRef

    @property
    def name(self) -> str:
        """Return what findings call the segment."""
        return f"{self.segment}$attributes.index" if self.kind == INDEX_PAGE else self.segment


@dataclass(frozen=True)
class Work:
    """An object to verify. ``length`` is None when the list lacks it; ``snapshot`` is the key of the references.

    ``container`` is -1 for an object of none.
    """

    key: str
    container: int
    length: int | None
    modified_ms: int
    snapshot: str
    newest: Newest | None
    pending: bool
    references: tuple[Reference, ...]

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Work:
        """Return the work of a row that the driver made."""
        key = row["object"]
        return cls(
            key,
            row["container"] if row["container"] is not None else -1,
            row["length_bytes"],
            row["time_ms"] or 0,
            row["snapshot"] or "",
            None if row["snapshot_epoch"] is None else Newest(row["snapshot_epoch"], row["snapshot_ms"]),
            bool(row["pending"]),
            tuple(
                Reference(
                    each["segment"],
                    each["segment_id"],
                    each["kind"],
                    ChunkRef(key, each["position"], each["offset"], each["length_bytes"]),
                )
                for each in row["references"] or ()
            ),
        )
