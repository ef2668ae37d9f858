"""The server: listens, and owns the connections and what outlives them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from tailrace.common import limits
from tailrace.common.auth import account_nothing, allow_all
from tailrace.segmentstore.server.connection import OLDEST_WIRE_VERSION, Connection
from tailrace.segmentstore.server.context import ServerContext, Unanswered
from tailrace.segmentstore.server.receiving import ReceiveRoom
from tailrace.segmentstore.server.unsent import UnsentReplies

if TYPE_CHECKING:
    import socket
    import ssl as ssl_module
    from collections.abc import Coroutine

    from tailrace.common.auth import Account, Authorize
    from tailrace.common.ports import Clock, Entropy
    from tailrace.segmentstore.server.budgets import InFlightBudget
    from tailrace.segmentstore.server.registry import ContainerRegistry


class SegmentStoreServer:
    """Serves the segment store protocol for the containers of a registry (design §1)."""

    def __init__(
        self,
        registry: ContainerRegistry,
        budgets: InFlightBudget,
        clock: Clock,
        entropy: Entropy,
        authorize: Authorize = allow_all,
        account: Account = account_nothing,
        unsent: UnsentReplies | None = None,
        receiving: ReceiveRoom | None = None,
        connections_max: int = limits.CONNECTIONS_MAX,
        oldest_version: int = OLDEST_WIRE_VERSION,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._connections: dict[Connection, None] = {}
        self._connections_max = connections_max
        self._refused = 0
        self._refusals_told: asyncio.TimerHandle | None = None
        self._closing = False
        self._all_gone = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._log = structlog.get_logger("tailrace.segmentstore.server")
        receiving = receiving or ReceiveRoom(loop)
        receiving.bound_by(budgets)
        self._context = ServerContext(
            registry,
            budgets,
            unsent or UnsentReplies(loop),
            Unanswered(),
            clock,
            entropy,
            authorize,
            account,
            receiving,
            self._log,
            self._background,
            oldest_version,
        )

    async def start(self, host: str, port: int, ssl: ssl_module.SSLContext | None = None) -> tuple[str, int]:
        """Listen on `host` and `port` (0 for an ephemeral one); returns the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, port, ssl=ssl)
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def start_on(self, listener: socket.socket, ssl: ssl_module.SSLContext | None = None) -> None:
        """Listen on a bound socket that somebody else holds too, so that the port outlives this process."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=listener, ssl=ssl)

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer."""
        return self._context.unanswered.requests

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def close(self) -> None:
        """Stop listening, end all connections, and wait for what they leave behind."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        if self._refusals_told is not None:
            self._refusals_told.cancel()
        for connection in list(self._connections):
            connection.end()
        if self._connections:
            # A connection cuts itself off after the same time, so this ends.
            await self._all_gone.wait()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=limits.CLOSE_FLUSH_DEADLINE_S)
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _connection(self) -> Connection:
        return Connection(self._context, self._made, self._gone)

    def _made(self, connection: Connection) -> None:
        self._connections[connection] = None
        self._all_gone.clear()
        if self._closing:
            connection.fail("the server is closing")
        elif len(self._connections) > self._connections_max:
            self._refuse(connection)

    def _refuse(self, connection: Connection) -> None:
        """One connection too many: closed at once; of a flood of them one line is logged now and then."""
        connection.end()
        self._refused += 1
        if self._refusals_told is None:
            self._tell_refusals()

    def _tell_refusals(self) -> None:
        self._refusals_told = None
        if self._refused:
            self._log.warning("connections refused", refused=self._refused, connections_max=self._connections_max)
            self._refused = 0
            loop = asyncio.get_running_loop()
            self._refusals_told = loop.call_later(limits.REFUSALS_LOGGED_EVERY_S, self._tell_refusals)

    def _gone(self, connection: Connection) -> None:
        del self._connections[connection]
        if not self._connections:
            self._all_gone.set()

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("work after a connection failed", reason=str(error), exc_info=error)
