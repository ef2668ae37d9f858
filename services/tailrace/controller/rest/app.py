"""Build the REST application: routes over the controller's calls, and errors as HTTP statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, ProcessCollector

from tailrace.common.errors import TailraceError
from tailrace.common.logs import LimitedLog
from tailrace.controller.rest.caller import Caller
from tailrace.controller.rest.groups import group_routes
from tailrace.controller.rest.health import ControllerCollector, health_routes
from tailrace.controller.rest.scopes import scope_routes
from tailrace.controller.rest.streams import stream_routes

if TYPE_CHECKING:
    from tailrace.common.loop_stalls import LoopStalls
    from tailrace.controller.app import Controller

_LOG = structlog.get_logger(__name__)


def create_app(
    controller: Controller, registry: CollectorRegistry | None = None, stalls: LoopStalls | None = None
) -> FastAPI:
    """Return the application of a controller; the caller serves it with uvicorn.

    ``registry`` is what ``/metrics`` shows; the controller's metrics are added to it, and ``stalls`` of its process.
    """
    app = FastAPI(title="Tailrace controller", docs_url=None, redoc_url=None)
    log = LimitedLog(_LOG)
    metrics = registry if registry is not None else CollectorRegistry()
    metrics.register(ControllerCollector(controller))
    if stalls is not None:
        metrics.register(stalls)
    ProcessCollector(registry=metrics)

    def caller_of(request: Request) -> Caller:
        return Caller(controller.services, request)

    async def on_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, TailraceError)
        log.info("request refused", path=request.url.path, reason=str(error))
        return JSONResponse({"detail": str(error)}, status_code=error.http_status)

    async def on_invalid(request: Request, error: Exception) -> JSONResponse:
        # Leave out the input: it may be large, secret, or not valid JSON.
        assert isinstance(error, RequestValidationError)
        detail = [{"type": item["type"], "loc": item["loc"], "msg": item["msg"]} for item in error.errors()]
        return JSONResponse({"detail": detail}, status_code=400)

    app.add_exception_handler(TailraceError, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.include_router(health_routes(controller, metrics))
    app.include_router(scope_routes(caller_of))
    app.include_router(group_routes(caller_of))
    app.include_router(stream_routes(caller_of, controller.services))
    return app
