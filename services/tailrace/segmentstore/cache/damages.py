"""Ranges of segments that reads found damaged in Tier 2, for health and metrics. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.common.errors import CorruptionError
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.segmentstore.metadata.segment import Segment


class DamagedRange(NamedTuple):
    """Bytes [start, end) of a segment that an object holds, and what is wrong with it."""

    segment: Segment
    object_key: str
    start: int
    end: int
    error: CorruptionError

    @property
    def is_needed(self) -> bool:
        """Return whether the segment still has bytes there that are in that object."""
        segment = self.segment
        if segment.staged_gone or segment.start_offset >= self.end:
            return False
        ref = segment.chunks.find(self.start)
        return ref is not None and ref.object_key == self.object_key

    def __str__(self) -> str:
        return f"bytes {self.start} to {self.end} of {self.segment.name} are damaged: {self.error}"


class DataDamages:
    """The damaged ranges that reads met, until one is read again or no segment needs it."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], DamagedRange] = {}

    def note(self, segment: Segment, ref: ChunkRef, start: int, end: int, error: CorruptionError) -> None:
        """Keep a range within a reference; beyond the bound the one that was met first is left out."""
        self._found[segment.segment_id, start] = DamagedRange(segment, ref.object_key, start, end, error)
        if len(self._found) > limits.DATA_DAMAGES_KEPT_MAX:
            del self._found[next(iter(self._found))]

    def forget(self, segment: Segment, start: int, end: int) -> None:
        """Forget ranges of which bytes in [start, end) were read: blocks are read whole, and the object is there."""
        if not self._found:
            return
        for key, each in list(self._found.items()):
            if each.segment is segment and start < each.end and each.start < end:
                del self._found[key]

    def current(self) -> list[DamagedRange]:
        """Return what segments still need, in the order in which it was met."""
        self._found = {key: each for key, each in self._found.items() if each.is_needed}
        return list(self._found.values())
