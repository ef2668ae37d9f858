"""``tailrace bench``: measure this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.commands import bench_parts
from tailrace.cli.commands.arguments import size
from tailrace.cli.commands.bench_options import (
    FolderOption,
    JsonOption,
    LogOption,
    PeerOption,
    PlotOption,
    S3EndpointOption,
    SecondsOption,
    ServerOption,
    Tier2Option,
    WarmUpOption,
    note_case,
    report_rows,
)
from tailrace.cli.session import check_reachable, run
from tailrace.cli.settings import SETTINGS
from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from tailrace.cli.bench.result import Row


class Client(StrEnum):
    """The client that a benchmark uses."""

    OURS = "ours"
    JAVA = "java"


app = typer.Typer(help="Measure this machine.", no_args_is_help=True)
ClientOption = Annotated[
    Client, typer.Option("--client", help="Tailrace's client, or the Pravega Java client (4 s + 8 s a case).")
]


@app.command()
def ingest(
    controller: ServerOption = None,
    folder: FolderOption = None,
    client: ClientOption = Client.OURS,
    seconds: SecondsOption = 10.0,
    warm_up: WarmUpOption = 2.0,
    batch: Annotated[int, typer.Option(min=1, max=20_000, help="Events of one batched call.")] = 1000,
    window: Annotated[
        int, typer.Option(parser=size, metavar="SIZE", help="Maximum of unacknowledged bytes, for 100 B events.")
    ] = "1MiB",  # type: ignore[assignment]  # typer parses defaults too
    log: LogOption = "file",
    tier2: Tier2Option = "",
    s3_endpoint: S3EndpointOption = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Measure the engine alone: no connections, no disk, no Tier 2.")
    ] = False,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure durable appends: throughput in batches and by single calls, large events, one at a time."""

    if in_process and (controller or folder or tier2 or log != "file" or client is Client.JAVA):
        raise typer.BadParameter("it measures no server, so no option of one can be given", param_hint="--in-process")

    async def work() -> list[Row]:
        if in_process:
            import logging

            from tailrace.cli.bench.in_process import measure_in_process
            from tailrace.common.logs import configure_logs

            configure_logs(logging.ERROR)  # the container runs in this process
            return await measure_in_process(seconds=seconds, warm_up_s=warm_up, report=note_case)
        from tailrace.cli.bench.ingest import measure_ingest
        from tailrace.cli.bench.java import INGEST_CASES, measure_java
        from tailrace.cli.bench.target import bench_target, own_options

        options = own_options(log, tier2, s3_endpoint)
        async with bench_target(await _server(controller), folder, options) as target:
            if client is Client.JAVA:
                return await measure_java(target, INGEST_CASES, note_case)
            return await measure_ingest(
                target, seconds=seconds, warm_up_s=warm_up, batch_events=batch, window_bytes=window, report=note_case
            )

    report_rows("ingest", run(work()), json, plot)


@app.command()
def read(
    controller: ServerOption = None,
    folder: FolderOption = None,
    client: ClientOption = Client.OURS,
    seconds: SecondsOption = 10.0,
    warm_up: WarmUpOption = 2.0,
    rate: Annotated[int, typer.Option(min=1, help="Events per second at the tail.")] = 10_000,
    catch_up: Annotated[
        int, typer.Option(parser=size, metavar="SIZE", help="Bytes to read in catch-up; less than the cache's size.")
    ] = "100MB",  # type: ignore[assignment]  # typer parses defaults too
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure reads: end to end at the tail at a fixed rate, and catch-up from the cache and from Tier 2."""

    async def work() -> list[Row]:
        from tailrace.cli.bench.java import measure_java, read_cases
        from tailrace.cli.bench.read import measure_read
        from tailrace.cli.bench.target import bench_target

        async with bench_target(await _server(controller), folder) as target:
            if client is Client.JAVA:
                return await measure_java(target, read_cases(rate), note_case)
            return await measure_read(
                target, seconds=seconds, warm_up_s=warm_up, rate_per_s=rate, catch_up_bytes=catch_up, report=note_case
            )

    report_rows("read", run(work()), json, plot)


@app.command()
def table(
    controller: ServerOption = None,
    folder: FolderOption = None,
    seconds: SecondsOption = 10.0,
    warm_up: WarmUpOption = 2.0,
    keys: Annotated[int, typer.Option(min=1, help="Keys of the table.")] = 4096,
    peer: PeerOption = None,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure a key-value table: puts and gets, one at a time and with 256 in flight.

    With --peer also through the Java client, here and there.
    """

    async def work() -> list[Row]:
        from tailrace.cli.bench.table import measure_table, measure_table_by_java
        from tailrace.cli.bench.target import bench_target

        async with bench_target(await _server(controller), folder) as target:
            measured = await _server(peer) if peer is not None else None
            rows = await measure_table(target, seconds=seconds, warm_up_s=warm_up, keys=keys, report=note_case)
            return rows if measured is None else [*rows, *await measure_table_by_java(target, measured, note_case)]

    report_rows("table", run(work()), json, plot)


@app.command()
def transactions(
    controller: ServerOption = None,
    folder: FolderOption = None,
    seconds: SecondsOption = 10.0,
    warm_up: WarmUpOption = 2.0,
    open_count: Annotated[
        int,
        typer.Option("--open", min=0, max=9_900, metavar="N", help="Further transactions that stay open meanwhile."),
    ] = 0,
    peer: PeerOption = None,
    log: LogOption = "file",
    tier2: Tier2Option = "",
    s3_endpoint: S3EndpointOption = None,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure transactions of ten events of 100 B on four segments: one after the other, and 16 at a time."""

    async def work() -> list[Row]:
        from tailrace.cli.bench.target import bench_target, own_options
        from tailrace.cli.bench.transactions import measure_transactions

        async with bench_target(await _server(controller), folder, own_options(log, tier2, s3_endpoint)) as target:
            return await measure_transactions(
                target,
                seconds=seconds,
                warm_up_s=warm_up,
                open_count=open_count,
                peer=await _server(peer) if peer is not None else None,
                report=note_case,
            )

    report_rows("transactions", run(work()), json, plot)


@app.command()
def scale(
    controller: ServerOption = None,
    folder: FolderOption = None,
    scales: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Scales of each case.")] = 30,
    open_count: Annotated[
        int, typer.Option("--open", min=0, max=9_900, metavar="N", help="Open transactions of the second case.")
    ] = 1000,
    log: LogOption = "file",
    tier2: Tier2Option = "",
    s3_endpoint: S3EndpointOption = None,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure scales: how long one takes, and how long events wait meanwhile; then with many open transactions."""

    async def work() -> list[Row]:
        from tailrace.cli.bench.scale import measure_scales
        from tailrace.cli.bench.target import bench_target, own_options

        async with bench_target(await _server(controller), folder, own_options(log, tier2, s3_endpoint)) as target:
            return await measure_scales(target, scales=scales, open_count=open_count, report=note_case)

    report_rows("scale", run(work()), json, plot)


@app.command()
def peer(
    uri: Annotated[
        str | None,
        typer.Option("--peer", metavar="URI", help="Controller of a Pravega that runs.", show_default=False),
    ] = None,
    command: Annotated[
        str,
        typer.Option(
            "--peer-command",
            metavar="COMMAND",
            help="Starts a new Pravega for each case, such as scripts/run_pravega.py.",
            show_default=False,
        ),
    ] = "",
    controller: ServerOption = None,
    folder: FolderOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians and their ratios are printed.")] = 3,
    cases: Annotated[
        str, typer.Option(metavar="WORD", help="Only cases whose name has this word.", show_default="all")
    ] = "",
    log: LogOption = "file",
    tier2: Tier2Option = "",
    s3_endpoint: S3EndpointOption = None,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Compare a server with a Pravega, in turns, through the Java client: writes, tail, catch-up."""

    if bool(uri) == bool(command):
        raise typer.BadParameter("give the address of a Pravega or a command that starts one", param_hint="--peer")

    async def work() -> list[Row]:
        from tailrace.cli.bench.peer import CASES, RunningPeer, StartedPeer, measure_peer
        from tailrace.cli.bench.target import bench_target, own_options

        chosen = {name: case for name, case in CASES.items() if cases in case}
        if not chosen:
            raise BadRequestError(f"no case has {cases!r} in its name; there are {'; '.join(CASES.values())}")
        if uri is not None:
            await check_reachable(uri)
        there = StartedPeer(command) if uri is None else RunningPeer(uri)
        async with bench_target(await _server(controller), folder, own_options(log, tier2, s3_endpoint)) as target:
            return await measure_peer(target.controller, there, rounds=rounds, cases=chosen, report=note_case)

    report_rows("peer", run(work()), json, plot)


@app.command()
def streams(
    folder: FolderOption = None,
    count: Annotated[
        int, typer.Option("--streams", min=10, max=100_000, metavar="N", help="Number of streams.")
    ] = 1000,
    tier2: Tier2Option = "",
    s3_endpoint: S3EndpointOption = None,
    log: LogOption = "file",
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure a server with many streams: create, write, list, start, and two rounds of retention."""
    from tailrace.cli.bench.streams import measure_streams
    from tailrace.cli.bench.target import own_options

    report_rows(
        "streams", run(measure_streams(folder, own_options(log, tier2, s3_endpoint), count, note_case)), json, plot
    )


@app.command()
def spark(
    folder: FolderOption = None,
    data: Annotated[
        int, typer.Option("--size", parser=size, metavar="SIZE", help="Bytes of the stream's events, of 1 KB each.")
    ] = "500MB",  # type: ignore[assignment]  # typer parses defaults too
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Spark's cores, on which it is kept.", show_default="those of this process"),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs; the best one counts.")] = 2,
    tier2: Tier2Option = "",
    s3_endpoint: S3EndpointOption = None,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Measure Spark: tables from Tier 2 and from the segment store, a query, the sink, and Parquet beside them."""
    from tailrace.cli.bench.spark import Load, measure_spark
    from tailrace.cli.bench.target import own_options

    load = Load.of(data, cores, repeats)
    report_rows("spark", measure_spark(folder, own_options("file", tier2, s3_endpoint), load, note_case), json, plot)


async def _server(controller: str | None) -> str | None:
    """Return the address of a requested server that answers, or None to start a new one."""
    chosen = controller or (SETTINGS.controller if SETTINGS.controller_given else None)
    if chosen is not None:
        await check_reachable(chosen)
    return chosen


app.command()(bench_parts.cache)
app.command()(bench_parts.index)
app.command("log")(bench_parts.durable_log)
app.command()(bench_parts.recovery)
