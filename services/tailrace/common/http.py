"""Serving an ASGI application on a bound socket, inside a process that has its own loop and signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import uvicorn

from tailrace.common import limits
from tailrace.common.errors import StartError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """No handlers of its own."""
        yield


def listen(name: str, host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes a free one.

    Raises:
        StartError: the address cannot be taken; names it and why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets that say they are TCP; accepted ones repeat the listener
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(limits.LISTEN_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise StartError(f"{name} port {port} of {host}: {getattr(error, 'strerror', error)}") from error
    return listener


@contextlib.asynccontextmanager
async def serve_app(app: Callable[..., Any], listener: socket.socket) -> AsyncIterator[None]:
    """Serve while the context lasts."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(limits.CLOSE_DEADLINE_S),
    )
    server = _Server(config)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
