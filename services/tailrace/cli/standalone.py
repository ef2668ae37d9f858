"""The standalone server: store, controller, REST and admin interface in one process over one folder (design §1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn

from tailrace.client.connection import ConnectionPool
from tailrace.client.segments import SegmentClient
from tailrace.client.types import Endpoint as StoreEndpoint
from tailrace.cluster.datafolder import DataFolder, open_data_folder
from tailrace.cluster.endpoints import Endpoint, single_endpoint_map
from tailrace.common import limits
from tailrace.common.budgets import Budgets, budgets_for, check_fits, memory_limit
from tailrace.common.errors import StartError
from tailrace.common.realports import SystemClock, SystemEntropy
from tailrace.controller.app import Controller
from tailrace.controller.metadata import TableMetadataStore
from tailrace.controller.server import ControllerServer
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.segmentstore.admin import create_app as create_admin_app
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker import Worker, WorkerPorts
from tailrace.storage.obstores import open_object_store, probe

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tailrace.log.port import DurableLog

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StandaloneOptions:
    """Options of ``tailrace standalone``; ports of 0 are ephemeral, sizes in bytes."""

    data: Path
    tier2: str = ""
    """URL of Tier 2; empty: a folder in `data`."""
    s3_endpoint: str | None = None
    bind: str = "127.0.0.1"
    advertise: str = ""
    """Host that clients are told to connect to; empty: `bind`."""
    controller_port: int = 9090
    rest_port: int = 9091
    store_port: int = 12345
    admin_port: int = 6061
    cache_bytes: int = limits.CACHE_DEFAULT_BYTES
    containers: int = 0
    """0: as the folder has, or the default for a new one."""
    ready_file: Path | None = None


class Standalone:
    """A running standalone server; `start` returns once it serves."""

    def __init__(self, options: StandaloneOptions) -> None:
        self.options = options
        self._stack = contextlib.AsyncExitStack()
        self.addresses: dict[str, Any] = {}
        self.budgets: Budgets | None = None

    async def start(self) -> None:
        """Open the folder, recover, listen.

        Raises:
            StartError: says in one line what is wrong.
        """
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        options = self.options
        clock, entropy = SystemClock(), SystemEntropy()
        folder = open_data_folder(options.data, containers=options.containers, tier2=options.tier2, entropy=entropy)
        self._stack.callback(folder.close)
        containers = folder.manifest.containers
        self.budgets = budgets_for(options.cache_bytes, containers)
        check_fits(self.budgets, memory_limit())
        store = open_object_store(
            options.tier2 or f"file://{(options.data / 'tier2').absolute()}", s3_endpoint=options.s3_endpoint
        )
        self._stack.push_async_callback(store.close)
        await probe(store, entropy.token(8).hex())
        disk = RealDisk()
        self._stack.callback(disk.close)
        ports = WorkerPorts(
            store,
            _log_opener(disk, folder),
            folder.next_epoch,
            clock,
            entropy,
            uuid.UUID(folder.manifest.cluster_id).bytes,
        )
        worker = Worker(containers, range(containers), self.budgets, ports)
        self._stack.push_async_callback(worker.close)
        await worker.start()
        server = SegmentStoreServer(worker, InFlightBudget(self.budgets.in_flight_bytes), clock, entropy)
        self._stack.push_async_callback(server.close)
        try:
            store_host, store_port = await server.start(options.bind, options.store_port)
        except OSError as error:
            raise StartError(f"store port {options.store_port} of {options.bind}: {error.strerror}") from error
        advertised = options.advertise or options.bind
        await self._start_controller(containers, Endpoint(advertised, store_port), Endpoint(store_host, store_port))
        await self._serve_http("admin", create_admin_app(worker), options.admin_port)
        self.addresses["stores"] = [f"{advertised}:{store_port}"]
        self.addresses["pid"] = os.getpid()

    async def _start_controller(self, containers: int, published: Endpoint, local: Endpoint) -> None:
        options = self.options
        clock, entropy = SystemClock(), SystemEntropy()
        pool = ConnectionPool()
        self._stack.push_async_callback(pool.close)
        local_endpoint = StoreEndpoint(local.host, local.port)

        async def locate(_: str) -> StoreEndpoint:
            return local_endpoint

        segments = SegmentClient(pool, locate, entropy=entropy)
        controller = Controller(
            TableMetadataStore(segments), segments, single_endpoint_map(containers, published), clock, entropy
        )
        self._stack.push_async_callback(controller.close)
        await controller.start()
        advertised = options.advertise or options.bind
        server = ControllerServer(controller.services, options.bind, options.controller_port, advertise=advertised)
        self._stack.push_async_callback(server.close)
        await server.start()
        self.addresses["controller"] = f"tcp://{advertised}:{server.port}"

    async def _serve_http(self, name: str, app: FastAPI, port: int) -> None:
        options = self.options
        listener = _listen(name, options.bind, port)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=int(limits.CLOSE_DEADLINE_S),
        )
        server = _QuietServer(config)
        task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))

        async def stop() -> None:
            server.should_exit = True
            await task

        self._stack.push_async_callback(stop)
        self.addresses[name] = f"http://{options.advertise or options.bind}:{listener.getsockname()[1]}"

    async def close(self) -> None:
        """Stop serving; what was acknowledged is on disk already."""
        await self._stack.aclose()


class _QuietServer(uvicorn.Server):
    """Leaves signals to the process that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """No handlers of its own."""
        yield


def _listen(name: str, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartError(f"{name} port {port} of {host}: {error.strerror}") from error
    return listener


def _log_opener(disk: RealDisk, folder: DataFolder) -> Any:
    def open_log(container_id: int) -> DurableLog:
        return FileLog(disk, str(folder.log_path / str(container_id)), container_id)

    return open_log


def write_ready_file(file: Path, addresses: dict[str, Any]) -> None:
    """Tell whoever waits where the server listens; the file appears whole."""
    temporary = file.with_name(file.name + ".part")
    temporary.write_text(json.dumps(addresses))
    temporary.replace(file)


@dataclass(slots=True)
class _Stop:
    event: asyncio.Event = field(default_factory=asyncio.Event)


async def run(options: StandaloneOptions) -> None:
    """Serve until SIGINT or SIGTERM. Raises StartError."""
    server = Standalone(options)
    stop = _Stop()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.event.set)
    await server.start()
    try:
        assert server.budgets is not None
        _logger.info("budgets", **{name.replace(" ", "_"): size for name, size in server.budgets.lines()})
        if options.ready_file is not None:
            write_ready_file(options.ready_file, server.addresses)
        _logger.info("serving", **server.addresses)
        await stop.event.wait()
        _logger.info("stopping")
    finally:
        await server.close()
