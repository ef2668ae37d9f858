"""Watch the leases of a stream's open transactions (docs/controller.md#open-transactions)."""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, NamedTuple

from tailrace.controller.metadata.transaction_ledger import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.controller.workflows.transactions import Lease

_STALE_ENTRIES_MIN = 64


class WatchedLease(NamedTuple):
    """A lease, and when it ends on this controller's own clock unless it is renewed."""

    lease: Lease
    ends_s: float


class WatchedLeases:
    """The leases of one stream that this controller watches, by transaction."""

    def __init__(self) -> None:
        self._leases: dict[bytes, WatchedLease] = {}
        self._ends: list[tuple[float, bytes]] = []
        """A heap of ends; those of leases that were renewed or have gone are skipped."""
        self.digest = 0
        """That of the transactions, as the root has it of all that are open."""

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._leases)

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._leases

    def get(self, transaction_id: bytes) -> WatchedLease | None:
        """Return a lease that is watched."""
        return self._leases.get(transaction_id)

    def renew(self, transaction_id: bytes, lease: Lease) -> None:
        """Watch a lease, whole from now on."""
        if transaction_id not in self._leases:
            self.digest ^= digest_of(transaction_id)
        watched = WatchedLease(lease, asyncio.get_running_loop().time() + lease.lease_ms / 1000)
        self._leases[transaction_id] = watched
        if len(self._ends) > _STALE_ENTRIES_MIN + 2 * len(self._leases):
            self._ends = [(each.ends_s, item) for item, each in self._leases.items()]
            heapq.heapify(self._ends)
        else:
            heapq.heappush(self._ends, (watched.ends_s, transaction_id))

    def drop(self, transaction_id: bytes) -> None:
        """Watch a lease no more."""
        if self._leases.pop(transaction_id, None) is not None:
            self.digest ^= digest_of(transaction_id)

    def due(self, most: int) -> list[tuple[bytes, WatchedLease]]:
        """Return leases that have ended, those that ended first, `most` at most."""
        now_s = asyncio.get_running_loop().time()
        ended: dict[bytes, WatchedLease] = {}
        while self._ends and self._ends[0][0] <= now_s and len(ended) < most:
            ends_s, item = heapq.heappop(self._ends)
            watched = self._leases.get(item)
            if watched is not None and watched.ends_s == ends_s:
                ended[item] = watched
        for item, watched in ended.items():
            heapq.heappush(self._ends, (watched.ends_s, item))  # until it is dropped or renewed
        return list(ended.items())

    def next_end_s(self) -> float | None:
        """Return when the next lease ends; None without one."""
        while self._ends:
            ends_s, item = self._ends[0]
            watched = self._leases.get(item)
            if watched is not None and watched.ends_s == ends_s:
                return ends_s
            heapq.heappop(self._ends)
        return None
