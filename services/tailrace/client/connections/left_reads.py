"""Keep cancelled reads that wait at the server: the protocol has no command that ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from tailrace.wire import commands as c

ReadPlace = tuple[str, int]
"""Segment and offset."""


class LeftReads:
    """Cancelled reads of one connection, by place. The next read of a place takes one over, whatever its length."""

    def __init__(self) -> None:
        self._by_place: dict[ReadPlace, dict[int, asyncio.Future[c.Command]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, place: ReadPlace) -> bool:
        return place in self._by_place

    def add(self, place: ReadPlace, request_id: int, reply: asyncio.Future[c.Command]) -> None:
        """Keep a read with its awaited reply."""
        self._by_place.setdefault(place, {})[request_id] = reply
        self._count += 1

    def take(self, place: ReadPlace) -> tuple[int, asyncio.Future[c.Command]]:
        """Remove and return a read of a place, which must have one."""
        reads = self._by_place[place]
        request_id = next(iter(reads))
        reply = reads[request_id]
        self.discard(place, request_id)
        return request_id, reply

    def discard(self, place: ReadPlace, request_id: int) -> bool:
        """Remove a read; return whether it was kept."""
        reads = self._by_place.get(place, {})
        if reads.pop(request_id, None) is None:
            return False
        self._count -= 1
        if not reads:
            del self._by_place[place]
        return True
