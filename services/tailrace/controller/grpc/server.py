"""The controller's gRPC server (controller §1)."""

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
    """Listens for one kind of clients and passes their calls on.

    ``port`` 0 takes a free one; `port` tells which after `start`. ``advertise`` is the host that discovery gives to
    clients, by default the one listened on. ``credentials`` make the listener a TLS one.
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
    ) -> None:
        self._services = services
        self._host = host
        self._wanted_port = port
        self._advertise = advertise or host
        self._listener = listener
        self._credentials = credentials
        self._connections_max = connections_max
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port listened on; 0 before `start`."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises StartError when the address cannot be taken."""
        server = grpc.aio.server(
            maximum_concurrent_rpcs=limits.RPC_CONCURRENT_MAX,
            options=[
                ("grpc.max_receive_message_length", limits.RPC_MESSAGE_MAX_BYTES),
                ("grpc.max_send_message_length", limits.RPC_MESSAGE_MAX_BYTES),
                ("grpc.max_allowed_incoming_connections", self._connections_max),
                ("grpc.so_reuseport", 0),  # a port in use is an error, not a way to share it
            ],
        )
        server.add_generic_rpc_handlers(generic_handlers(self._services, self._listener))
        # gRPC prints why it cannot have a port and raises something vague; asking first gives one clear line.
        listen("controller", self._host, self._wanted_port).close()
        address = f"[{self._host}]:{self._wanted_port}" if ":" in self._host else f"{self._host}:{self._wanted_port}"
        try:
            if self._credentials is None:
                self._port = server.add_insecure_port(address)
            else:
                self._port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise StartError(f"controller cannot listen on {address}: {error}") from error
        if self._port == 0:
            raise StartError(f"controller cannot listen on {address}")
        await server.start()
        self._server = server
        self._services.core.endpoints.append((self._advertise, self._port))
        _LOG.info("controller listens", address=address, port=self._port, listener=self._listener.value)

    async def close(self) -> None:
        """Take no new calls, and give those that run a moment to end."""
        server, self._server = self._server, None
        if server is None:
            return
        self._services.core.endpoints.remove((self._advertise, self._port))
        await server.stop(limits.RPC_CLOSE_GRACE_S)
