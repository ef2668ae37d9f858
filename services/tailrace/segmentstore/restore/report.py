"""The report of a restore (pure)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.segmentstore.metadata.state import ContainerState


@dataclass(frozen=True, slots=True)
class RestoredSegment:
    """The range of a restored segment."""

    name: str
    start_offset: int
    length: int
    sealed: bool


@dataclass(slots=True)
class RestoredContainer:
    """One container.

    ``source``: ``log`` (in the store: no acknowledged data is missing), ``snapshot`` (its log is lost), ``nothing``
    (the store holds nothing of it). ``sequence`` is the last restored operation, ``time_ms`` the time of the snapshot.
    The lost owner wrote ``newer_objects``, which are in no snapshot.
    """

    container: int
    source: str
    epoch: int = 0
    sequence: int = 0
    time_ms: int | None = None
    newer_objects: int = 0
    newer_bytes: int = 0
    problem: str = ""
    segments: list[RestoredSegment] = field(default_factory=list)

    def add_segments(self, state: ContainerState) -> None:
        """Add the ranges of all segments, by name."""
        for name, segment in sorted(state.by_name.items()):
            self.segments.append(RestoredSegment(name, segment.start_offset, segment.length, segment.sealed))


@dataclass(slots=True)
class RestoreReport:
    """Everything that was restored, and what may be missing. With ``dry_run`` nothing was written."""

    cluster: str
    containers: list[RestoredContainer] = field(default_factory=list)
    dry_run: bool = False

    @property
    def whole(self) -> bool:
        """Return whether every container can be served."""
        return not any(item.problem for item in self.containers)

    def warnings(self) -> list[str]:
        """Return what may be missing, one line each."""
        lines = []
        for item in self.containers:
            name = f"container {item.container}"
            if item.source == "snapshot":
                lines.append(f"{name}: data acknowledged after operation {item.sequence} is missing")
            if item.newer_objects:
                lines.append(
                    f"{name}: {item.newer_objects:,} objects ({item.newer_bytes:,} bytes) belong to no snapshot: "
                    "their bytes are not restored"
                )
            if item.problem:
                lines.append(f"{name}: {item.problem}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "whole": self.whole, "warnings": self.warnings()}
