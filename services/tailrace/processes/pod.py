"""What the main processes of all pods share: health checks, and an orderly end.

See docs/design.md#processes, ADR 0013.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from tailrace.common.errors import StartError
from tailrace.common.process_exit import stop_on_signals
from tailrace.common.task_groups import run_until_first

_logger = structlog.get_logger()


class Pod(Protocol):
    """The main process of a pod."""

    async def start(self) -> None:
        """Begin to serve. Raises StartError, and closes what it has opened."""
        ...

    async def wait_ended(self) -> str:
        """Return the reason when the pod cannot go on; most pods never return."""
        ...

    async def leave(self) -> None:
        """Become not ready, and hand over what the pod has, within a bound."""
        ...

    async def close(self) -> None:
        """Stop serving."""
        ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """What ``/readyz`` returns: the reasons why the pod is not ready, and ``details`` for people."""

    ready: bool
    reasons: list[str]
    details: dict[str, Any]


def add_health(app: FastAPI, readiness: Callable[[], Readiness]) -> None:
    """Add ``/healthz`` and ``/readyz`` to an application."""

    @app.get("/healthz")
    async def live() -> dict[str, Any]:
        return {"live": True}

    @app.get("/readyz")
    async def ready() -> JSONResponse:
        now = readiness()
        content = {"ready": now.ready, "reasons": now.reasons, **now.details}
        return JSONResponse(content, status_code=200 if now.ready else 503)


async def start_or_close(start: Callable[[], Any], stack: contextlib.AsyncExitStack) -> None:
    """Run `start`; close the stack when it fails."""
    try:
        await start()
    except BaseException:
        await stack.aclose()
        raise


async def run_pod(pod: Pod, name: str, serving: Mapping[str, object]) -> None:
    """Serve until a signal of `stop_on_signals`, then let the pod leave. Logs ``serving``.

    Raises:
        StartError: the pod cannot start, or cannot go on.
    """
    stop = stop_on_signals()
    await pod.start()
    try:
        _logger.info("serving", **serving)
        if reason := await run_until_first(pod.wait_ended(), _signalled(stop)):
            raise StartError(f"{name} ends: {reason}")
        _logger.info("leaving", **serving)
        await pod.leave()
        _logger.info("left", **serving)
    finally:
        await pod.close()


async def _signalled(stop: asyncio.Event) -> str:
    await stop.wait()
    return ""
