"""The standalone server: store, controller, REST and admin interface in one process over one folder.

See docs/design.md#processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from tailrace.client.connections.held_bytes import HeldBytesClient
from tailrace.client.connections.listing import SegmentLister
from tailrace.client.connections.pool import CONTROL_LANE, ConnectionPool
from tailrace.client.connections.rates import RateClient
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.group.watermarks import mark_segments
from tailrace.client.types import Endpoint as StoreEndpoint
from tailrace.cluster.data_folder import DataFolder, open_data_folder
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint, EndpointMap
from tailrace.cluster.segment_mapping import container_of
from tailrace.common import limits
from tailrace.common.budgets import Budgets, check_fits, memory_limit
from tailrace.common.errors import StartError
from tailrace.common.http import listen, serve_app
from tailrace.common.loop_stalls import LoopStalls
from tailrace.common.open_files import ConnectionLimits, connection_limits, raise_open_files
from tailrace.common.process_exit import stop_on_signals
from tailrace.common.quantities import size_text
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.common.task_groups import run_until_first, running
from tailrace.controller.app import Controller
from tailrace.controller.grpc.server import ControllerServer
from tailrace.controller.metadata.metadata_store import TableMetadataStore
from tailrace.controller.rest.app import create_app as create_rest_app
from tailrace.controller.workflows.context import ControllerConfig
from tailrace.processes.s3_endpoint import check_s3_endpoint
from tailrace.segmentstore.worker.admin import create_app as create_admin_app
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from fastapi import FastAPI

    from tailrace.client.connections.left_reads import ReadPlace
    from tailrace.client.connections.pool import RequestPool, Requests
    from tailrace.cluster.data_folder import LogKind
    from tailrace.segmentstore.server.in_process import InProcessRequests

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StandaloneOptions:
    """Options of ``tailrace standalone``; ports of 0 are ephemeral, sizes in bytes."""

    data: Path
    tier2: str = ""
    """URL of Tier 2; empty: a folder in `data`."""
    s3_endpoint: str | None = None
    log: LogKind | None = None
    """Where the logs are: files of the folder, or objects of Tier 2. None: what the folder has; files for a new one."""
    bind: str = "127.0.0.1"
    advertise: str = ""
    """Host that clients connect to; empty: `bind`."""
    controller_port: int = 9090
    rest_port: int = 9091
    store_port: int = 12345
    admin_port: int = 6061
    cache_bytes: int = limits.CACHE_DEFAULT_BYTES
    containers: int = 0
    """0: what the folder has; the default for a new one."""
    workers: int = 1
    """More than one: worker processes, each with a port of its own (from `store_port` on) and its own containers."""
    retention_period_s: float = limits.RETENTION_PERIOD_S
    watermark_period_s: float = limits.WATERMARK_PERIOD_S
    """Between truncations of a stream by its policy."""
    scaling_time_factor: float = 1.0
    """Of all times of automatic scaling."""
    ready_file: Path | None = None


class Standalone:
    """A running standalone server; `start` returns once it serves."""

    def __init__(self, options: StandaloneOptions) -> None:
        self.options = options
        self._stack = contextlib.AsyncExitStack()
        self.addresses: dict[str, Any] = {}
        self.budgets: Budgets | None = None
        self._stalls = LoopStalls()
        self._connections: ConnectionLimits

    async def start(self) -> None:
        """Open the folder, recover, listen. `close` closes what it has opened, also after a failure.

        Raises:
            StartError: its text says in one line what is wrong.
        """
        options = self.options
        if options.bind in ("0.0.0.0", "::") and not options.advertise:
            raise StartError(f"--bind {options.bind} is every address: set the one of clients with --advertise HOST")
        self._connections = connection_limits(raise_open_files())
        await self._stack.enter_async_context(running(self._stalls.watch()))
        check_s3_endpoint(options.tier2, options.s3_endpoint, os.environ)
        entropy = SystemEntropy()
        folder = open_data_folder(
            options.data, containers=options.containers, tier2=options.tier2, entropy=entropy, log=options.log
        )
        self._stack.callback(folder.close)
        known = folder.has_opened()
        specs = self._specs(folder)
        self.budgets = specs[0].budgets
        check_fits(self.budgets, memory_limit(), len(specs))
        listeners = [
            await self._listen_store(options.store_port + (number if options.store_port else 0), len(specs))
            for number in range(len(specs))
        ]
        own: InProcessRequests | None = None
        if len(specs) == 1:
            own, stopped = await self._start_in_process(specs[0], listeners[0])
        else:
            stopped = await self._start_processes(specs, listeners)
        ports = [listener.getsockname()[1] for listener in listeners]
        controller = self._controller(specs, ports, own)
        await self._start_controller(controller, stopped, known=known)
        self.addresses["stores"] = [f"{self._advertised}:{listener.getsockname()[1]}" for listener in listeners]
        self.addresses["pid"] = os.getpid()

    @property
    def _advertised(self) -> str:
        return self.options.advertise or self.options.bind

    def _specs(self, folder: DataFolder) -> list[StoreSpec]:
        options, manifest = self.options, folder.manifest
        workers = options.workers
        if not 1 <= workers <= manifest.containers:
            raise StartError(f"--workers {workers}: between 1 and the number of containers, {manifest.containers}")
        if workers > limits.WORKERS_MAX:
            raise StartError(f"--workers {workers}: between 1 and {limits.WORKERS_MAX}")
        if options.cache_bytes < workers * limits.CACHE_MIN_BYTES:
            each = f" for each of {workers} workers" if workers > 1 else ""
            smallest = size_text(limits.CACHE_MIN_BYTES)
            raise StartError(f"--cache {size_text(options.cache_bytes)} is too small: at least {smallest}{each}")
        tier2 = options.tier2 or f"file://{(options.data / 'tier2').absolute()}"
        return [
            StoreSpec(
                data=str(options.data.absolute()),
                tier2=tier2,
                s3_endpoint=options.s3_endpoint,
                cluster_id=manifest.cluster_id,
                container_count=manifest.containers,
                owned=tuple(range(number, manifest.containers, workers)),
                cache_bytes=options.cache_bytes // workers,
                log=manifest.log,
            )
            for number in range(workers)
        ]

    def _listen(self, name: str, port: int) -> socket.socket:
        listener = listen(name, self.options.bind, port)
        self._stack.callback(listener.close)
        return listener

    async def _listen_store(self, port: int, workers: int) -> socket.socket:
        """Bind a worker's port. Wait for it: a worker whose parent was killed holds it until it ends by itself."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + (limits.WORKER_PORT_TIMEOUT_S if workers > 1 else 0)
        while True:
            try:
                return self._listen("store", port)
            except StartError:
                if loop.time() >= ends_at_s:
                    raise
            await asyncio.sleep(limits.WORKER_PORT_POLL_S)

    async def _start_in_process(self, spec: StoreSpec, listener: socket.socket) -> tuple[InProcessRequests, list[int]]:
        """Serve from this process; return what serves its controller, and the containers that are not recovered."""
        service = StoreService(spec, SystemClock(), SystemEntropy(), self._connections.store)
        self._stack.push_async_callback(service.close)
        await service.start()
        await service.listen_on(listener)
        app = create_admin_app(service.worker, service.server, self._stalls)
        await self._serve_http("admin", app, self.options.admin_port)
        stopped = [status.container_id for status in service.worker.status() if status.state != "running"]
        return service.in_process, stopped

    async def _start_processes(self, specs: list[StoreSpec], listeners: list[socket.socket]) -> list[int]:
        """Serve from worker processes; return the containers that could not be recovered."""
        from tailrace.processes.workers import WorkerPlace, WorkerProcesses
        from tailrace.processes.workers_admin import Workers, create_app

        places = []
        for spec, listener in zip(specs, listeners, strict=True):
            admin = listen("admin", "127.0.0.1", 0)
            self._stack.callback(admin.close)
            places.append(WorkerPlace(spec, listener, admin))
        workers = WorkerProcesses(places)
        self._stack.push_async_callback(workers.close)
        await workers.start()
        owners = {owned: place.admin_url for spec, place in zip(specs, places, strict=True) for owned in spec.owned}

        async def owner_of(container_id: int) -> str:
            return owners[container_id]

        app = create_app(Workers(workers.workers), specs[0].container_count, owner_of)
        await self._serve_http("admin", app, self.options.admin_port)
        return await workers.stopped_containers()

    def _controller(self, specs: list[StoreSpec], ports: list[int], own: InProcessRequests | None) -> Controller:
        """Return the controller. It calls the segment store of this process, `own`, without a connection (ADR 0036)."""
        options = self.options
        clock, entropy = SystemClock(), SystemEntropy()
        pool = ConnectionPool()
        self._stack.push_async_callback(pool.close)
        count = specs[0].container_count
        local = {
            owned: StoreEndpoint(options.bind, port)
            for spec, port in zip(specs, ports, strict=True)
            for owned in spec.owned
        }
        published = EndpointMap(
            count,
            {owned: ContainerEndpoints(Endpoint(self._advertised, endpoint.port)) for owned, endpoint in local.items()},
        )

        async def locate(segment: str) -> StoreEndpoint:
            return local[container_of(segment, count)]

        requests: RequestPool = pool if own is None else OwnStorePool(own, pool)
        segments = SegmentClient(requests, locate, entropy=entropy, deadline_s=limits.RPC_REQUESTS_DEADLINE_S)
        # The lock on the folder lets no second server run.
        config = ControllerConfig(
            sole=True,
            retention_period_s=options.retention_period_s,
            watermark_period_s=options.watermark_period_s,
            scaling_time_factor=options.scaling_time_factor,
        )
        rates = RateClient(requests, count, local.__getitem__)
        metadata = TableMetadataStore(segments)
        marks = mark_segments(pool, segments, entropy)
        listing = SegmentLister(requests, count, local.__getitem__)
        return Controller(
            metadata,
            segments,
            published,
            clock,
            entropy,
            config,
            rates=rates,
            listing=listing,
            held=HeldBytesClient(requests, count, local.__getitem__),
            mark_segments=marks,
        )

    async def _start_controller(self, controller: Controller, stopped: list[int], *, known: bool) -> None:
        """Start the controller and listen. One of a folder with data listens although it cannot write its records."""
        options = self.options
        self._stack.push_async_callback(controller.close)
        if not known and not stopped:
            await controller.start()
        else:
            controller.start_when_possible()
            if stopped or not await controller.wait_ready(limits.CONTROLLER_READY_TIMEOUT_S) or controller.trouble:
                _logger.error("serving_in_part", stopped_containers=stopped, controller=controller.trouble)
        server = ControllerServer(
            controller.services,
            options.bind,
            options.controller_port,
            advertise=self._advertised,
            connections_max=self._connections.controller,
        )
        self._stack.push_async_callback(server.close)
        await server.start()
        self.addresses["controller"] = f"tcp://{self._advertised}:{server.port}"
        await self._serve_http("rest", create_rest_app(controller, stalls=self._stalls), options.rest_port)

    async def _serve_http(self, name: str, app: FastAPI, port: int) -> None:
        listener = self._listen(name, port)
        await self._stack.enter_async_context(serve_app(app, listener, self._connections.http))
        self.addresses[name] = f"http://{self._advertised}:{listener.getsockname()[1]}"

    async def close(self) -> None:
        """Stop serving. All acknowledged data is on disk already."""
        await self._stack.aclose()


class OwnStorePool:
    """Leads requests to the segment store of this process; reads and appends of events go over connections."""

    def __init__(self, own: InProcessRequests, pool: ConnectionPool) -> None:
        self._own = own
        self._pool = pool

    async def get(self, endpoint: StoreEndpoint, lane: str = CONTROL_LANE, place: ReadPlace | None = None) -> Requests:
        """See `RequestPool`."""
        return self._own if lane == CONTROL_LANE else await self._pool.get(endpoint, lane, place)


def write_ready_file(file: Path, addresses: dict[str, Any]) -> None:
    """Write the server's addresses to a file, for programs that wait for them; the file appears whole."""
    temporary = file.with_name(file.name + ".part")
    temporary.write_text(json.dumps(addresses))
    temporary.replace(file)


async def run(options: StandaloneOptions) -> None:
    """Serve until a signal of `stop_on_signals`. Raises StartError."""
    server = Standalone(options)
    stop = stop_on_signals()
    try:
        if not await run_until_first(_started(server), _signalled(stop)):
            _logger.info("stopping")
            return
        assert server.budgets is not None
        _logger.info(
            "budgets", **{name.replace(",", "").replace(" ", "_"): size for name, size in server.budgets.lines()}
        )
        if options.ready_file is not None:
            write_ready_file(options.ready_file, server.addresses)
        _logger.info("serving", **server.addresses)
        await stop.wait()
        _logger.info("stopping")
    finally:
        await server.close()


async def _started(server: Standalone) -> bool:
    await server.start()
    return True


async def _signalled(stop: asyncio.Event) -> bool:
    """Return False when a signal comes: a start may wait for minutes, as for an object store that does not answer."""
    await stop.wait()
    return False
