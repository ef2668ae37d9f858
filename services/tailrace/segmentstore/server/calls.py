"""What a request handler receives, and how handlers are declared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tailrace.common.auth import AccessLevel
from tailrace.wire.command import Command

if TYPE_CHECKING:
    from tailrace.segmentstore.api import SegmentContainer
    from tailrace.segmentstore.server.context import ServerContext
    from tailrace.segmentstore.server.outbox import Outbox
    from tailrace.segmentstore.tables.types import TableOperations


@dataclass(slots=True)
class Call:
    """What a handler receives: the segment's container and the state of the connection.

    ``outbox`` is None for a request that came without a connection. ``transients`` are the existing transient segments
    that the connection created.
    """

    context: ServerContext
    container: SegmentContainer
    outbox: Outbox | None
    transients: dict[str, SegmentContainer]

    @property
    def tables(self) -> TableOperations:
        """Return the table segments of the container."""
        return self.context.registry.table_service(self.container)


async def confirmed(container: SegmentContainer) -> None:
    """Return once the container has confirmed its ownership (docs/design.md#stale-owners). Raises WrongHostError."""
    if not container.may_answer():
        await container.wait_owner()


Reply: TypeAlias = Command | bytes
HandlerFunction: TypeAlias = Callable[[Call, Any], Awaitable[Reply]]


class Begun(NamedTuple):
    """A change that is staged: its reply counts when ``durable`` is done, which raises its error."""

    durable: asyncio.Future[None]
    reply: Command


@dataclass(frozen=True, slots=True)
class Handler:
    """How a request is served.

    - ``segment_field``: the request's field that decides the container and is authorized at ``level``. Empty for
      commands that name a container.
    - ``waits``: the request has no deadline; it may wait until its connection ends, which cancels it.
    - ``reply_bytes``: returns how large the reply may become, for commands with large replies.
    - ``copies``: how many copies of the request's data are in memory while it is served.
    - ``changes``: success means that the change is in the log, which confirms ownership, or that there was nothing to
      change: then the handler asks for `confirmed`.
    - ``begin``: stages a change without waiting until it is durable. Changes that come together share a frame so.
    """

    function: HandlerFunction
    segment_field: str = "segment"
    level: AccessLevel = AccessLevel.READ
    waits: bool = False
    reply_bytes: Callable[[Any], int] | None = None
    copies: int = 1
    changes: bool = False
    begin: Callable[[Call, Any], Awaitable[Begun]] | None = None
