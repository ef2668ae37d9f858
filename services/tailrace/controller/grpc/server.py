"""Listen for gRPC clients of the controller (docs/protocol/controller.md#endpoint)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import structlog

from tailrace.cluster.endpoints import ListenerKind
from tailrace.common import limits
from tailrace.common.errors import StartError
from tailrace.common.http import listen
from tailrace.controller.grpc.adapter import generic_handlers

if TYPE_CHECKING:
    from tailrace.controller.calls.services import ControllerServices

_LOG = structlog.get_logger(__name__)


class ControllerServer:
    """Serve calls on one listener.

    ``port`` 0 chooses a free port, which `port` returns after `start`. ``advertise`` is the host that discovery
    returns, by default ``host``. With ``credentials`` the listener uses TLS.
    """

    def __init__(
        self,
        services: ControllerServices,
        host: str,
        port: int,
        *,
        advertise: str = "",
        listener: ListenerKind = ListenerKind.INTERNAL,
        credentials: grpc.ServerCredentials | None = None,
        connections_max: int = limits.RPC_CONNECTIONS_MAX,
        calls_max: int = limits.RPC_CONCURRENT_MAX,
    ) -> None:
        self._services = services
        self._host = host
        self._wanted_port = port
        self._advertise = advertise or host
        self._listener = listener
        self._credentials = credentials
        self._connections_max = connections_max
        self._calls_max = calls_max
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """Return the port of the listener; 0 before `start`."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises StartError when the address is not available."""
        pending_max = max(limits.RPC_PENDING_MIN, self._calls_max)
        server = grpc.aio.server(
            # Behind the bound of the handlers, which say why they refuse.
            maximum_concurrent_rpcs=2 * self._calls_max,
            options=[
                ("grpc.max_receive_message_length", limits.RPC_MESSAGE_MAX_BYTES),
                ("grpc.max_send_message_length", limits.RPC_MESSAGE_MAX_BYTES),
                ("grpc.max_allowed_incoming_connections", self._connections_max),
                # From 1000 on, as by default, gRPC would end some of them as CANCELLED, as if their clients had.
                ("grpc.server.max_pending_requests", pending_max),
                ("grpc.server.max_pending_requests_hard_limit", pending_max),
                ("grpc.so_reuseport", 0),  # a port in use is an error
                # A peer that vanished does not hold its place for two hours, as it does by default.
                ("grpc.keepalive_time_ms", int(1000 * limits.RPC_PING_AFTER_S)),
                ("grpc.http2.ping_timeout_ms", int(1000 * limits.RPC_PING_TIMEOUT_S)),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),  # as many as it takes
            ],
        )
        server.add_generic_rpc_handlers(generic_handlers(self._services, self._listener, self._calls_max))
        # Bind once before gRPC does: its own error has no reason, which it prints instead.
        listen("controller", self._host, self._wanted_port).close()
        address = f"[{self._host}]:{self._wanted_port}" if ":" in self._host else f"{self._host}:{self._wanted_port}"
        try:
            if self._credentials is None:
                self._port = server.add_insecure_port(address)
            else:
                self._port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise StartError(f"the controller cannot listen on {address}: {error}") from error
        if self._port == 0:
            raise StartError(f"the controller cannot listen on {address}")
        await server.start()
        self._server = server
        self._services.core.endpoints.append((self._advertise, self._port))
        _LOG.info("controller listens", address=address, port=self._port, listener=self._listener.value)

    async def close(self) -> None:
        """Refuse new calls, and wait a bounded time for running ones."""
        server, self._server = self._server, None
        if server is None:
            return
        self._services.core.endpoints.remove((self._advertise, self._port))
        await server.stop(limits.RPC_CLOSE_GRACE_S)
