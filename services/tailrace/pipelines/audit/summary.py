"""The sums of an audit (docs/spark-audit.md#exit-code-and-summary). Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tailrace.pipelines.audit.rows import Status


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong; None where a field does not apply. ``status`` is its kind."""

    status: str
    container: int | None
    segment: str | None
    offset: int | None
    object: str | None
    position: int | None
    reason: str

    def __str__(self) -> str:
        parts = [] if self.container is None else [f"container {self.container}"]
        if self.segment:
            parts.append(f"segment {self.segment}" + ("" if self.offset is None else f" at {self.offset}"))
        if self.object:
            parts.append(f"object {self.object}" + ("" if self.position is None else f" at {self.position}"))
        return _one_line(f"{self.status}: {', '.join(parts)}: {self.reason}")


def _one_line(text: str) -> str:
    """Escape what a terminal would not print: any client of the object store may have chosen a key."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


@dataclass
class ContainerSums:
    """The sums of one container.

    ``segment_bytes`` are those between start and end of its segments, ``referenced_bytes`` those that references name
    (with attribute indexes and the beginnings of chunks that are truncated), ``verified_bytes`` those that match their
    CRC32C. ``gone_bytes`` were deleted, truncated, merged or replaced during the audit. ``findings`` are counts by
    status.
    """

    container: int
    segments: int = 0
    segment_bytes: int = 0
    chunks: int = 0
    referenced_bytes: int = 0
    verified_bytes: int = 0
    gone_bytes: int = 0
    findings: dict[str, int] = field(default_factory=dict)

    @property
    def share_verified(self) -> float:
        """Return which part of the referenced bytes was verified, from 0 to 1; 1 when there are none."""
        wanted = self.referenced_bytes - self.gone_bytes
        return self.verified_bytes / wanted if wanted else 1.0


@dataclass
class Summary:
    """The sums of an audit. ``objects`` and ``object_bytes`` are of listed objects, by status.

    ``findings`` counts all findings by status, ``listed`` has the first ones; the report has all.
    """

    cluster: str
    containers: list[ContainerSums] = field(default_factory=list)
    objects: dict[str, int] = field(default_factory=dict)
    object_bytes: dict[str, int] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)
    listed: list[Finding] = field(default_factory=list)

    @property
    def finding_count(self) -> int:
        """Return the number of findings."""
        return sum(self.findings.values())

    def healthy(self, *, ignore_orphans: bool = False) -> bool:
        """Return whether nothing is wrong; orphans are, unless they are ignored."""
        orphans = self.findings.get(Status.ORPHAN, 0) if ignore_orphans else 0
        return self.finding_count == orphans

    def total(self, name: str) -> int:
        """Return the sum of a field over all containers."""
        return sum(getattr(each, name) for each in self.containers)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        names = ("segments", "segment_bytes", "chunks", "referenced_bytes", "verified_bytes", "gone_bytes")
        totals = {name: self.total(name) for name in names}
        return {"healthy": self.healthy(), "finding_count": self.finding_count, **totals, **asdict(self)}
