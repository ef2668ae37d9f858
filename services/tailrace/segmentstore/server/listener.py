"""The server: listens, owns the connections, and runs the tasks that outlive them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from tailrace.common import limits
from tailrace.common.auth import account_nothing, allow_all
from tailrace.common.closing import close_server
from tailrace.common.keepalive import probe_silent_peers
from tailrace.common.logs import LimitedLog
from tailrace.segmentstore.server.connection import OLDEST_WIRE_VERSION, Connection
from tailrace.segmentstore.server.context import ServerContext
from tailrace.segmentstore.server.gone_peers import GonePeers
from tailrace.segmentstore.server.in_process import InProcessRequests
from tailrace.segmentstore.server.large_replies import LargeReplyTurns
from tailrace.segmentstore.server.places import Places
from tailrace.segmentstore.server.receiving import ReceiveRoom
from tailrace.segmentstore.server.unanswered import Unanswered
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
    """Serves the segment store protocol for the containers of a registry (docs/design.md#processes).

    ``authorize`` and ``account`` are hooks; by default all is allowed and nothing is accounted.
    """

    def __init__(
        self,
        registry: ContainerRegistry,
        budgets: InFlightBudget,
        clock: Clock,
        entropy: Entropy,
        *,
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
        self.connections_max = connections_max
        self._refused = 0
        self.refused_total = 0
        """How many connections were refused because there were ``connections_max``, and none that gives way."""
        self._next_refusal_report: asyncio.TimerHandle | None = None
        self._closing = False
        self._all_gone = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._log = structlog.get_logger("tailrace.segmentstore.server")
        receiving = receiving or ReceiveRoom(loop)
        receiving.bound_by(budgets)
        self._context = ServerContext(
            registry=registry,
            in_flight=budgets,
            unsent=unsent or UnsentReplies(loop),
            unanswered=Unanswered(),
            places=Places(),
            large_replies=LargeReplyTurns(),
            clock=clock,
            entropy=entropy,
            authorize=authorize,
            account=account,
            receiving=receiving,
            gone_peers=GonePeers(loop),
            log=LimitedLog(self._log),
            background=self._background,
            oldest_version=oldest_version,
        )

    def in_process(self) -> InProcessRequests:
        """Return what serves requests of this process without a connection; close it before the server."""
        return InProcessRequests(self._context)

    async def start(self, host: str, port: int, ssl: ssl_module.SSLContext | None = None) -> tuple[str, int]:
        """Listen on `host` and `port` (0 for an ephemeral one); return the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, port, ssl=ssl)
        for listener in self._server.sockets:
            probe_silent_peers(listener)
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def start_on(self, listener: socket.socket, ssl: ssl_module.SSLContext | None = None) -> None:
        """Listen on a bound socket that the parent process holds too, so that the port outlives this process."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=listener, ssl=ssl)

    @property
    def unanswered(self) -> int:
        """Return the number of requests without a reply."""
        return self._context.unanswered.requests

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    async def close(self) -> None:
        """Stop listening, end all connections, and wait for their background tasks."""
        self._closing = True
        if self._server is not None:
            await close_server(self._server)
        if self._next_refusal_report is not None:
            self._next_refusal_report.cancel()
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
        elif self._context.places.taken > self.connections_max and not connection.makes_room():
            self._refuse(connection)

    def _refuse(self, connection: Connection) -> None:
        """Close a connection above the limit at once; a flood is logged ``limits.REFUSALS_LOGGED_EVERY_S`` apart."""
        connection.end()
        self._refused += 1
        self.refused_total += 1
        if self._next_refusal_report is None:
            self._report_refusals()

    def _report_refusals(self) -> None:
        self._next_refusal_report = None
        if self._refused:
            self._log.warning("connections refused", refused=self._refused, connections_max=self.connections_max)
            self._refused = 0
            loop = asyncio.get_running_loop()
            self._next_refusal_report = loop.call_later(limits.REFUSALS_LOGGED_EVERY_S, self._report_refusals)

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
            self._log.error("background task failed", reason=str(error), exc_info=error)
