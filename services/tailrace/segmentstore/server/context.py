"""The ports and resources that all connections of a server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tailrace.common.auth import Account, Authorize
    from tailrace.common.errors import DataError
    from tailrace.common.logs import LimitedLog
    from tailrace.common.ports import Clock, Entropy
    from tailrace.segmentstore.server.budgets import InFlightBudget
    from tailrace.segmentstore.server.gone_peers import GonePeers
    from tailrace.segmentstore.server.large_replies import LargeReplyTurns
    from tailrace.segmentstore.server.places import Places
    from tailrace.segmentstore.server.receiving import ReceiveRoom
    from tailrace.segmentstore.server.registry import ContainerRegistry
    from tailrace.segmentstore.server.unanswered import Unanswered
    from tailrace.segmentstore.server.unsent import UnsentReplies


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """Ports, hooks and shared resources of one server.

    ``background`` runs a coroutine that outlives its connection; the server cancels it when it closes.
    """

    registry: ContainerRegistry
    in_flight: InFlightBudget
    unsent: UnsentReplies
    unanswered: Unanswered
    places: Places
    large_replies: LargeReplyTurns
    clock: Clock
    entropy: Entropy
    authorize: Authorize
    account: Account
    receiving: ReceiveRoom
    gone_peers: GonePeers
    log: LimitedLog
    background: Callable[[Coroutine[None, None, None]], None]
    oldest_version: int
    """Announced in the reply to Hello."""

    def report_damage(self, operation: str, segment: str, error: DataError) -> None:
        """Log what is damaged; the client gets no reason, and other segments on its connection go on."""
        self.log.error("data damaged", operation=operation, segment=segment, reason=str(error))


def scope_of(segment: str) -> str:
    """Return the scope to which a segment's use is accounted."""
    return segment.partition("/")[0]
