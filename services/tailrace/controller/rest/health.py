"""Serve health and metrics over REST (docs/protocol/rest.md#endpoints)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tailrace.controller.calls.statistics import BUCKETS_S, CODE_NAMES
from tailrace.controller.rest import models

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.controller.app import Controller

ROOT = "controller"


class Health:
    """Health of the controller and of its parts, computed at each request."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def result(self) -> models.HealthResult:
        """Return the health of all parts."""
        children = {name: self._part(name) for name in ("workflows", "grpc")}
        ready = self._controller.ready
        return models.HealthResult(
            name=ROOT, status=_status(ready), readiness=ready, liveness=True, details=self._details(), children=children
        )

    def _details(self) -> dict[str, str]:
        return {"trouble": self._controller.trouble} if self._controller.trouble else {}

    def find(self, name: str) -> models.HealthResult:
        """Return the health of one part. Raises HTTPException 404."""
        whole = self.result()
        found = whole if name == ROOT else whole.children.get(name)
        if found is None:
            raise HTTPException(404, f"the controller has no part named {name[:80]!r}")
        return found

    def _part(self, name: str) -> models.HealthResult:
        if name == "workflows":
            ready = self._controller.ready
            details = {"activeStreams": str(self._controller.active_streams)}
        else:
            endpoints = self._controller.services.core.endpoints
            ready = bool(endpoints)
            details = {"endpoints": ", ".join(f"{host}:{port}" for host, port in endpoints)}
        return models.HealthResult(name=name, status=_status(ready), readiness=ready, liveness=True, details=details)


def _status(ready: bool) -> str:
    return "UP" if ready else "STARTING"


class ControllerCollector:
    """The controller's metrics for Prometheus, computed at each scrape (docs/operations/observe.md#metrics)."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        load = self._controller.load()
        gauges = (
            ("ready", "1 when the controller answers calls", self._controller.ready),
            ("active_streams", "Streams with workflows, transactions or leases", load.streams),
            ("active_workflows", "Workflows of reader groups, key-value tables and scopes that run", load.others),
            ("slow_steps", "Steps of workflows that last for long, as when a container is away", load.slow_steps),
            ("open_transactions", "Open transactions whose leases this controller watches", load.open_transactions),
            ("oldest_work_seconds", "How long the oldest unfinished work of a stream waits", load.oldest_work_s),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"tailrace_controller_{name}", text, value=float(value))
        yield CounterMetricFamily(
            "tailrace_controller_failed_steps", "Steps of workflows that failed; each is repeated", load.failed_steps
        )
        yield from self._retention()
        yield from self._scaling()
        yield from self._watermarks()
        yield from self._sweep()
        yield from self._calls()

    def _retention(self) -> Iterator[Metric]:
        job = self._controller.retention
        for name, text, value in (
            ("retention_rounds", "Rounds through all streams of this controller with retention policies", job.rounds),
            ("retention_truncations", "Truncations of streams by their policies", job.truncations),
            ("retention_freed_bytes", "Bytes that these truncations took out of streams", job.freed_bytes),
            ("retention_failures", "Streams whose policy could not be applied, in each round", job.failures),
            ("retention_clock_waits", "Streams that wait for a round to confirm the time", job.clock_waits),
        ):
            yield CounterMetricFamily(f"tailrace_controller_{name}", text, value)

    def _scaling(self) -> Iterator[Metric]:
        job = self._controller.scaling
        for name, text, value in (
            ("scaling_rounds", "Looks at the rates of all segments", job.rounds),
            ("scaling_splits", "Segments that were split by the rate of their stream's policy", job.splits),
            ("scaling_merges", "Segments that were made of several by the rate of their stream's policy", job.merges),
            ("scaling_failures", "Streams that could not be scaled by their policy, in each round", job.failures),
        ):
            yield CounterMetricFamily(f"tailrace_controller_{name}", text, value)

    def _watermarks(self) -> Iterator[Metric]:
        job = self._controller.watermarks
        for name, text, value in (
            ("watermark_rounds", "Looks at the times that writers noted", job.rounds),
            ("watermarks", "Watermarks that were written", job.written),
            ("watermark_failures", "Streams whose watermark could not be written, in each round", job.failures),
        ):
            yield CounterMetricFamily(f"tailrace_controller_{name}", text, value)

    def _sweep(self) -> Iterator[Metric]:
        job = self._controller.sweep
        yield GaugeMetricFamily(
            "tailrace_controller_segments_without_record", "Segments that no record names", value=float(job.nameless)
        )
        for name, text, value in (
            ("sweep_rounds", "Looks at the segments of all containers", job.rounds),
            ("sweep_deleted", "Segments without a record that were deleted", job.deleted),
            ("sweep_kept", "Segments without a record that have bytes and were kept, in each round", job.kept),
            ("sweep_entries_removed", "Entries of deleted streams that were removed", job.entries.removed),
            ("sweep_streams_listed", "Entries that lists of the controllers had lost", job.lists.restored),
            (
                "sweep_failures",
                "Containers, streams and scopes that could not be looked at, in each round",
                job.failures + job.entries.failures,
            ),
        ):
            yield CounterMetricFamily(f"tailrace_controller_{name}", text, value)

    def _calls(self) -> Iterator[Metric]:
        statistics = self._controller.services.statistics
        calls = CounterMetricFamily(
            "tailrace_controller_calls", "Finished calls by name and gRPC status", labels=("call", "code")
        )
        for (rpc, code), count in sorted(statistics.calls.items()):
            calls.add_metric((rpc, CODE_NAMES[code]), count)
        yield calls
        durations = HistogramMetricFamily(
            "tailrace_controller_call_seconds", "How long calls took, by name", labels=("call",)
        )
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        for rpc, found in sorted(statistics.durations.items()):
            buckets = list(zip(bounds, itertools.accumulate(found.counts), strict=True))
            durations.add_metric((rpc,), buckets, found.sum_s)
        yield durations


def health_routes(controller: Controller, registry: CollectorRegistry) -> APIRouter:
    """Return the routes /ping, /v1/health, and the metrics: /metrics, or by Pravega's name /prometheus."""
    router = APIRouter(tags=["Health"])
    health = Health(controller)

    @router.get("/ping")
    async def ping() -> Response:
        return Response()

    @router.get("/metrics")
    @router.get("/prometheus")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/health")
    async def get_health() -> models.HealthResult:
        return health.result()

    @router.get("/v1/health/readiness")
    async def get_readiness() -> bool:
        return health.result().readiness

    @router.get("/v1/health/liveness")
    async def get_liveness() -> bool:
        return health.result().liveness

    @router.get("/v1/health/details")
    async def get_details() -> models.HealthDetails:
        return models.HealthDetails(details=health.result().details)

    @router.get("/v1/health/status")
    async def get_status() -> models.HealthStatusModel:
        return models.HealthStatusModel(status=health.result().status)

    @router.get("/v1/health/readiness/{name}")
    async def get_part_readiness(name: str) -> bool:
        return health.find(name).readiness

    @router.get("/v1/health/liveness/{name}")
    async def get_part_liveness(name: str) -> bool:
        return health.find(name).liveness

    @router.get("/v1/health/details/{name}")
    async def get_part_details(name: str) -> models.HealthDetails:
        return models.HealthDetails(details=health.find(name).details)

    @router.get("/v1/health/status/{name}")
    async def get_part_status(name: str) -> models.HealthStatusModel:
        return models.HealthStatusModel(status=health.find(name).status)

    @router.get("/v1/health/{name}")
    async def get_part(name: str) -> models.HealthResult:
        return health.find(name)

    return router
