"""``tailrace pipeline``: jobs on streams that run on Spark (docs/spark-jobs.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.commands.arguments import named_values as _pairs
from tailrace.cli.commands.arguments import place_of as _place
from tailrace.cli.commands.arguments import stream_name
from tailrace.cli.output import print_json, print_line
from tailrace.cli.settings import SETTINGS, ControllerOption, JsonOption
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
    option: SourceOption = None,
    conf: ConfOption = None,
    master: MasterOption = "local[*]",
    controller: ControllerOption = None,
    json: JsonOption = False,
) -> None:
    """Write a stream's events to Parquet files, each exactly once. The next run goes on where this one ended."""
    from tailrace.pipelines.jobs.archive import archive as run_archive
    from tailrace.pipelines.jobs.session import spark_session

    with spark_session(f"archive {stream}", master, _pairs("--conf", conf or ())) as spark:
        source = _input(stream, schema, time_field, option or (), controller)
        progress = run_archive(spark, source, _place(output), every)
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
    with spark_session(f"aggregate {stream}", master, _pairs("--conf", conf or ())) as spark:
        source = _input(stream, schema, time_field, option or (), controller)
        progress = run_aggregate(spark, source, windows, _place(output), every)
    _print(progress, "windows", output, json)


def _print(progress: Progress, rows: str, output: str, json: bool) -> None:
    if json:
        print_json(progress.as_json())
    else:
        print_line(f"{progress.rows:,} {rows} in {progress.batches:,} batches: {output}")


def _input(stream: StreamName, schema: str, time_field: str, options: Sequence[str], controller: str | None) -> Input:
    from tailrace.pipelines.jobs.events import Input

    if time_field and not schema:
        raise typer.BadParameter("a time field needs the columns of the events: --schema", param_hint="--time-field")
    pairs = _pairs("--option", options)
    return Input(SETTINGS.choose_controller(controller), str(stream), schema, time_field, pairs)
