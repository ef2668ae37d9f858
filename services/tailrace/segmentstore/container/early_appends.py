"""What a recovery remembers of appends from before the checkpoint that Tier 2 lacks. Pure."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.segmentstore.metadata.read_index import LogPlaces


class EarlyAppend(NamedTuple):
    """An append from before the checkpoint. ``begin_frame``: where its record begins; it may hold none of the data.

    ``places``: of its data in the log; none when the cache has them.
    """

    offset: int
    length: int
    crc: int
    begin_frame: int
    places: LogPlaces


class EarlyAppends:
    """Those of one segment, in columns: there may be as many as Tier 2 lacks."""

    __slots__ = ("_ascend", "_begin_frames", "_crcs", "_lengths", "_offsets", "_spans", "_starts")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._lengths = array("I")
        self._crcs = array("I")
        self._begin_frames = array("q")
        self._starts = array("I")  # in the payload of that frame; 0: `_spans` has the places, or the cache the bytes
        self._spans: dict[int, LogPlaces] = {}
        self._ascend = True

    def add(self, item: EarlyAppend) -> None:
        """Add one, at any offset."""
        offset, places = item.offset, item.places
        if self._offsets and offset < self._offsets[-1]:
            self._ascend = False
        start = 0
        if len(places) == 1 and places[0][0] == item.begin_frame:
            start = places[0][1]
        elif places:
            self._spans[len(self._offsets)] = places
        self._offsets.append(offset)
        self._lengths.append(item.length)
        self._crcs.append(item.crc)
        self._begin_frames.append(item.begin_frame)
        self._starts.append(start)

    def add_run(
        self, offsets: array[int], lengths: array[int], crcs: array[int], begin_frame: int, starts: array[int]
    ) -> None:
        """Add contiguous ones of one frame. ``starts``: in its payload; 0 when the cache has the bytes."""
        if self._offsets and offsets[0] < self._offsets[-1]:
            self._ascend = False
        self._offsets.extend(offsets)
        self._lengths.extend(lengths)
        self._crcs.extend(crcs)
        self._begin_frames.extend(array("q", (begin_frame,)) * len(offsets))
        self._starts.extend(starts)

    def extend(self, others: EarlyAppends, shift: int) -> None:
        """Add others whose bytes a merge moved by `shift`."""
        for row in range(len(others._offsets)):
            self.add(others._item(row, shift))

    def __iter__(self) -> Iterator[EarlyAppend]:
        """Iterate in the order of their offsets."""
        rows: Iterable[int] = range(len(self._offsets))
        if not self._ascend:
            rows = sorted(rows, key=self._offsets.__getitem__)
        return (self._item(row, 0) for row in rows)

    def _item(self, row: int, shift: int) -> EarlyAppend:
        length, frame, start = self._lengths[row], self._begin_frames[row], self._starts[row]
        places = ((frame, start, length),) if start else self._spans.get(row, ())
        return EarlyAppend(self._offsets[row] + shift, length, self._crcs[row], frame, places)
