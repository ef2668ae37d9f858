"""Offsets of a segment at which an event is known to begin (docs/adr/0044-places-to-divide-a-segment.md). Pure.

The server never parses events. Each length that a segment had is a place where an event begins: an append is whole
events, and a merge is one change. So the beginning of an append is one, with two exceptions that this class knows:

- a transient segment holds one large event in several appends, and they stay apart when it is merged;
- an append that a recovery finds may have come from such a merge.
"""

from __future__ import annotations

from tailrace.common import limits


class EventStarts:
    """What is known of one segment's offsets. ``one_event``: the segment is transient, and holds one event."""

    __slots__ = ("_inside", "_known_from", "_one_event")

    def __init__(self, *, one_event: bool = False) -> None:
        self._one_event = one_event
        self._known_from = 0
        self._inside: tuple[tuple[int, int], ...] = ()  # ranges in which appends may begin within an event

    def is_start(self, offset: int) -> bool:
        """Return whether an event begins for certain at ``offset``, where an append begins."""
        if self._one_event:
            return offset == 0
        return offset >= self._known_from and not any(begin < offset < end for begin, end in self._inside)

    def merge(self, source: EventStarts, shift: int, length_bytes: int) -> None:
        """Note that all bytes of a source, ``length_bytes``, were merged at ``shift``."""
        if source._one_event:
            self._add(shift, shift + length_bytes)
            return
        if source._known_from:
            self._add(shift, shift + source._known_from)
        for begin, end in source._inside:
            self._add(shift + begin, shift + end)

    def recover(self, length_bytes: int) -> None:
        """Note that the segment was read from a log or a snapshot, which ends at ``length_bytes``."""
        self._known_from = length_bytes
        self._inside = ()

    def _add(self, begin: int, end: int) -> None:
        self._inside += ((begin, end),)
        if len(self._inside) > limits.EVENT_STARTS_INSIDE_MAX:
            self._known_from = end  # what is before it counts as unknown, most of which is in Tier 2 long since
            self._inside = ()
