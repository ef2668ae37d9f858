"""What the parts of one client share: connections, the controller, segment operations, clock and entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.controller import ControllerClient
from tailrace.client.pool import ConnectionPool
from tailrace.client.segments import SegmentClient
from tailrace.common.realports import SystemClock, SystemEntropy

if TYPE_CHECKING:
    import ssl

    from tailrace.client.transport import ControllerTransport
    from tailrace.common.ports import Clock, Entropy


class ClientContext:
    """Shared by writers, readers and managers; close it after them."""

    def __init__(
        self,
        controller: str | ControllerTransport,
        *,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.entropy: Entropy = entropy or SystemEntropy()
        self.pool = ConnectionPool(tls)
        self.controller = ControllerClient(controller, entropy=self.entropy)
        self.segments = SegmentClient(
            self.pool, self.controller.locate, forget=self.controller.forget, entropy=self.entropy
        )

    async def close(self) -> None:
        """Close all connections."""
        await self.pool.close()
        await self.controller.close()
