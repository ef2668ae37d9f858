"""Whether the operator's process is alive and ready, and its metrics, over HTTP (ADR 0013)."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


class Health:
    """What the endpoint answers. The process sets the attributes as it goes."""

    def __init__(self) -> None:
        self.ready = False
        """It leads, or stands by and hears from the API."""
        self.leads = False
        self.trouble: Callable[[], str | None] = lambda: None
        """Why the process is not alive; None: it is."""
        self.figures: Callable[[], dict[str, tuple[str, float]]] = dict
        """Metrics: name, then what it is and its value."""

    def app(self) -> FastAPI:
        """``/healthz``, ``/readyz``, ``/metrics``."""
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

        async def healthz() -> Response:
            trouble = self.trouble()
            return PlainTextResponse(trouble or "ok", 503 if trouble else 200)

        async def readyz() -> Response:
            told = "leading" if self.leads else "standing by"
            return PlainTextResponse(told if self.ready else "not yet", 200 if self.ready else 503)

        async def metrics() -> Response:
            return Response(self._exposition(), media_type=CONTENT_TYPE_LATEST)

        app.add_api_route("/healthz", healthz, methods=["GET"], response_model=None)
        app.add_api_route("/readyz", readyz, methods=["GET"], response_model=None)
        app.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)
        return app

    def _exposition(self) -> bytes:
        registry = CollectorRegistry()
        Gauge("tailrace_operator_leads", "Whether this process is the active one", registry=registry).set(self.leads)
        for name, (what, value) in self.figures().items():
            Gauge(f"tailrace_operator_{name}", what, registry=registry).set(value)
        return generate_latest(registry)
