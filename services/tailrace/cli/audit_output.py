"""Print the sums of ``pipeline audit``, and write its page."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.cli.output import print_fields, print_line
from tailrace.common.quantities import size_text

if TYPE_CHECKING:
    from tailrace.pipelines.audit.summary import Summary


def print_summary(tier2: str, summary: Summary, output: str, page: Path | None) -> None:
    """Print the sums, then one line for each finding that the summary lists."""
    verdict = "nothing is wrong" if summary.healthy() else f"{summary.finding_count:,} findings"
    print_fields(
        f"{tier2}: {verdict}",
        {
            "containers": len(summary.containers),
            "segments": f"{summary.total('segments'):,}, {size_text(summary.total('segment_bytes'))}",
            "references": f"{summary.total('chunks'):,}, {size_text(summary.total('referenced_bytes'))}",
            "verified": size_text(summary.total("verified_bytes")),
            "gone meanwhile": size_text(summary.total("gone_bytes")),
            "objects": ", ".join(f"{count:,} {status}" for status, count in sorted(summary.objects.items())),
            "report": output if page is None else f"{output}, page {page}",
        },
    )
    for finding in summary.listed:
        print_line(str(finding))
    if summary.finding_count > len(summary.listed):
        print_line(f"and {summary.finding_count - len(summary.listed):,} more findings, in the report")


def time_name(now_ms: int) -> str:
    """Return the name of a folder by a time in ms since 1970, in UTC; names have the order of the times."""
    return datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ")


def write_page(file: Path, summary: Summary, tier2: str, now_ms: int) -> None:
    """Write the page with the pictures."""
    from tailrace.pipelines.audit.page import page

    began = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(summary, tier2, began), encoding="utf-8")
