"""Bounds the requests without a reply, waiting tail reads included, of all connections together."""

from __future__ import annotations

from typing import Protocol

from tailrace.common import limits


class Holder(Protocol):
    """A connection's requests."""

    @property
    def peer(self) -> str:
        """Host of the client."""
        ...

    @property
    def count(self) -> int:
        """Number of its requests without a reply."""
        ...

    def give_up(self, reason: str) -> None:
        """Close the connection; its requests end soon after."""
        ...


class Unanswered:
    """Counts the requests of all connections.

    When there are too many, it closes the connection that has most of them, of the client's host that has most. So a
    client that leaves reads waiting takes nothing away from others. A connection with a few is served in any case.
    """

    def __init__(self) -> None:
        self.requests = 0
        """Without those of connections that are closed."""
        self.orphans = 0
        """Changes of connections that are closed, which go on."""
        self.pending = 0
        """Requests that wait until their container opens here."""
        self._holders: dict[Holder, None] = {}

    def join(self, holder: Holder) -> None:
        """Count the requests of a connection."""
        self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """Stop counting the requests of a connection that ended. Call it before they end."""
        if holder in self._holders:
            del self._holders[holder]
            self.requests -= holder.count

    def begin(self, holder: Holder) -> bool:
        """Count one more request of a connection; return False when it is the one that must close.

        Does not count a request of a connection that is closed already.
        """
        while self.requests >= limits.REQUESTS_MAX and holder.count >= limits.REQUESTS_PER_CONNECTION_FREE:
            largest = self._largest()
            if largest is holder or largest is None:
                return False
            self.leave(largest)
            largest.give_up(f"all connections together have {limits.REQUESTS_MAX} unanswered requests, this one most")
        self.requests += holder in self._holders
        return True

    def end(self, holder: Holder) -> None:
        """Count one request of a connection less. Call it before its `count` changes."""
        self.requests -= holder in self._holders

    def _largest(self) -> Holder | None:
        by_peer: dict[str, int] = {}
        for holder in self._holders:
            by_peer[holder.peer] = by_peer.get(holder.peer, 0) + holder.count
        return max(self._holders, key=lambda holder: (by_peer[holder.peer], holder.count), default=None)
