"""Print the report of ``inspect verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cli.output import print_fields, print_line
from tailrace.common.quantities import size_text

if TYPE_CHECKING:
    from tailrace.segmentstore.verify.report import LogEnd, Report


def print_report(folder: str, report: Report) -> None:
    """Print the sums, then one line for each orphan and problem."""
    verdict = "healthy" if report.healthy else f"{report.problem_count:,} problems"
    print_fields(
        f"{folder}: {verdict}",
        {
            "containers": report.containers,
            "segments": f"{report.segments:,}, {_bytes(report.segment_bytes)}",
            "in Tier 2": _bytes(report.tier2_bytes),
            "in the log alone": _bytes(report.log_only_bytes),
            "in both, equal": _bytes(report.compared_bytes),
            "log": f"{report.log_frames:,} frames, {report.operations:,} operations, {_bytes(report.log_bytes)}",
            "attribute indexes": f"{report.index_pages:,} pages",
            "tables": f"{report.table_entries:,} entries",
            "objects": f"{report.objects:,}, {_bytes(report.object_bytes)}",
            "to be deleted": f"{report.pending_deletes:,} objects",
            "snapshots": f"{report.snapshots:,}, {_bytes(report.snapshot_bytes)}",
            **_object_log(report),
            "orphans": f"{report.orphan_count:,} objects, {_bytes(report.orphan_bytes)}",
        },
    )
    if report.from_snapshots:
        print_line(
            f"{report.from_snapshots:,} containers checked as of their newest snapshots: their logs are not in Tier 2"
        )
    _log_ends([end for end in report.log_ends if not end.known])
    if report.unaccounted_objects:
        print_line(f"{report.unaccounted_objects:,} objects belong to containers whose metadata cannot be read")
    if report.probe_objects:
        print_line(f"{report.probe_objects:,} objects below probe/ are left for a later start to delete")
    for orphan in report.orphans:
        print_line(f"orphan: object {orphan.key}, {_bytes(orphan.length_bytes)}")
    _rest("orphans", report.orphan_count - len(report.orphans))
    for problem in report.problems:
        print_line(f"problem: {problem}")
    _rest("problems", report.problem_count - len(report.problems))


def _log_ends(ends: list[LogEnd]) -> None:
    """Print what Tier 2 alone cannot prove."""
    if not ends:
        return
    print_line(
        f"{len(ends):,} logs were checked up to the newest epoch that Tier 2 shows: a later one, lost before its owner "
        "wrote other objects, leaves no trace there"
    )
    for end in ends:
        if end.claimed > end.epoch:
            print_line(
                f"container {end.container}: epoch {end.claimed} is claimed and its log holds nothing: it was never "
                "opened, or it is lost"
            )


def _object_log(report: Report) -> dict[str, str]:
    if not report.log_objects and not report.log_leftovers:
        return {}
    return {
        "objects of the logs": f"{report.log_objects:,}, {report.log_leftovers:,} more for the next owner to remove"
    }


def _rest(what: str, count: int) -> None:
    if count:
        print_line(f"and {count:,} more {what}")


def _bytes(count: int) -> str:
    return f"{count:,} bytes" if count < 1024 else f"{count:,} bytes ({size_text(count)})"
