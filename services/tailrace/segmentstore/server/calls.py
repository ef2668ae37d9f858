"""One request being served: what a handler gets, and how handlers are listed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tailrace.common.auth import AccessLevel
from tailrace.wire.command import Command

if TYPE_CHECKING:
    from tailrace.segmentstore.api import SegmentContainer
    from tailrace.segmentstore.server.context import ServerContext
    from tailrace.segmentstore.server.outbox import Outbox
    from tailrace.segmentstore.tables.types import TableOperations


@dataclass(slots=True)
class Call:
    """What a handler works with: the segment's container and what the connection holds.

    ``transients`` are the transient segments that were created on the connection and still exist.
    """

    context: ServerContext
    container: SegmentContainer
    outbox: Outbox
    transients: dict[str, SegmentContainer]

    @property
    def tables(self) -> TableOperations:
        """Table segments of the container."""
        return self.context.registry.table_service(self.container)


Reply: TypeAlias = Command | bytes
HandlerFunction: TypeAlias = Callable[[Call, Any], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Handler:
    """How a request is served.

    ``segment_field`` names the request's field that decides the container and is authorized at ``level``; empty for
    the commands that name a container. ``waits`` marks a request without a deadline, which may wait for as long as its
    connection lasts and is cancelled with it. ``reply_bytes`` says how large the reply to a command may become, for
    those whose reply is large. ``copies`` is how often what the request holds is in memory while it is served.
    ``changes`` marks a request whose success is a change that is in the log.
    """

    function: HandlerFunction
    segment_field: str = "segment"
    level: AccessLevel = AccessLevel.READ
    waits: bool = False
    reply_bytes: Callable[[Any], int] | None = None
    copies: int = 1
    changes: bool = False
