"""``tailrace standalone``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from tailrace.cli.commands import arguments


def standalone(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the server; created if missing.")] = Path(
        ".tailrace"
    ),
    tier2: Annotated[
        str, typer.Option(metavar="URL", help="Tier 2: file:///DIR or s3://BUCKET/PREFIX. Default: a folder in --data.")
    ] = "",
    s3_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Endpoint of an S3-compatible object store.", show_default=False)
    ] = None,
    log: Annotated[
        Literal["file", "object"] | None,
        typer.Option(help="Logs in files of --data, or in objects of Tier 2.", show_default="file, or as --data has"),
    ] = None,
    bind: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    advertise: Annotated[
        str, typer.Option(metavar="HOST", help="Host name that clients connect to.", show_default="as --bind")
    ] = "",
    controller_port: Annotated[int, typer.Option(min=0, max=65535, help="Controller; 0 is any free port.")] = 9090,
    rest_port: Annotated[int, typer.Option(min=0, max=65535, help="REST; 0 is any free port.")] = 9091,
    store_port: Annotated[int, typer.Option(min=0, max=65535, help="Segment store; 0 is any free port.")] = 12345,
    admin_port: Annotated[int, typer.Option(min=0, max=65535, help="Admin; 0 is any free port.")] = 6061,
    cache: Annotated[
        int, typer.Option(parser=arguments.size, metavar="SIZE", help="Memory of the cache.", show_default="256MiB")
    ] = "256MiB",  # type: ignore[assignment]  # typer parses defaults too
    workers: Annotated[int, typer.Option(min=1, help="Worker processes, with ports from --store-port on.")] = 1,
    containers: Annotated[
        int, typer.Option(min=0, help="Containers of a new folder.", show_default="4, or as the folder has")
    ] = 0,
    retention_period: arguments.RetentionPeriodOption = "30m",  # type: ignore[assignment]  # typer parses defaults too
    watermark_period: arguments.WatermarkPeriodOption = "10s",  # type: ignore[assignment]  # typer parses defaults too
    scaling_time_factor: arguments.ScalingTimeFactorOption = 1.0,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            callback=arguments.result_file,
            metavar="FILE",
            help="File for the addresses as JSON, written when the server is ready.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve streams from one folder, until SIGINT, SIGTERM or SIGHUP."""
    from tailrace.common.cycle_collector import collect_cycles_rarely
    from tailrace.common.logs import configure_logs
    from tailrace.processes.standalone import StandaloneOptions
    from tailrace.processes.standalone import run as serve

    configure_logs()
    options = StandaloneOptions(
        data=data,
        tier2=tier2,
        s3_endpoint=s3_endpoint,
        log=log,
        bind=bind,
        advertise=advertise,
        controller_port=controller_port,
        rest_port=rest_port,
        store_port=store_port,
        admin_port=admin_port,
        workers=workers,
        cache_bytes=cache,
        containers=containers,
        retention_period_s=retention_period,
        watermark_period_s=watermark_period,
        scaling_time_factor=scaling_time_factor,
        ready_file=ready_file,
    )
    collect_cycles_rarely()
    asyncio.run(serve(options))
