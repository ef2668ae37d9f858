"""Bounds the attribute values in memory that the attribute index holds, too (docs/design.md#memory-budgets). Pure.

Each segment has a bound of its own for them. That does not bound those of many segments: a thousand writers of each of
a thousand segments leave a million, also in segments that are sealed or idle. So all containers of a worker share one
room. Without room, values of the segments that were least recently flushed or looked up leave memory first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.segmentstore.metadata.segment import Segment

VALUE_BYTES = 250
"""What a value may take: its id and its number, in two maps with gaps; 140 to 173 were measured without."""


class ValueRoom:
    """Counts values by segment, in the order in which segments were counted last.

    A segment is counted when values were loaded, or when a flush has made some clean. Changes make values dirty without
    a count: until its next flush a segment counts for too many, never for too few. Recovery may exceed ``max_bytes``
    until it ends.
    """

    __slots__ = ("_counted", "_values", "max_bytes")

    def __init__(self, max_bytes: int = limits.ATTRIBUTE_VALUES_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._values = 0
        self._counted: OrderedDict[Segment, int] = OrderedDict()

    @property
    def used_bytes(self) -> int:
        """Return what all counted values take."""
        return self._values * VALUE_BYTES

    def count(self, segment: Segment) -> None:
        """Count the values of a segment as they are now; evict values of the other segments when all are too many.

        A segment that is gone is not counted, nor is one whose index is damaged: nothing reads its values back.
        """
        self.forget(segment)
        if segment.staged_gone or segment.damage is not None:
            return
        if values := segment.clean_values:
            self._counted[segment] = values
            self._values += values
            self._make_room()

    def forget(self, segment: Segment) -> None:
        """Count a segment no more: it was deleted or merged, or its container has ended."""
        self._values -= self._counted.pop(segment, 0)

    def _make_room(self) -> None:
        """Evict what is too much, if a bounded number of values has that many to evict.

        The search ends early when it has found nothing in any counted segment: where all values are needed, it would
        find the same again.
        """
        left, without = limits.ATTRIBUTES_EVICTION_SCAN_MAX, 0
        while left > 0 and (wanted := self._values - self.max_bytes // VALUE_BYTES) > 0:
            if without == len(self._counted):
                return
            segment, counted = next(iter(self._counted.items()))
            evicted, examined = segment.evict_values(wanted, left)
            left -= max(examined, 1)
            values = segment.clean_values
            self._values += values - counted
            self._counted[segment] = values  # in its place
            if evicted:
                without = 0
            elif values:
                without += 1
                self._counted.move_to_end(segment)  # what is left of it is needed
            if not values:
                del self._counted[segment]
