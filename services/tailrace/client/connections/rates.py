"""Ask segment stores how fast segments are written (docs/controller.md#automatic-scaling)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.client.connections.pool import CONTROL_LANE
from tailrace.client.connections.replies import error_of
from tailrace.common import limits
from tailrace.common.errors import DeadlineError
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.client.connections.pool import RequestPool
    from tailrace.client.types import Endpoint


class RateClient:
    """Rates of all segments, container by container; satisfies the controller's ``RateSource``.

    ``locate`` returns the endpoint of a container, and raises UnavailableError while it has no owner.
    """

    def __init__(self, pool: RequestPool, container_count: int, locate: Callable[[int], Endpoint]) -> None:
        self.container_count = container_count
        self._pool = pool
        self._locate = locate

    async def rates(self, container_id: int, windows_ms: Sequence[int]) -> list[c.MeasuredRate]:
        """Return the rates of the container's segments that have a rate policy.

        Raises:
            UnavailableError: the container does not answer, or not in time.
        """
        found: list[c.MeasuredRate] = []
        has_more = True
        try:
            async with asyncio.timeout(limits.SCALING_RATES_DEADLINE_S):
                while has_more:
                    after = found[-1].segment_id if found else -1
                    connection = await self._pool.get(self._locate(container_id), CONTROL_LANE)
                    request = c.GetSegmentRates(container_id, "", 0, after, list(windows_ms))
                    reply = await connection.request(request, limits.CLIENT_REPLY_DEADLINE_S)
                    if not isinstance(reply, c.SegmentRates):
                        raise error_of(reply)
                    found += reply.measured
                    has_more = reply.has_more and bool(reply.measured)
        except TimeoutError as error:
            seconds = limits.SCALING_RATES_DEADLINE_S
            raise DeadlineError(f"container {container_id} did not report its rates in {seconds:g} s") from error
        return found
