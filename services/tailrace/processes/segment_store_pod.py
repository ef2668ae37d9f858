"""``tailrace segmentstore``: the main process of a segment store pod (docs/design.md#processes, ADR 0013).

It binds a port per worker, runs a process for each, and replies WrongHost for workers that do not run. It holds no
data and talks neither to Kubernetes nor to the object store. ``/readyz`` shows what the workers report.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from fastapi import Request  # at run time: FastAPI reads annotations
from fastapi.responses import JSONResponse, Response

from tailrace.common import limits
from tailrace.common.budgets import PodBudgets, check_pod_fits, memory_limit, pod_budgets
from tailrace.common.errors import StartError
from tailrace.common.http import listen, serve_app
from tailrace.common.open_files import connection_limits, raise_open_files
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.processes.pod import Readiness, add_health, run_pod, start_or_close
from tailrace.processes.s3_endpoint import check_s3_endpoint
from tailrace.processes.store_readiness import why_not_ready
from tailrace.processes.workers import WorkerPlace, WorkerProcess, WorkerProcesses
from tailrace.processes.workers_admin import Workers, create_app, describe
from tailrace.segmentstore.worker.cluster_service import ClusterStoreSpec
from tailrace.segmentstore.worker.wrong_host_responder import WrongHostResponder

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence

    from fastapi import FastAPI

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StorePodOptions:
    """Options of ``tailrace segmentstore``; sizes in bytes."""

    namespace: str
    cluster: str
    cluster_id: str
    pod: str
    containers: int
    workers: int
    memory_bytes: int
    tier2: str
    s3_endpoint: str | None
    s3_region: str | None
    bind: str
    advertise: str
    store_port: int
    admin_port: int
    kubeconfig: str | None

    @property
    def names(self) -> list[str]:
        """Return the workers' names."""
        return [f"{self.pod}-{number}" for number in range(self.workers)]

    def specs(self, budgets: PodBudgets) -> list[ClusterStoreSpec]:
        """Return the specification of each worker."""
        names = self.names
        return [
            ClusterStoreSpec(
                namespace=self.namespace,
                cluster=self.cluster,
                cluster_id=self.cluster_id,
                container_count=self.containers,
                worker=name,
                host=self.advertise,
                port=self.store_port + number,
                tier2=self.tier2,
                s3_endpoint=self.s3_endpoint,
                s3_region=self.s3_region,
                cache_bytes=budgets.worker.cache_bytes,
                attribute_bytes=budgets.worker.attribute_bytes,
                kubeconfig=self.kubeconfig,
                siblings=tuple(other for other in names if other != name),
            )
            for number, name in enumerate(names)
        ]


class StorePod:
    """A running segment store pod; `run_pod` drives it."""

    def __init__(self, options: StorePodOptions) -> None:
        self.options = options
        self.budgets = checked_budgets(options)
        self._stack = contextlib.AsyncExitStack()
        self._workers: WorkerProcesses
        self._leaving = False

    async def start(self) -> None:
        """Listen, and begin to run the workers; ``/readyz`` shows whether they come up. Raises StartError."""
        await start_or_close(self._start, self._stack)

    async def _start(self) -> None:
        options = self.options
        allowed = connection_limits(raise_open_files())
        clock, entropy = SystemClock(), SystemEntropy()
        places = []
        for number, spec in enumerate(options.specs(self.budgets)):
            store = self._listen("store", options.bind, options.store_port + number)
            admin = self._listen("admin", "127.0.0.1", 0)
            places.append(WorkerPlace(spec, store, admin, WrongHostResponder(store, clock, entropy)))
        admin = self._listen("admin", options.bind, options.admin_port)
        self._workers = WorkerProcesses(places)
        self._stack.push_async_callback(self._workers.close)
        asked = Workers(self._workers.workers)
        app = create_app(asked, options.containers, asked.owner_of)
        refuse_remote_writes(app)
        add_health(app, self._readiness)
        await self._stack.enter_async_context(serve_app(app, admin, allowed.http))
        self._workers.begin()

    def _listen(self, name: str, host: str, port: int) -> socket.socket:
        listener = listen(name, host, port)
        self._stack.callback(listener.close)
        return listener

    def _readiness(self) -> Readiness:
        workers = self._workers.workers
        troubles = [reason for worker in workers if (reason := trouble_of(worker, self.options.names))]
        follow = all(worker.state == "following" for worker in workers)
        why_not = why_not_ready(workers, asyncio.get_running_loop().time()) if follow else ""
        return Readiness(
            ready=follow and not self._leaving and not why_not,
            reasons=[*troubles, *filter(None, [why_not])],
            details={"leaving": self._leaving, "workers": [describe(worker) for worker in workers]},
        )

    async def wait_ended(self) -> str:
        """Return the reason when a worker does not restart, because another process has its name."""
        over = [asyncio.ensure_future(worker.over.wait()) for worker in self._workers.workers]
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in over:
                waiting.cancel()
            await asyncio.wait(over)
        return next(worker.reason for worker in self._workers.workers if worker.over.is_set())

    async def leave(self) -> None:
        """Hand over all containers, within ``limits.POD_DRAIN_DEADLINE_S``."""
        self._leaving = True
        await self._workers.leave(limits.POD_DRAIN_DEADLINE_S)

    async def close(self) -> None:
        """End everything."""
        await self._stack.aclose()


def trouble_of(worker: WorkerProcess, names: Sequence[str]) -> str:
    """Return why a worker does not follow the map, or which of its containers are not open; empty when all is well."""
    if worker.state == "following" and not worker.reason:
        return ""
    return f"{names[worker.number]}: {worker.reason or 'does not follow the container map yet'}"


def refuse_remote_writes(app: FastAPI) -> None:
    """Reject writes from outside the pod, because the port is unauthenticated. ``kubectl port-forward`` is inside."""

    @app.middleware("http")
    async def check(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.method not in ("GET", "HEAD") and not _is_here(request):
            return JSONResponse({"error": "writes are accepted from within the pod only"}, status_code=403)
        return await proceed(request)


def _is_here(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def checked_budgets(options: StorePodOptions) -> PodBudgets:
    """Check the options and return the pod's budgets. Raises StartError."""
    try:
        uuid.UUID(options.cluster_id)
    except ValueError as error:
        raise StartError(f"--cluster-id {options.cluster_id!r} is not a UUID") from error
    if not 1 <= options.containers <= limits.CONTAINERS_MAX:
        raise StartError(f"--containers {options.containers} is not between 1 and {limits.CONTAINERS_MAX}")
    check_s3_endpoint(options.tier2, options.s3_endpoint, os.environ)
    budgets = pod_budgets(options.memory_bytes, options.workers, options.containers)
    check_pod_fits(options.memory_bytes, memory_limit())
    return budgets


async def run(options: StorePodOptions) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, then hand over. Raises StartError: it cannot start, or was superseded."""
    pod = StorePod(options)
    _logger.info("budgets", **{name.replace(",", "").replace(" ", "_"): size for name, size in pod.budgets.lines()})
    serving = {"pod": options.pod, "workers": options.names, "advertise": options.advertise}
    await run_pod(pod, f"pod {options.pod}", serving)
