"""A server of a test's event loop that leaves no connection open, wherever the test ends.

A server of ``asyncio.start_server`` leaves one open whose handler is cancelled with the loop, or was not begun. The
cycle collector finds it much later, and some other test fails for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tailrace.common.closing import close_server

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class StreamServer:
    """Serves connections with a coroutine each, which need not close them. An error of one is raised by ``close``."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._errors: list[BaseException] = []

    async def start(self, **options: Any) -> None:
        """Listen on a port of 127.0.0.1, or on ``sock``; further options as asyncio.start_server has."""
        options = options if "sock" in options else {"host": "127.0.0.1", "port": 0, **options}
        self._server = await asyncio.start_server(self._accept, **options)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port at which it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def connections(self) -> list[asyncio.StreamWriter]:
        """Those that are served, oldest first."""
        return list(self._tasks.values())

    def cut_connections(self) -> None:
        """End all connections."""
        for writer in self._tasks.values():
            writer.transport.abort()

    async def close(self) -> None:
        """Stop listening, end all connections and what serves them. Raises BaseExceptionGroup: errors of serving."""
        assert self._server is not None
        await close_server(self._server)
        self.cut_connections()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn
        if self._errors:
            raise BaseExceptionGroup("serving failed", self._errors)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve_one(reader, writer))
        self._tasks[task] = writer
        task.add_done_callback(self._end)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # the client has given up
            await self._serve(reader, writer)
            writer.close()  # after what is written
            await writer.wait_closed()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task).transport.abort()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)


@contextlib.asynccontextmanager
async def stream_server(serve: Serve, **options: Any) -> AsyncIterator[StreamServer]:
    """Serve while the context lasts; ``options`` as `StreamServer.start`."""
    server = StreamServer(serve)
    await server.start(**options)
    try:
        yield server
    finally:
        await server.close()


async def read_to_the_end(peer: socket.socket) -> None:
    """Wait until the other side has ended the connection of this socket, which does not block."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.get_running_loop().sock_recv(peer, 1 << 16):
            pass
