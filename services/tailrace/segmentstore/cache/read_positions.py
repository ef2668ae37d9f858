"""Recognises sequential readers by their positions, because a read does not say which reader sends it. Pure."""

from __future__ import annotations

from collections import OrderedDict

from tailrace.common import limits


class ReadPositions:
    """Where recent reads ended, the least recent first. A read that begins at such a place continues its reader.

    So each of several readers of a segment has its own position. Beyond ``limits.PREFETCH_POSITIONS_MAX`` the positions
    that were not used for the longest time are dropped.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[int, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends)

    def advance(self, segment_id: int, start: int, end: int) -> bool:
        """Take a read of [start, end) down; return whether it continues an earlier one."""
        continues = (segment_id, start) in self._ends
        if continues:
            del self._ends[segment_id, start]
        self._ends[segment_id, end] = None
        self._ends.move_to_end((segment_id, end))
        if len(self._ends) > limits.PREFETCH_POSITIONS_MAX:
            self._ends.popitem(last=False)
        return continues
