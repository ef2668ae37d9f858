"""``tailrace controller``: one controller of a cluster on Kubernetes.

See docs/design.md#processes, docs/design.md#controller, ADR 0013.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any

import structlog

from tailrace.client.connections.held_bytes import HeldBytesClient
from tailrace.client.connections.listing import SegmentLister
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.connections.rates import RateClient
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.group.watermarks import mark_segments
from tailrace.client.types import Endpoint
from tailrace.cluster.endpoint_follower import EndpointFollower
from tailrace.cluster.endpoints import EndpointMap
from tailrace.common import limits
from tailrace.common.budgets import ControllerBudgets, controller_budgets, memory_limit
from tailrace.common.errors import StartError
from tailrace.common.http import listen, serve_app
from tailrace.common.loop_stalls import LoopStalls
from tailrace.common.open_files import connection_limits, raise_open_files
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.common.task_groups import running
from tailrace.controller.app import Controller
from tailrace.controller.grpc.server import ControllerServer
from tailrace.controller.metadata.metadata_store import TableMetadataStore
from tailrace.controller.rest.app import create_app
from tailrace.controller.workflows.context import ControllerConfig
from tailrace.processes.pod import Readiness, add_health, run_pod, start_or_close

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ControllerPodOptions:
    """Options of ``tailrace controller``."""

    namespace: str
    cluster: str
    containers: int
    bind: str
    advertise: str
    controller_port: int
    rest_port: int
    retention_period_s: float
    scaling_time_factor: float
    kubeconfig: str | None


class ControllerPod:
    """A running controller. It serves as soon as it listens, and is ready once it reaches its tables."""

    def __init__(self, options: ControllerPodOptions) -> None:
        self.options = options
        if not 1 <= options.containers <= limits.CONTAINERS_MAX:
            raise StartError(f"--containers {options.containers} is not between 1 and {limits.CONTAINERS_MAX}")
        memory_bytes = memory_limit()
        self.budgets = None if memory_bytes is None else controller_budgets(memory_bytes)
        """None where no limit is known."""
        self._stack = contextlib.AsyncExitStack()
        self._leaving = False
        self._controller: Controller
        self._follower: EndpointFollower
        self._server: ControllerServer

    async def start(self) -> None:
        """Listen, follow the map, and begin to look for the tables. Raises StartError."""
        await start_or_close(self._start, self._stack)

    async def _start(self) -> None:
        # Imported here: other commands do not need the Kubernetes client.
        from tailrace.cluster.kubernetes_api import from_kubeconfig, in_cluster

        options, budgets = self.options, self.budgets
        allowed = connection_limits(raise_open_files())
        in_pod = options.kubeconfig is None
        api = in_cluster(options.namespace) if in_pod else from_kubeconfig(options.namespace, options.kubeconfig)
        self._stack.push_async_callback(api.close)
        endpoints = EndpointMap(options.containers)
        self._follower = EndpointFollower(api, options.cluster, endpoints)
        self._stack.push_async_callback(_cancel, asyncio.get_running_loop().create_task(self._follower.run()))
        clock, entropy = SystemClock(), SystemEntropy()
        pool = ConnectionPool()
        self._stack.push_async_callback(pool.close)

        async def locate(segment: str) -> Endpoint:
            return Endpoint(*endpoints.endpoint_of(segment))

        def locate_container(container_id: int) -> Endpoint:
            found = endpoints.internal_endpoint(container_id)
            return Endpoint(found.host, found.port)

        segments = SegmentClient(pool, locate, entropy=entropy, deadline_s=limits.RPC_REQUESTS_DEADLINE_S)
        config = dataclasses.replace(
            _bounds(budgets),
            retention_period_s=options.retention_period_s,
            scaling_time_factor=options.scaling_time_factor,
        )
        rates = RateClient(pool, options.containers, locate_container)
        self._controller = Controller(
            TableMetadataStore(segments),
            segments,
            endpoints,
            clock,
            entropy,
            config,
            rates=rates,
            listing=SegmentLister(pool, options.containers, locate_container),
            held=HeldBytesClient(pool, options.containers, locate_container),
            mark_segments=mark_segments(pool, segments, entropy),
        )
        self._stack.push_async_callback(self._controller.close)
        server = ControllerServer(
            self._controller.services,
            options.bind,
            options.controller_port,
            advertise=options.advertise,
            connections_max=allowed.controller,
            calls_max=limits.RPC_CONCURRENT_MAX if budgets is None else budgets.calls_max,
        )
        self._stack.push_async_callback(server.close)
        await server.start()
        self._server = server
        stalls = LoopStalls()
        await self._stack.enter_async_context(running(stalls.watch()))
        app = create_app(self._controller, stalls=stalls)
        add_health(app, self._readiness)
        listener = listen("rest", options.bind, options.rest_port)
        self._stack.callback(listener.close)
        await self._stack.enter_async_context(serve_app(app, listener, allowed.http))
        self._controller.start_when_possible()
        self._stack.push_async_callback(_cancel, asyncio.get_running_loop().create_task(self._watch()))

    async def _watch(self) -> None:
        """Follow whether segment stores answer, once the controller was ready: before, it gets no clients."""
        await self._controller.wait_ready(None)
        await self._controller.contact.watch(self._serve)

    async def _serve(self, reached: bool) -> None:
        """Listen for clients while segment stores answer: clients that are sent away find another controller."""
        if not reached:
            await self._server.close()
            return
        while True:
            try:
                await self._server.start()
                return
            except StartError as error:
                _logger.error("controller_does_not_listen", reason=str(error))
                await asyncio.sleep(limits.CONTROLLER_CONTACT_PERIOD_S)

    def _readiness(self) -> Readiness:
        ready = self._controller.ready and not self._leaving
        if ready:  # one that serves a part reports what is away
            return Readiness(ready, [self._controller.trouble] if self._controller.trouble else [], {})
        return Readiness(ready, [self._why_not_ready()], {})

    def _why_not_ready(self) -> str:
        if self._leaving:
            return "the controller is shutting down"
        return self._follower.trouble or self._controller.trouble or "the controller has not reached its tables yet"

    async def wait_ended(self) -> str:
        """Never return: a controller retries all that fails."""
        await asyncio.Event().wait()
        return ""

    async def leave(self) -> None:
        """Become not ready, and answer until Kubernetes sends no more clients here."""
        self._leaving = True
        await asyncio.sleep(limits.CONTROLLER_LINGER_S)

    async def close(self) -> None:
        """Stop serving. Other controllers continue the workflows."""
        await self._stack.aclose()


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _bounds(budgets: ControllerBudgets | None) -> ControllerConfig:
    if budgets is None:
        return ControllerConfig()
    entities = budgets.streams_max // limits.CONTROLLER_STREAMS_PER_ENTITY
    return ControllerConfig(
        records_cached_max_bytes=budgets.records_bytes, streams_max=budgets.streams_max, entities_max=entities
    )


async def run(options: ControllerPodOptions) -> None:
    """Serve until a signal of `stop_on_signals`. Raises StartError."""
    name = f"controller {options.advertise}"
    pod = ControllerPod(options)
    if pod.budgets is not None:
        _logger.info("budgets", **{name.replace(" ", "_"): size for name, size in pod.budgets.lines()})
    await run_pod(pod, name, {"cluster": options.cluster, "advertise": options.advertise})
