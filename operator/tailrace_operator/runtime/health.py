"""Serve liveness, readiness and metrics of the operator over HTTP (ADR 0013)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector


class Health:
    """The state that the endpoint reports. The process sets the attributes."""

    def __init__(self) -> None:
        self.ready = False
        """The process leads, or is a standby."""
        self.leads = False
        self.liveness_problem: Callable[[], str | None] = lambda: None
        """Returns why the process is not alive; None: it is."""
        self.metric_values: Callable[[], dict[str, tuple[str, float]]] = dict
        """Returns the metrics: by name, a description and the value."""

    def app(self) -> FastAPI:
        """Return the application with ``/healthz``, ``/readyz`` and ``/metrics``."""
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

        async def healthz() -> Response:
            problem = self.liveness_problem()
            return PlainTextResponse(problem or "ok", 503 if problem else 200)

        async def readyz() -> Response:
            role = "leading" if self.leads else "standing by"
            return PlainTextResponse(role if self.ready else "starting", 200 if self.ready else 503)

        async def metrics() -> Response:
            return Response(self._exposition(), media_type=CONTENT_TYPE_LATEST)

        app.add_api_route("/healthz", healthz, methods=["GET"], response_model=None)
        app.add_api_route("/readyz", readyz, methods=["GET"], response_model=None)
        app.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)
        return app

    def _exposition(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(
            _Metrics({"leads": ("Whether this process is the active one", self.leads), **self.metric_values()})
        )
        ProcessCollector(registry=registry)
        return generate_latest(registry)


class _Metrics(Collector):
    """Values by name; those whose names end in ``_total`` are counters."""

    def __init__(self, values: Mapping[str, tuple[str, float]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """Return the values."""
        for name, (description, value) in self._values.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"tailrace_operator_{name}", description, value=value)
