"""Commands of ``tailrace pipeline`` that write into streams (docs/spark-jobs.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.commands.arguments import named_values, place_of, position, size, stream_name
from tailrace.cli.commands.pipeline import ConfOption, MasterOption, SourceOption, StreamArgument
from tailrace.cli.commands.pipeline_s3 import S3EndpointOption, spark_settings
from tailrace.cli.output import print_json, print_line
from tailrace.cli.settings import SETTINGS, ControllerOption, JsonOption
from tailrace.cli.values import count_text
from tailrace.client.model import StreamName
from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.pipelines.jobs.batch_files import Progress

TargetOption = Annotated[
    list[str] | None,
    typer.Option("--target-option", metavar="NAME=VALUE", help="An option of the data sink; may be repeated."),
]
CheckpointOption = Annotated[
    str,
    typer.Option(
        "--checkpoint", metavar="FOLDER", help="Where the job keeps its position: a path or a URL.", show_default=False
    ),
]
TargetArgument = Annotated[
    StreamName,
    typer.Argument(
        metavar="TARGET_SCOPE/TARGET_STREAM", help="The stream to write.", parser=stream_name, show_default=False
    ),
]
PositionOption = Annotated[str, typer.Option(metavar="head|tail|CUT", help="A position in the stream.")]


def replay(
    stream: StreamArgument,
    target: TargetArgument,
    checkpoint: CheckpointOption,
    start: PositionOption = "head",
    end: PositionOption = "tail",
    routing_key: Annotated[
        str,
        typer.Option(
            metavar="FIELD",
            help="The field of JSON events with the routing key. Default: one key for each segment.",
            show_default=False,
        ),
    ] = "",
    target_controller: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Address of the target's controller, if it is another.", show_default=False),
    ] = None,
    option: SourceOption = None,
    target_option: TargetOption = None,
    s3_endpoint: S3EndpointOption = "",
    conf: ConfOption = None,
    master: MasterOption = "local[*]",
    controller: ControllerOption = None,
    json: JsonOption = False,
) -> None:
    """Write a stream's events from a cut to a cut into another stream, each exactly once, also when it is repeated."""
    from tailrace.pipelines.jobs.replay import Replay, prepare, run_replay
    from tailrace.pipelines.jobs.session import spark_session
    from tailrace.pipelines.jobs.target import Target

    address = SETTINGS.choose_controller(controller)
    into = Target(target_controller or address, target, named_values("--target-option", target_option or ()))
    options = named_values("--option", option or ())
    cuts = position(start, "--start"), position(end, "--end")
    settings = spark_settings(conf, master, s3_endpoint, checkpoint)
    prepared = prepare(Replay(address, stream, into, *cuts, routing_key, options))
    with spark_session(f"replay {stream}", master, settings) as spark:
        progress = run_replay(spark, prepared, place_of(checkpoint))
    _print(progress, "event", target, json)


def backfill(
    files: Annotated[
        str, typer.Argument(metavar="PARQUET", help="A file, a folder, a pattern or a URL.", show_default=False)
    ],
    target: Annotated[
        StreamName,
        typer.Argument(metavar="SCOPE/STREAM", help="The stream to write.", parser=stream_name, show_default=False),
    ],
    checkpoint: CheckpointOption,
    value: Annotated[
        str,
        typer.Option(
            metavar="COLUMN", help="The column of the events. Default: JSON of all columns.", show_default=False
        ),
    ] = "",
    routing_key: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column of the routing keys.", show_default=False)
    ] = "",
    order_by: Annotated[
        str, typer.Option(metavar="COLUMN", help="The order of the rows of a routing key.", show_default=False)
    ] = "",
    batch_size: Annotated[
        int | None,
        typer.Option(parser=size, metavar="SIZE", help="Bytes of the files of a batch.", show_default="1GiB"),
    ] = None,
    target_option: TargetOption = None,
    s3_endpoint: S3EndpointOption = "",
    conf: ConfOption = None,
    master: MasterOption = "local[*]",
    controller: ControllerOption = None,
    json: JsonOption = False,
) -> None:
    """Write the rows of Parquet files into a stream, each exactly once, also when it is repeated."""
    from tailrace.pipelines.jobs.backfill import Backfill
    from tailrace.pipelines.jobs.backfill import backfill as run_backfill
    from tailrace.pipelines.jobs.session import spark_session
    from tailrace.pipelines.jobs.target import Target

    options = named_values("--target-option", target_option or ())
    into = Target(SETTINGS.choose_controller(controller), target, options)
    job = Backfill(place_of(files), into, value, routing_key, order_by, batch_size or limits.SPARK_JOB_BATCH_BYTES)
    job.check_options()
    settings = spark_settings(conf, master, s3_endpoint, files, checkpoint)
    into.connect_and_check()  # a wrong stream is an error at once, without a start of Spark
    with spark_session(f"backfill {target}", master, settings) as spark:
        progress = run_backfill(spark, job, place_of(checkpoint))
    _print(progress, "row", target, json)


def _print(progress: Progress, noun: str, target: StreamName, json: bool) -> None:
    if json:
        print_json(progress.as_json())
    else:
        batches = "1 batch" if progress.batches == 1 else f"{progress.batches:,} batches"
        print_line(f"{count_text(progress.rows, noun)} in {batches}: {target}")
