"""``tailrace segmentstore`` and ``tailrace controller``: the processes of a cluster's pods (ADR 0013)."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from tailrace.cli.commands import arguments

_Namespace = Annotated[str, typer.Option(metavar="NS", help="Namespace of the cluster.", show_default=False)]
_Cluster = Annotated[str, typer.Option(metavar="NAME", help="Its StreamCluster.", show_default=False)]
_Containers = Annotated[int, typer.Option(min=1, help="Its spec.containers.", show_default=False)]
_Advertise = Annotated[str, typer.Option(metavar="HOST", help="Host name that clients connect to.", show_default=False)]
_Bind = Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")]
_Kubeconfig = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Kubeconfig file. Default: the pod's service account.", show_default=False),
]


def segmentstore(
    namespace: _Namespace,
    cluster: _Cluster,
    cluster_id: Annotated[str, typer.Option(metavar="UUID", help="Its identity.", show_default=False)],
    pod: Annotated[str, typer.Option(metavar="POD", help="Name of the pod; workers are POD-0….", show_default=False)],
    containers: _Containers,
    memory: Annotated[
        int,
        typer.Option(parser=arguments.size, metavar="BYTES", help="Memory limit of the pod.", show_default=False),
    ],
    tier2: Annotated[str, typer.Option(metavar="URL", help="s3://BUCKET/PREFIX.", show_default=False)],
    advertise: _Advertise,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes, with ports from --store-port on.")] = 1,
    s3_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Endpoint of an S3-compatible object store.", show_default=False)
    ] = None,
    s3_region: Annotated[
        str | None, typer.Option(metavar="REGION", help="Region of the object store.", show_default=False)
    ] = None,
    bind: _Bind = "0.0.0.0",
    store_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the first worker.")] = 12345,
    admin_port: Annotated[int, typer.Option(min=1, max=65535, help="Admin interface and health.")] = 6061,
    kubeconfig: _Kubeconfig = None,
) -> None:
    """Run the workers of a segment store pod until SIGTERM, then hand over their containers."""
    from tailrace.common.cycle_collector import collect_cycles_rarely
    from tailrace.common.logs import configure_logs
    from tailrace.processes.segment_store_pod import StorePodOptions, run

    configure_logs()
    options = StorePodOptions(
        namespace=namespace,
        cluster=cluster,
        cluster_id=cluster_id,
        pod=pod,
        containers=containers,
        workers=workers,
        memory_bytes=memory,
        tier2=tier2,
        s3_endpoint=s3_endpoint,
        s3_region=s3_region,
        bind=bind,
        advertise=advertise,
        store_port=store_port,
        admin_port=admin_port,
        kubeconfig=kubeconfig,
    )
    collect_cycles_rarely()
    asyncio.run(run(options))


def controller(
    namespace: _Namespace,
    cluster: _Cluster,
    containers: _Containers,
    advertise: _Advertise,
    bind: _Bind = "0.0.0.0",
    controller_port: Annotated[int, typer.Option(min=1, max=65535, help="gRPC.")] = 9090,
    rest_port: Annotated[int, typer.Option(min=1, max=65535, help="REST and health.")] = 9091,
    retention_period: arguments.RetentionPeriodOption = "30m",  # type: ignore[assignment]  # typer parses defaults too
    scaling_time_factor: arguments.ScalingTimeFactorOption = 1.0,
    kubeconfig: _Kubeconfig = None,
) -> None:
    """Run a controller of a cluster until SIGTERM."""
    from tailrace.common.cycle_collector import collect_cycles_rarely
    from tailrace.common.logs import configure_logs
    from tailrace.processes.controller_pod import ControllerPodOptions, run

    configure_logs()
    options = ControllerPodOptions(
        namespace=namespace,
        cluster=cluster,
        containers=containers,
        bind=bind,
        advertise=advertise,
        controller_port=controller_port,
        rest_port=rest_port,
        retention_period_s=retention_period,
        scaling_time_factor=scaling_time_factor,
        kubeconfig=kubeconfig,
    )
    collect_cycles_rarely()
    asyncio.run(run(options))
