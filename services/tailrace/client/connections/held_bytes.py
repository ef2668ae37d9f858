"""Ask segment stores what streams hold in Tier 2 (docs/controller.md#bytes-that-streams-hold)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.connections.pool import CONTROL_LANE
from tailrace.client.connections.replies import error_of
from tailrace.common import limits
from tailrace.common.errors import ProtocolError
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.client.connections.pool import RequestPool
    from tailrace.client.types import Endpoint


class HeldBytesClient:
    """Bytes that streams hold, container by container; satisfies the controller's ``HeldBytesSource``.

    ``locate`` returns the endpoint of a container, and raises UnavailableError while it has no owner.
    """

    def __init__(self, pool: RequestPool, container_count: int, locate: Callable[[int], Endpoint]) -> None:
        self.container_count = container_count
        self._pool = pool
        self._locate = locate

    async def page(self, container_id: int, after: str) -> tuple[Sequence[tuple[str, int]], str | None]:
        """Return streams behind `after` ("": all), by name, with their bytes, and where the next page begins.

        None: there is no other page.

        Raises:
            UnavailableError: the container does not answer, or not in time.
        """
        connection = await self._pool.get(self._locate(container_id), CONTROL_LANE)
        reply = await connection.request(c.GetStreamBytes(container_id, "", 0, after), limits.HELD_BYTES_DEADLINE_S)
        if not isinstance(reply, c.StreamBytesListed):
            raise error_of(reply)
        if len(reply.streams) != len(reply.held_bytes):
            raise ProtocolError(f"{len(reply.held_bytes)} figures for {len(reply.streams)} streams")
        found = list(zip(reply.streams, reply.held_bytes, strict=True))
        return found, found[-1][0] if reply.has_more and found and found[-1][0] > after else None
