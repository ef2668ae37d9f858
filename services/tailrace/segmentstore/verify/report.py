"""The report of a verification (pure)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tailrace.common import limits


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem that a verification found.

    ``segment`` is empty and ``offset`` None when no segment is known; ``place`` is the file or object, ``position`` an
    offset in it.
    """

    container: int | None
    segment: str
    offset: int | None
    place: str
    position: int | None
    reason: str

    def __str__(self) -> str:
        parts = []
        if self.container is not None:
            parts.append(f"container {self.container}")
        if self.segment:
            parts.append(f"segment {self.segment}" + ("" if self.offset is None else f" at {self.offset}"))
        if self.place:
            parts.append(self.place + ("" if self.position is None else f" at {self.position}"))
        return f"{', '.join(parts)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Orphan:
    """An unused object: a kill between its upload and the commit of its references leaves one."""

    container: int | None
    key: str
    length_bytes: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log in objects ends: the newest epoch that has begun, and the newest that is claimed; 0: none.

    ``known``: the data folder says that no later epoch has begun. Else one may be lost that left no other objects.
    """

    container: int
    epoch: int
    claimed: int
    known: bool


@dataclass(slots=True)
class Report:
    """Sums over all verified data, and the problems.

    ``segment_bytes`` are the bytes of all segments: ``tier2_bytes`` of them in chunks, ``log_only_bytes`` in the log
    alone. ``compared_bytes`` are in both, and equal. ``objects`` counts referenced objects, ``unaccounted_objects``
    those of containers whose metadata cannot be read. ``log_objects`` are frames, claims and marks of object logs;
    their next owner removes ``log_leftovers``. ``from_snapshots`` counts the containers without a log: their newest
    snapshot was verified in its place. ``probe_objects`` are of servers that try the store out, or were killed while
    they did; a later start deletes them.
    """

    containers: int = 0
    segments: int = 0
    segment_bytes: int = 0
    tier2_bytes: int = 0
    log_only_bytes: int = 0
    compared_bytes: int = 0
    log_bytes: int = 0
    log_frames: int = 0
    operations: int = 0
    index_pages: int = 0
    table_entries: int = 0
    objects: int = 0
    object_bytes: int = 0
    unaccounted_objects: int = 0
    pending_deletes: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0
    log_objects: int = 0
    log_leftovers: int = 0
    from_snapshots: int = 0
    probe_objects: int = 0
    orphan_count: int = 0
    orphan_bytes: int = 0
    problem_count: int = 0
    log_ends: list[LogEnd] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Return whether there is no problem; orphans are not problems."""
        return not self.problem_count

    def add(self, problem: Problem) -> None:
        """Add a problem; the report lists the first ``limits.VERIFY_LISTED_MAX`` and counts all."""
        self.problem_count += 1
        if len(self.problems) < limits.VERIFY_LISTED_MAX:
            self.problems.append(problem)

    def add_orphan(self, orphan: Orphan) -> None:
        """Add an orphan; the report lists the first ``limits.VERIFY_LISTED_MAX`` and counts all."""
        self.orphan_count += 1
        self.orphan_bytes += orphan.length_bytes
        if len(self.orphans) < limits.VERIFY_LISTED_MAX:
            self.orphans.append(orphan)

    def merge(self, part: Report) -> None:
        """Add the report of another part."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(part, one.name))
        del self.orphans[limits.VERIFY_LISTED_MAX :], self.problems[limits.VERIFY_LISTED_MAX :]

    def as_json(self) -> dict[str, Any]:
        """Return plain values, in the order of the fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """A report with the number of the container that is verified."""

    report: Report
    container: int

    def problem(
        self,
        reason: str,
        *,
        segment: str = "",
        offset: int | None = None,
        place: str = "",
        position: int | None = None,
    ) -> None:
        """Add a problem of this container."""
        self.report.add(Problem(self.container, segment, offset, place, position, reason))
