"""Let the segments of a reader that have events take turns, without a look at the others.

A reader may have thousands of segments, most of them without new events: a read call must not look at each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.client.reader.segment_input import SegmentInput


class SegmentTurns:
    """The segments in which something has changed, and those that are ready, in the order of their turns."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._noticed: dict[str, None] = {}
        self._ready: dict[str, None] = {}

    def notice(self, segment: str) -> None:
        """Have a segment looked at: it may be ready, or at its end."""
        self._noticed[segment] = None
        self._changed()

    def look(self, inputs: Mapping[str, SegmentInput]) -> list[str]:
        """Return the segments that are at their end since the last look; queue those that are ready."""
        noticed, self._noticed = self._noticed, {}
        ended = []
        for segment in noticed:
            source = inputs.get(segment)
            if source is None:
                continue
            if source.ended:
                ended.append(segment)
            elif source.ready:
                self._ready[segment] = None
        return ended

    def begin(self, inputs: Mapping[str, SegmentInput]) -> str | None:
        """Return the segment whose turn it is and that can be read; None when no other is ready. It queues again."""
        while self._ready:
            segment = next(iter(self._ready))
            del self._ready[segment]
            source = inputs.get(segment)
            if source is not None and source.ready and source.failure is None:
                self._noticed[segment] = None
                return segment
        return None
