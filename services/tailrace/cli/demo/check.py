"""Check that every event arrived exactly once and in order for its routing key (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tailrace.cli.demo.flights import Flight


class _Keyed(msgspec.Struct):
    tailnum: str


_DECODER = msgspec.json.Decoder(_Keyed)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of arrived events; all but `arrived` must be zero."""

    arrived: int
    missing: int
    duplicated: int
    out_of_order: int
    invented: int

    @property
    def right(self) -> bool:
        """Return whether every event arrived exactly once and in order per key."""
        return not (self.missing or self.duplicated or self.out_of_order or self.invented)


class DeliveryCheck:
    """Compare arriving events with the written ones, in the order of their writing."""

    def __init__(self, events: Sequence[Flight]) -> None:
        self._events = events
        self._by_key: dict[str, list[int]] = {}
        for position, event in enumerate(events):
            self._by_key.setdefault(event.key, []).append(position)
        self._next = dict.fromkeys(self._by_key, 0)
        self._seen = bytearray(len(events))
        self._arrived = 0
        self._duplicated = 0
        self._out_of_order = 0
        self._invented = 0

    @property
    def distinct(self) -> int:
        """Return how many of the written events arrived at least once."""
        return self._seen.count(1)

    def arrive(self, data: bytes) -> None:
        """Check the next event that a reader returned."""
        self._arrived += 1
        try:
            key = _DECODER.decode(data).tailnum
        except (msgspec.DecodeError, msgspec.ValidationError):
            self._invented += 1
            return
        positions = self._by_key.get(key, [])
        following = self._next.get(key, 0)
        if following < len(positions) and self._events[positions[following]].data == data:
            self._seen[positions[following]] = 1
            self._next[key] = following + 1
        else:
            self._judge(key, data)

    def _judge(self, key: str, data: bytes) -> None:
        """Count an event that is not the next one of its key: duplicated, out of order, or never written."""
        positions = self._by_key.get(key, [])
        equal = [index for index, position in enumerate(positions) if self._events[position].data == data]
        if not equal:
            self._invented += 1
            return
        unseen = [index for index in equal if not self._seen[positions[index]]]
        if not unseen:
            self._duplicated += 1
            return
        self._out_of_order += 1
        self._seen[positions[unseen[0]]] = 1
        self._next[key] = max(self._next[key], unseen[0] + 1)

    def verdict(self) -> Verdict:
        """Return the counts at the end."""
        return Verdict(
            arrived=self._arrived,
            missing=len(self._events) - self.distinct,
            duplicated=self._duplicated,
            out_of_order=self._out_of_order,
            invented=self._invented,
        )
