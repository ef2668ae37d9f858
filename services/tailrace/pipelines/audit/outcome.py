"""What the verification of one object found, as rows of the report. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.common.errors import CorruptionError
from tailrace.pipelines.audit.rows import Row, Status, What
from tailrace.segmentstore.verify.report import ContainerReport, Report

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace.common.errors import DataError
    from tailrace.pipelines.audit.work import Reference, Work


@dataclass
class Outcome:
    """Collects problems, a row for each reference, and further findings of one object."""

    work: Work
    report: ContainerReport = field(init=False)
    chunks: list[Row] = field(default_factory=list)
    further: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.report = ContainerReport(Report(), self.work.container)

    @property
    def count(self) -> int:
        """Return how many things are wrong."""
        return self.report.report.problem_count + len(self.further)

    def problem(self, reason: str, position: int) -> None:
        """Add a problem of the object."""
        self.report.problem(reason, place=f"object {self.work.key}", position=position)

    def reference_problem(self, reference: Reference, reason: str) -> None:
        """Add a problem of a reference to the object."""
        ref = reference.ref
        self.report.problem(
            reason,
            segment=reference.name,
            offset=ref.segment_offset,
            place=f"object {self.work.key}",
            position=ref.data_offset,
        )

    def gap(self, reference: Reference, snapshot: str, start: int, end: int) -> None:
        """Add that bytes [start, end) of a segment have no reference in a snapshot."""
        self.further.append(
            gap_row(self.work.container, snapshot, reference.name, reference.segment_id, start, end),
        )

    def chunk(self, reference: Reference, verified: int, status: Status, reason: str | None = None) -> None:
        """Add the row of a reference."""
        ref = reference.ref
        self.chunks.append(
            Row(
                What.CHUNK,
                self.work.container,
                reference.name,
                reference.segment_id,
                self.work.key,
                ref.data_offset,
                ref.segment_offset,
                ref.length,
                verified,
                status=status,
                reason=reason,
            )
        )

    def rows(self, status: Status | None = None, missing: Collection[str] = ()) -> list[Row]:
        """Return the rows: the object, the references, the findings.

        Without a ``status`` the object's is what the problems say. ``missing`` are objects that should exist.
        """
        if status is None:
            status = Status.DAMAGED if self.count else Status.VERIFIED
        verified = sum(row.verified_bytes or 0 for row in self.chunks)
        return [object_row(self.work, status, verified), *self.chunks, *self._problems(missing), *self.further]

    def _problems(self, missing: Collection[str]) -> list[Row]:
        rows = []
        for problem in self.report.report.problems:
            key = problem.place.removeprefix("object ")
            rows.append(
                Row(
                    What.FINDING,
                    _container(self.work),
                    problem.segment or None,
                    object=key,
                    position=problem.position,
                    offset=problem.offset,
                    status=Status.MISSING if key in missing else Status.DAMAGED,
                    reason=problem.reason,
                )
            )
        return rows


def object_row(work: Work, status: Status, verified: int | None = None) -> Row:
    """Return the row of an object."""
    return Row(
        What.OBJECT,
        _container(work),
        object=work.key,
        length_bytes=work.length,
        verified_bytes=verified,
        refs=len(work.references),
        status=status,
        time_ms=work.modified_ms or None,
    )


def finding_row(work: Work, status: Status, reason: str) -> Row:
    """Return a finding about a whole object."""
    return Row(What.FINDING, _container(work), object=work.key, length_bytes=work.length, status=status, reason=reason)


def damaged_row(container: int, error: DataError, key: str | None = None) -> Row:
    """Return the finding that a snapshot cannot be read; ``key`` is used when the error names no object."""
    if isinstance(error, CorruptionError):
        key = error.place.removeprefix("object ")
    return Row(What.FINDING, container, object=key, status=Status.DAMAGED, reason=reason_of(error))


def reason_of(error: DataError) -> str:
    """Return the reason of an error without the place."""
    return error.reason if isinstance(error, CorruptionError) else str(error)


def gap_row(container: int, snapshot: str, segment: str, segment_id: int, start: int, end: int) -> Row:
    """Return the finding that bytes [start, end) of a segment have no reference in a snapshot."""
    reason = f"{end - start} bytes have no reference in the newest snapshot"
    return Row(
        What.FINDING, container, segment, segment_id, snapshot, None, start, end - start,
        status=Status.GAP, reason=reason,
    )  # fmt: skip


def _container(work: Work) -> int | None:
    return work.container if work.container >= 0 else None
