"""Share connections to segment stores between all parts of a client (docs/design.md#client)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.client.connections.connection import Connection, connect
from tailrace.common import limits
from tailrace.common.errors import ClientClosedError, OverloadedError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from tailrace.client.connections.left_reads import ReadPlace
    from tailrace.client.types import Endpoint
    from tailrace.common.errors import TailraceError
    from tailrace.wire import commands as c


_Key = tuple["Endpoint", str, int]
"""Endpoint, lane, and the connection's number in the lane."""

CONTROL_LANE: Final = "control"
"""The lane of requests that have one reply and wait for nothing."""


class Requests(Protocol):
    """Takes requests and returns their replies: a `Connection`, or a segment store in this process."""

    async def request(self, command: Any, deadline_s: float | None = ...) -> c.Command:
        """See `Connection.request`."""
        ...

    async def request_all(
        self, commands: Sequence[Any], deadline_s: float | None = ...
    ) -> Sequence[c.Command | TailraceError]:
        """See `Connection.request_all`."""
        ...


class RequestPool(Protocol):
    """Finds who answers requests to an endpoint."""

    async def get(self, endpoint: Endpoint, lane: str = ..., place: ReadPlace | None = ...) -> Requests:
        """See `ConnectionPool.get`."""
        ...


class ConnectionPool:
    """Shared connections by endpoint and lane.

    Lanes separate traffic that could delay other traffic: a server that stops reading a connection because of appends
    must not delay reads. A lane has another connection where the first ones have no room for more requests: a server
    closes one with ``limits.REQUESTS_PER_CONNECTION_MAX`` of them, and reads at the ends of idle segments stay.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, server_name: str | None = None) -> None:
        self._tls = tls
        self._server_name = server_name if tls is not None else None
        self._connections: dict[_Key, asyncio.Task[Connection]] = {}
        self._retired: list[Connection] = []
        self._open = True

    async def get(self, endpoint: Endpoint, lane: str = CONTROL_LANE, place: ReadPlace | None = None) -> Connection:
        """Return an open connection with room for a request that is made at once. Several callers share one attempt.

        ``place``: where a read begins. The connection on which a cancelled read of it waits comes first.

        Raises:
            ConnectionLostError, UnsupportedError. ClientClosedError. OverloadedError: all connections of the lane are
            full.
        """
        if place is not None:
            number = 0
            while (key := (endpoint, lane, number)) in self._connections:
                known = self._opened(key)
                if known is not None and known.has_left(place):
                    return known
                number += 1
        for number in range(limits.CLIENT_CONNECTIONS_PER_LANE_MAX):
            connection = await self._connected((endpoint, lane, number))
            if connection.left_reads >= limits.CLIENT_LEFT_READS_MAX:
                self.retire(endpoint, lane, connection)
                connection = await self._connected((endpoint, lane, number))
            if connection.has_room:
                return connection
        count = limits.CLIENT_CONNECTIONS_PER_LANE_MAX
        raise OverloadedError(
            f"{count * limits.CLIENT_REQUESTS_IN_FLIGHT_MAX} requests wait at segment store {endpoint}"
            f" on {count} connections, which is the maximum of one client"
        )

    async def _connected(self, key: _Key) -> Connection:
        if not self._open:
            raise ClientClosedError
        task = self._connections.get(key)
        if task is None or self._is_spent(task):
            endpoint = key[0]
            task = asyncio.create_task(connect(endpoint, self._tls, self._server_name), name=f"connect {endpoint}")
            task.add_done_callback(_look_at)
            self._connections[key] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _is_being_cancelled():
                raise ClientClosedError from None  # `close` cancelled the attempt, not the caller
            raise

    def _opened(self, key: _Key) -> Connection | None:
        task = self._connections.get(key)
        return None if task is None or not task.done() or self._is_spent(task) else task.result()

    def retire(self, endpoint: Endpoint, lane: str, connection: Connection) -> None:
        """Open a new connection for the next caller; present users keep this one until they finish.

        Of those on which cancelled reads wait only some are kept: their other reads begin again elsewhere.
        """
        for number in range(limits.CLIENT_CONNECTIONS_PER_LANE_MAX):
            if self._opened((endpoint, lane, number)) is connection:
                del self._connections[endpoint, lane, number]
                self._retired = [other for other in self._retired if other.is_open]
                self._retired.append(connection)
                connection.retire()
        crowded = [other for other in self._retired if other.left_reads and other.endpoint == endpoint]
        for other in crowded[: max(0, len(crowded) - limits.CLIENT_RETIRED_CONNECTIONS_MAX)]:
            other.abort()

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
