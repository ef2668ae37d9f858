"""Serve liveness, readiness and metrics of the operator over HTTP (ADR 0013)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector


class Health:
    """The state that the endpoint reports. The process sets the attributes."""

    def __init__(self) -> None:
        self.ready = False
        """The process leads, or is a standby."""
        self.leads = False
        self.missing_kinds: Mapping[str, str] = {}
        """Kinds of resources that this process waits for while it leads, and why."""
        self.liveness_problem: Callable[[], str | None] = lambda: None
        """Returns why the process is not alive; None: it is."""
        self.metrics: Callable[[], Iterator[Metric]] = lambda: iter(())
        """Returns the metrics of what runs while this process leads."""

    def app(self) -> FastAPI:
        """Return the application with ``/healthz``, ``/readyz`` and ``/metrics``."""
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

        async def healthz() -> Response:
            problem = self.liveness_problem()
            return PlainTextResponse(problem or "ok", 503 if problem else 200)

        async def readyz() -> Response:
            return PlainTextResponse(self._role() if self.ready else "starting", 200 if self.ready else 503)

        async def metrics() -> Response:
            return Response(self._exposition(), media_type=CONTENT_TYPE_LATEST)

        app.add_api_route("/healthz", healthz, methods=["GET"], response_model=None)
        app.add_api_route("/readyz", readyz, methods=["GET"], response_model=None)
        app.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)
        return app

    def _role(self) -> str:
        if not self.leads:
            return "standing by"
        missing = "; ".join(f"{kind}: {why}" for kind, why in sorted(self.missing_kinds.items()))
        return f"leading, but without kinds that are not installed: {missing}" if missing else "leading"

    def _exposition(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Metrics(self))
        ProcessCollector(registry=registry)
        return generate_latest(registry)


class _Metrics(Collector):
    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """Return the current values."""
        about = "Whether this process is the active one"
        yield GaugeMetricFamily("tailrace_operator_leads", about, value=self._health.leads)
        yield from self._health.metrics()
