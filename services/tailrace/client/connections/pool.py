"""Share connections to segment stores between all parts of a client (docs/design.md#client)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.client.connections.connection import Connection, connect
from tailrace.common.errors import ClientClosedError

if TYPE_CHECKING:
    import ssl

    from tailrace.client.types import Endpoint
    from tailrace.wire import commands as c


CONTROL_LANE: Final = "control"
"""The lane of requests that have one reply and wait for nothing."""


class Requests(Protocol):
    """Takes requests and returns their replies: a `Connection`, or a segment store in this process."""

    async def request(self, command: Any, deadline_s: float | None = ...) -> c.Command:
        """See `Connection.request`."""
        ...


class RequestPool(Protocol):
    """Finds who answers requests to an endpoint."""

    async def get(self, endpoint: Endpoint, lane: str = ...) -> Requests:
        """See `ConnectionPool.get`."""
        ...


class ConnectionPool:
    """Shared connections by endpoint and lane.

    Lanes separate traffic that could delay other traffic: a server that stops reading a connection because of appends
    must not delay reads.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, server_name: str | None = None) -> None:
        self._tls = tls
        self._server_name = server_name if tls is not None else None
        self._connections: dict[tuple[Endpoint, str], asyncio.Task[Connection]] = {}
        self._retired: list[Connection] = []
        self._open = True

    async def get(self, endpoint: Endpoint, lane: str = CONTROL_LANE) -> Connection:
        """Return an open connection. Several callers share one attempt to open it.

        Raises:
            ConnectionLostError, UnsupportedError. ClientClosedError.
        """
        if not self._open:
            raise ClientClosedError
        key = (endpoint, lane)
        task = self._connections.get(key)
        if task is None or self._is_spent(task):
            task = asyncio.create_task(connect(endpoint, self._tls, self._server_name), name=f"connect {endpoint}")
            task.add_done_callback(_look_at)
            self._connections[key] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _is_being_cancelled():
                raise ClientClosedError from None  # `close` cancelled the attempt, not the caller
            raise

    def retire(self, endpoint: Endpoint, lane: str, connection: Connection) -> None:
        """Open a new connection for the next caller; present users keep this one until they finish."""
        task = self._connections.get((endpoint, lane))
        if task is not None and task.done() and not self._is_spent(task) and task.result() is connection:
            del self._connections[endpoint, lane]
            self._retired = [other for other in self._retired if other.is_open]
            self._retired.append(connection)
            connection.retire()

    @staticmethod
    def _is_spent(task: asyncio.Task[Connection]) -> bool:
        if not task.done():
            return False
        return task.cancelled() or task.exception() is not None or not task.result().is_open

    async def close(self) -> None:
        """Close all connections at once, and wait until their transports are closed."""
        self._open = False
        tasks, self._connections = list(self._connections.values()), {}
        connections, self._retired = self._retired, []
        for task in tasks:
            if not task.cancel() and not task.cancelled() and task.exception() is None:
                connections.append(task.result())
        for connection in connections:
            connection.abort()
        if tasks:
            await asyncio.wait(tasks)
        for connection in connections:
            await connection.close()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _look_at(task: asyncio.Task[Connection]) -> None:
    """Read the attempt's error: no caller may be left that does."""
    if not task.cancelled():
        task.exception()
