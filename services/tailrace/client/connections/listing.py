"""List the segments of containers (docs/controller.md#segments-that-no-record-names)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.connections.pool import CONTROL_LANE
from tailrace.client.connections.replies import error_of
from tailrace.common import limits
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.client.connections.pool import RequestPool
    from tailrace.client.types import Endpoint


class SegmentLister:
    """Names of all segments, container by container; satisfies the controller's ``SegmentSource``.

    ``locate`` returns the endpoint of a container, and raises UnavailableError while it has no owner.
    """

    def __init__(self, pool: RequestPool, container_count: int, locate: Callable[[int], Endpoint]) -> None:
        self.container_count = container_count
        self._pool = pool
        self._locate = locate

    async def page(self, container_id: int, after: int) -> tuple[Sequence[str], int | None]:
        """Return names of segments with an id above `after` (-1: all), and where the next page begins; None: nowhere.

        Raises:
            UnavailableError: the container does not answer, or not in time.
        """
        connection = await self._pool.get(self._locate(container_id), CONTROL_LANE)
        reply = await connection.request(c.ListSegments(container_id, "", 0, after), limits.SEGMENT_LIST_DEADLINE_S)
        if not isinstance(reply, c.SegmentsListed):
            raise error_of(reply)
        return reply.segments, reply.last if reply.has_more and reply.last > after else None
