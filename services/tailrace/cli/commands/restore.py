"""``tailrace restore``: create a data folder from Tier 2."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.output import note, print_fields, print_json, print_line, print_table
from tailrace.cli.settings import JsonOption
from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.segmentstore.restore.report import RestoredContainer, RestoreReport


def restore(
    tier2: Annotated[
        str, typer.Option(metavar="URL", help="Tier 2 of the cluster: file:///DIR or s3://BUCKET/PREFIX.")
    ],
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder to create; new or empty.")],
    s3_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Endpoint of an S3-compatible object store.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check everything and report it, but write nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Restore the lost data folder of a server from its Tier 2. No server may use the folder or Tier 2."""
    import logging
    import os

    from tailrace.cli.output import progress_bar
    from tailrace.cli.session import run
    from tailrace.common.logs import configure_logs
    from tailrace.common.real_ports import SystemClock, SystemEntropy
    from tailrace.processes.s3_endpoint import check_s3_endpoint
    from tailrace.segmentstore.restore.cluster import restore_cluster

    configure_logs(logging.ERROR)  # the report has the details
    check_s3_endpoint(tier2, s3_endpoint, os.environ)
    with progress_bar("reading" if dry_run else "restoring", 1.0) as bar:
        report = run(
            restore_cluster(
                data,
                tier2=tier2,
                s3_endpoint=s3_endpoint,
                clock=SystemClock(),
                entropy=SystemEntropy(),
                progress=bar.set,
                dry_run=dry_run,
            )
        )
    if json:
        print_json(report.as_json())
    else:
        _print(data, report)
        if dry_run:
            print_line("dry run: nothing was written")
    for line in report.warnings():
        note(f"tailrace: {line}")
    if not report.whole:
        raise typer.Exit(1)


def _print(data: Path, report: RestoreReport) -> None:
    print_fields(
        str(data),
        {
            "cluster": report.cluster,
            "containers": len(report.containers),
            "segments": sum(len(item.segments) for item in report.containers),
        },
    )
    for item in report.containers:
        rows = [(segment.name, segment.start_offset, segment.length, segment.sealed) for segment in item.segments]
        print_table(_title(item), ("segment", "start", "end", "sealed"), rows[: limits.RESTORE_SHOWN_MAX])
        if len(rows) > limits.RESTORE_SHOWN_MAX:
            print_line(f"and {len(rows) - limits.RESTORE_SHOWN_MAX:,} more segments (--json lists all)")


def _title(item: RestoredContainer) -> str:
    from datetime import UTC, datetime

    name = f"container {item.container}"
    if item.problem:
        return f"{name}: not restored"
    if item.source == "nothing":
        return f"{name}: not in Tier 2, starts empty"
    if item.time_ms is None:
        return f"{name}: all of its log, through operation {item.sequence}"
    taken = datetime.fromtimestamp(item.time_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"{name}: as of the snapshot of {taken}, through operation {item.sequence}"
