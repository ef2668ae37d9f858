"""``tailrace pipeline``: jobs on streams that run on Spark (docs/spark-jobs.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.commands.arguments import join_size, named_values, place_of, stream_name
from tailrace.cli.commands.pipeline_s3 import S3EndpointOption, spark_settings
from tailrace.cli.output import print_json, print_line
from tailrace.cli.settings import SETTINGS, ControllerOption, JsonOption
from tailrace.cli.values import count_text
from tailrace.client.model import StreamName

if TYPE_CHECKING:
    from tailrace.pipelines.jobs.batch_files import Progress
    from tailrace.pipelines.jobs.events import Input

app = typer.Typer(help="Run jobs on streams with Spark (the extra `spark`, and Java 17).", no_args_is_help=True)

StreamArgument = Annotated[
    StreamName,
    typer.Argument(metavar="SCOPE/STREAM", help="The stream to read.", parser=stream_name, show_default=False),
]
SchemaOption = Annotated[
    str,
    typer.Option(
        metavar="COLUMNS", help="Columns of the JSON events, such as 'id long, at timestamp'.", show_default=False
    ),
]
TimeFieldOption = Annotated[str, typer.Option(metavar="COLUMN", help="The time of an event.", show_default=False)]
OutputArgument = Annotated[
    str, typer.Argument(metavar="FOLDER", help="Where the files go: a path or a URL.", show_default=False)
]
EveryOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.1, help="Go on until ended, and write this often.", show_default=False),
]
CompactOption = Annotated[
    int | None,
    typer.Option(
        parser=join_size,
        metavar="SIZE",
        help="Join folders of batches that have less, such as 128MiB.",
        show_default=False,
    ),
]
MasterOption = Annotated[str, typer.Option(metavar="URL", help="Where Spark runs, as spark-submit has it.")]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the data source; may be repeated."),
]


@app.command()
def archive(
    stream: StreamArgument,
    output: OutputArgument,
    schema: SchemaOption = "",
    time_field: TimeFieldOption = "",
    every: EveryOption = None,
    compact: CompactOption = None,
    s3_endpoint: S3EndpointOption = "",
    option: SourceOption = None,
    conf: ConfOption = None,
    master: MasterOption = "local[*]",
    controller: ControllerOption = None,
    json: JsonOption = False,
) -> None:
    """Write a stream's events to Parquet files, each exactly once. The next run goes on where this one ended."""
    from tailrace.pipelines.jobs.archive import archive as run_archive
    from tailrace.pipelines.jobs.session import spark_session

    with spark_session(f"archive {stream}", master, spark_settings(conf, master, s3_endpoint, output)) as spark:
        source = _input(stream, schema, time_field, option or (), controller)
        progress = run_archive(spark, source, place_of(output), every, compact)
    _print(progress, "events", output, json)


@app.command()
def aggregate(
    stream: StreamArgument,
    output: OutputArgument,
    schema: Annotated[str, typer.Option(metavar="COLUMNS", help="Columns of the JSON events.", show_default=False)],
    time_field: TimeFieldOption,
    window: Annotated[
        str, typer.Option(metavar="DURATION", help="Length of a window, such as '10 minutes'.", show_default=False)
    ],
    late: Annotated[
        str, typer.Option(metavar="DURATION", help="How much older than the newest event one may be.")
    ] = "0 seconds",
    key: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to group by; may be repeated.")
    ] = None,
    total: Annotated[
        list[str] | None, typer.Option("--sum", metavar="COLUMN", help="A column to add up; may be repeated.")
    ] = None,
    every: EveryOption = None,
    compact: CompactOption = None,
    s3_endpoint: S3EndpointOption = "",
    option: SourceOption = None,
    conf: ConfOption = None,
    master: MasterOption = "local[*]",
    controller: ControllerOption = None,
    json: JsonOption = False,
) -> None:
    """Count events by time window and keys, and add up columns, into Parquet files; each window once."""
    from tailrace.pipelines.jobs.aggregate import Windows
    from tailrace.pipelines.jobs.aggregate import aggregate as run_aggregate
    from tailrace.pipelines.jobs.session import spark_session

    windows = Windows(window, late, tuple(key or ()), tuple(total or ()))
    with spark_session(f"aggregate {stream}", master, spark_settings(conf, master, s3_endpoint, output)) as spark:
        source = _input(stream, schema, time_field, option or (), controller)
        progress = run_aggregate(spark, source, windows, place_of(output), every, compact)
    _print(progress, "windows", output, json)


@app.command()
def audit(
    tier2: Annotated[
        str,
        typer.Argument(
            metavar="TIER2", help="The cluster's object store: s3://bucket/prefix or a folder.", show_default=False
        ),
    ],
    output: OutputArgument,
    s3_endpoint: S3EndpointOption = "",
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the page goes.", show_default="page.html in a local FOLDER"),
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Write no page.")] = False,
    dated: Annotated[
        bool, typer.Option("--dated", help="Write into a folder of FOLDER that is named by the present time.")
    ] = False,
    ignore_orphans: Annotated[
        bool, typer.Option("--ignore-orphans", help="Exit with 0 although there are orphans.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option tier2… of the data source; may be repeated."),
    ] = None,
    conf: ConfOption = None,
    master: MasterOption = "local[*]",
    json: JsonOption = False,
) -> None:
    """Read and verify everything in Tier 2, without a server. Exits with 1 when something is wrong."""
    from tailrace.cli.audit_output import print_summary, time_name, write_page
    from tailrace.common.real_ports import SystemClock
    from tailrace.pipelines.audit.job import audit as run_audit
    from tailrace.pipelines.audit.job import identity_of
    from tailrace.pipelines.audit.page import check_can_draw
    from tailrace.pipelines.direct.store_location import StoreLocation
    from tailrace.pipelines.jobs.session import spark_session

    place = tier2 if "://" in tier2 else str(Path(tier2).absolute())
    options = {"tier2Endpoint": s3_endpoint} | named_values("--option", option or ()) | {"tier2": place}
    location = StoreLocation.from_options(options)
    if location is None:
        raise typer.BadParameter("it is empty", param_hint="TIER2")
    now_ms = SystemClock().now_ms()
    if dated:
        output = f"{output.rstrip('/')}/{time_name(now_ms)}"
    if page is None and not no_page and "://" not in output:
        page = Path(output) / "page.html"
    if page is not None:
        check_can_draw()
    settings = spark_settings(conf, master, s3_endpoint, output)
    identity_of(location)  # a wrong address is an error at once, without a start of Spark
    with spark_session("audit", master, settings) as spark:
        summary = run_audit(spark, location, place_of(output), now_ms)
    if page is not None:
        write_page(page, summary, tier2, now_ms)
    if json:
        print_json(summary.as_json() | {"report": output})
    else:
        print_summary(tier2, summary, output, page)
    if not summary.healthy(ignore_orphans=ignore_orphans):
        raise typer.Exit(1)


def _print(progress: Progress, rows: str, output: str, json: bool) -> None:
    if json:
        print_json(progress.as_json())
    else:
        joined = f", {count_text(progress.joined, 'folder')} joined to others" if progress.joined else ""
        print_line(f"{progress.rows:,} {rows} in {progress.batches:,} batches{joined}: {output}")


def _input(stream: StreamName, schema: str, time_field: str, options: Sequence[str], controller: str | None) -> Input:
    from tailrace.pipelines.jobs.events import Input

    if time_field and not schema:
        raise typer.BadParameter("a time field needs the columns of the events: --schema", param_hint="--time-field")
    pairs = named_values("--option", options)
    return Input(SETTINGS.choose_controller(controller), str(stream), schema, time_field, pairs)
