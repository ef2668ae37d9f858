"""Share connections, controller calls, segment operations, clock and entropy between the parts of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.config import ClientConfig
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.connections.tokens import TokenSource
from tailrace.client.control.controller import ControllerClient
from tailrace.client.control.transport import GrpcTransport
from tailrace.common.real_ports import SystemClock, SystemEntropy

if TYPE_CHECKING:
    from tailrace.client.config import Authorization, TlsOptions
    from tailrace.client.control.transport import ControllerTransport
    from tailrace.common.ports import Clock, Entropy


class ClientContext:
    """The shared part of writers, readers and managers; close it after them.

    ``controller`` is an address, a `ClientConfig`, or a transport. With a transport, `tls` and `authorization` apply to
    the segment stores; without `tls` they get that of a `GrpcTransport`.

    Raises BadRequestError for a malformed address or unusable TLS files.
    """

    def __init__(
        self,
        controller: str | ClientConfig | ControllerTransport,
        *,
        tls: TlsOptions | None = None,
        authorization: Authorization | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        config = ClientConfig(controller, tls, authorization) if isinstance(controller, str) else controller
        if isinstance(config, ClientConfig):
            tls, authorization = config.tls, config.authorization
            transport: ControllerTransport = GrpcTransport(config.controller, tls=tls, authorization=authorization)
        else:
            transport = config
        if tls is None and isinstance(transport, GrpcTransport):
            tls = transport.tls
        self.clock: Clock = clock or SystemClock()
        self.entropy: Entropy = entropy or SystemEntropy()
        self.pool = ConnectionPool(tls.context() if tls else None, tls.server_name if tls else None)
        self.controller = ControllerClient(transport, entropy=self.entropy)
        self.segments = SegmentClient(
            self.pool,
            self.controller.locate,
            forget=self.controller.forget,
            tokens=TokenSource(self.clock, self.controller.delegation_token if authorization else None),
            entropy=self.entropy,
        )

    async def close(self) -> None:
        """Close all connections. Calls in flight fail with ClientClosedError."""
        try:
            await self.pool.close()
        finally:
            await self.controller.close()
