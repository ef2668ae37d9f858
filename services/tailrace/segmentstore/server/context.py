"""What all connections of a server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from structlog.typing import FilteringBoundLogger

    from tailrace.common.auth import Account, Authorize
    from tailrace.common.ports import Clock, Entropy
    from tailrace.segmentstore.server.budgets import InFlightBudget
    from tailrace.segmentstore.server.receiving import ReceiveRoom
    from tailrace.segmentstore.server.registry import ContainerRegistry
    from tailrace.segmentstore.server.unsent import UnsentReplies


@dataclass(slots=True)
class Unanswered:
    """Requests of all connections that have no answer yet, waiting reads included.

    ``arriving`` are those of them that wait for their container to be opened here.
    """

    requests: int = 0
    arriving: int = 0


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Ports, seams and shared resources of one server.

    ``background`` runs a coroutine that outlives its connection; the server cancels it when it closes.
    """

    registry: ContainerRegistry
    in_flight: InFlightBudget
    unsent: UnsentReplies
    unanswered: Unanswered
    clock: Clock
    entropy: Entropy
    authorize: Authorize
    account: Account
    receiving: ReceiveRoom
    log: FilteringBoundLogger
    background: Callable[[Coroutine[None, None, None]], None]
    oldest_version: int
    """Announced in the answer to Hello."""


def scope_of(segment: str) -> str:
    """The scope that a segment's use is counted for."""
    return segment.partition("/")[0]
