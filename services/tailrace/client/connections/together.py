"""Send requests for several segments together, once; what has no reply is asked for again by itself."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from tailrace.client.connections.pool import CONTROL_LANE, RequestPool
from tailrace.common.errors import ConnectionLostError, DeadlineError, TailraceError, UnavailableError
from tailrace.common.task_groups import gather_bounded
from tailrace.wire.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.client.types import Endpoint


class Located(Protocol):
    """What `first_replies` needs of a `SegmentClient`."""

    @property
    def pool(self) -> RequestPool:
        """Return who answers requests, by endpoint."""
        ...

    async def locate(self, segment: str) -> Endpoint:
        """See `SegmentClient.locate`."""
        ...

    def forget(self, segment: str) -> None:
        """See `SegmentClient.forget`."""
        ...

    async def token(self, segment: str) -> str:
        """See `SegmentClient.token`."""
        ...


async def first_replies(
    client: Located, segments: Sequence[str], make: Callable[[str, str], Command], ends_s: float
) -> dict[str, Command]:
    """Send a request for each segment, those of one endpoint together; return the replies, by segment.

    ``make`` returns the request for a segment and its token; ``ends_s`` is the deadline on the loop's clock. A request
    without a reply may have taken effect.
    """
    found: dict[str, Command] = {}

    async def ask(place: tuple[Endpoint, list[tuple[str, Command]]]) -> None:
        endpoint, asked = place
        replies: Sequence[Command | TailraceError]
        try:
            requests = await client.pool.get(endpoint, CONTROL_LANE)
            replies = await requests.request_all([command for _, command in asked])
        except UnavailableError as error:
            replies = [error] * len(asked)
        for (segment, _), reply in zip(asked, replies, strict=True):
            if isinstance(reply, Command):
                found[segment] = reply
            elif isinstance(reply, ConnectionLostError | DeadlineError):
                client.forget(segment)

    places: dict[Endpoint, list[tuple[str, Command]]] = {}
    with contextlib.suppress(UnavailableError, TimeoutError):
        async with asyncio.timeout_at(ends_s):
            for segment in segments:
                command = make(segment, await client.token(segment))
                places.setdefault(await client.locate(segment), []).append((segment, command))
            await gather_bounded(places.items(), ask)
    return found
