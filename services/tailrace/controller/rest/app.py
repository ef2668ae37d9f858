"""The REST application: routes over the controller's services, errors as statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry

from tailrace.common.errors import TailraceError
from tailrace.controller.rest.caller import Caller
from tailrace.controller.rest.health import ControllerCollector, health_routes
from tailrace.controller.rest.scopes import scope_routes
from tailrace.controller.rest.streams import stream_routes

if TYPE_CHECKING:
    from tailrace.controller.app import Controller

_LOG = structlog.get_logger(__name__)


def create_app(controller: Controller, registry: CollectorRegistry | None = None) -> FastAPI:
    """The application for a started controller; a server (uvicorn) is put in front of it by whoever composes.

    ``registry`` is what ``/prometheus`` shows; the controller's metrics are added to it.
    """
    app = FastAPI(title="Tailrace controller", docs_url=None, redoc_url=None)
    metrics = registry if registry is not None else CollectorRegistry()
    metrics.register(ControllerCollector(controller))

    def caller_of(request: Request) -> Caller:
        return Caller(controller.services, request)

    async def on_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, TailraceError)
        _LOG.info("request refused", path=request.url.path, reason=str(error))
        return JSONResponse({"detail": str(error)}, status_code=error.http_status)

    async def on_invalid(request: Request, error: Exception) -> JSONResponse:
        # Without the input itself, which may be large, secret, or nothing that JSON can say.
        assert isinstance(error, RequestValidationError)
        detail = [{"type": item["type"], "loc": item["loc"], "msg": item["msg"]} for item in error.errors()]
        return JSONResponse({"detail": detail}, status_code=422)

    app.add_exception_handler(TailraceError, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.include_router(health_routes(controller, metrics))
    app.include_router(scope_routes(caller_of))
    app.include_router(stream_routes(caller_of, controller.services))
    return app
