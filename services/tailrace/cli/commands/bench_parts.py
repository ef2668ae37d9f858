"""``tailrace bench``: measure one part alone, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.commands.arguments import size
from tailrace.cli.commands.bench_options import (
    FolderOption,
    JsonOption,
    PlotOption,
    S3EndpointOption,
    SecondsOption,
    WarmUpOption,
    note_case,
    report_rows,
)
from tailrace.cli.output import note
from tailrace.cli.session import run

if TYPE_CHECKING:
    from tailrace.cli.bench.result import Row


def cache(
    entries: Annotated[
        int, typer.Option(min=1, help="Entries or operations of each test; fewer, if they do not fit into memory.")
    ] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs; the best one counts.")] = 3,
    pure: Annotated[bool, typer.Option("--pure", help="Also measure the cache in pure Python.")] = False,
    peer_jar: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also measure Pravega's cache: a folder with its jars.", show_default=False),
    ] = None,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Compare the block cache with a dictionary, RocksDB and Pravega's cache."""
    from tailrace.cli.bench import cache as benchmark

    report_rows("cache", benchmark.run(entries, repeats, pure=pure, jars=peer_jar, note=note), json, plot)


def index(
    count: Annotated[int, typer.Option(min=1, help="Attributes of the segment.")] = 1_000_000,
    keys: Annotated[
        int, typer.Option(min=0, help="Instead, measure an index of so many attributes in a container; 0: do not.")
    ] = 0,
    update_rate: Annotated[float, typer.Option(min=1.0, help="With --keys: random updates a second.")] = 2000.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="With --keys: how long the updates are measured.")] = 60.0,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --keys: parent of the temporary folder.", show_default="the system's"),
    ] = None,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure the attribute index, with and without compaction: sorted inserts, random updates; SQLite, RocksDB.

    With --keys, measure a large index in a container: random updates at a fixed rate beside a writer of bytes.
    """
    if not keys:
        from tailrace.cli.bench import index as benchmark

        report_rows("index", run(benchmark.rows(count, note=note_case)), json, plot)
        return
    import logging

    from tailrace.cli.bench.large_index import measure_large_index
    from tailrace.common.logs import configure_logs

    configure_logs(logging.ERROR)  # the container runs in this process
    report_rows("index", run(measure_large_index(folder, keys, update_rate, seconds, note_case)), json, plot)


def durable_log(
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Parent of the file log's temporary folder.", show_default="the system's"),
    ] = None,
    tier2: Annotated[
        str, typer.Option(metavar="URL", help="Also measure an object log: file:///DIR or s3://BUCKET/PREFIX.")
    ] = "",
    s3_endpoint: S3EndpointOption = None,
    seconds: SecondsOption = 10.0,
    warm_up: WarmUpOption = 2.0,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure the log of one container on disk and in an object store: single appends and sustained load."""

    async def work() -> list[Row]:
        from tailrace.cli.bench.log import measure_log

        return await measure_log(folder, tier2, s3_endpoint, seconds=seconds, warm_up_s=warm_up, report=note_case)

    report_rows("log", run(work()), json, plot)


def recovery(
    folder: FolderOption = None,
    log: Annotated[
        int, typer.Option("--log", parser=size, metavar="SIZE", help="Size of the log in each case.")
    ] = "256MiB",  # type: ignore[assignment]  # typer parses defaults too
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs; the best one counts.")] = 3,
    operations: Annotated[int, typer.Option(min=1, help="Appends or table entries of each case at most.")] = 200_000,
    tier2: Annotated[
        str, typer.Option(metavar="URL", help="Also measure an object log: file:///DIR or s3://BUCKET/PREFIX.")
    ] = "",
    s3_endpoint: S3EndpointOption = None,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure the recovery of a container from its log: time, memory and, of an object log, requests."""
    import logging

    from tailrace.cli.bench.recovery import measure_recovery
    from tailrace.common.logs import configure_logs

    configure_logs(logging.ERROR)  # the containers run in this process
    measured = measure_recovery(
        folder, log, repeats, note_case, tier2=tier2, s3_endpoint=s3_endpoint, operations_max=operations
    )
    report_rows("recovery", run(measured), json, plot)
