"""The appends of a segment that Tier 2 lacks (docs/design.md#tier-2). Pure.

There are as many as clients send while Tier 2 is away, and small ones are many: they are kept in columns, which take a
tenth of what an object for each takes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import islice, starmap
from typing import TYPE_CHECKING, NamedTuple

from tailrace.segmentstore.metadata.untiered_room import APPEND_BYTES, UntieredRoom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REMOVED_MAX = 4096  # removed rows at the front that are kept until they are half of all
_NO_OFFSETS, _NO_LENGTHS = array("q"), array("I")  # of every segment without appends: most have none
_COMPARED_MIN = 16  # rows whose lengths are added up to find out whether there is a gap


class PendingAppend(NamedTuple):
    """An append that Tier 2 lacks, with the CRC to verify it and the log frame that holds it."""

    offset: int
    length: int
    crc: int
    frame_sequence: int

    @property
    def end(self) -> int:
        """Segment offset after the last byte."""
        return self.offset + self.length


class PendingAppends:
    """A queue of appends, in the order in which they were committed, so that their offsets ascend.

    Those of a merged source have older frames than the ones before them.
    """

    __slots__ = (
        "_crcs",
        "_first",
        "_frames",
        "_frames_ascend",
        "_joined_begin",
        "_joined_end",
        "_lengths",
        "_offsets",
        "_room",
        "length_bytes",
    )

    def __init__(self, room: UntieredRoom | None = None) -> None:
        self._room = room or UntieredRoom()
        self._empty()

    def clear(self) -> None:
        """Remove all."""
        count = len(self)
        self._empty()
        self._room.remove_appends(count)

    def leave_room(self) -> None:
        """Count in the room no more: the container has ended."""
        self._room.remove_appends(len(self))
        self._room = UntieredRoom()

    def _empty(self) -> None:
        self._offsets = self._frames = _NO_OFFSETS
        self._lengths = self._crcs = _NO_LENGTHS
        self._first = 0
        self._frames_ascend = True
        # Rows of which each is known to begin where the one before it ends: those that a recovery added last.
        self._joined_begin = self._joined_end = 0
        self.length_bytes = 0

    def _make_columns(self) -> None:
        self._offsets, self._frames = array("q"), array("q")
        self._lengths, self._crcs = array("I"), array("I")

    def __len__(self) -> int:
        return len(self._offsets) - self._first

    def __iter__(self) -> Iterator[PendingAppend]:
        rows = zip(self._offsets, self._lengths, self._crcs, self._frames, strict=True)
        return starmap(PendingAppend, islice(rows, self._first, None))

    def add(self, offset: int, length: int, crc: int, frame_sequence: int) -> None:
        """Add an append behind all others."""
        if self._offsets is _NO_OFFSETS:
            self._make_columns()
        frames = self._frames
        if frames and frame_sequence < frames[-1]:
            self._frames_ascend = False
        self._offsets.append(offset)
        self._lengths.append(length)
        self._crcs.append(crc)
        frames.append(frame_sequence)
        self.length_bytes += length
        self._room.append_bytes += APPEND_BYTES

    def extend(self, offsets: bytes, lengths: bytes, crcs: bytes, frame_sequence: int) -> None:
        """Add appends of one frame, without gaps, behind all others; the columns as of `kernel.AppendRun`."""
        if not offsets:
            return
        if self._offsets is _NO_OFFSETS:
            self._make_columns()
        first, frames = len(self._offsets), self._frames
        if frames and frame_sequence < frames[-1]:
            self._frames_ascend = False
        self._offsets.frombytes(offsets)
        self._lengths.frombytes(lengths)
        self._crcs.frombytes(crcs)
        count = len(self._offsets) - first
        frames.extend(array("q", (frame_sequence,)) * count)
        self.length_bytes += self.end - self._offsets[first]
        self._room.append_bytes += count * APPEND_BYTES
        self._join(first)

    def _join(self, first: int) -> None:
        """Take the rows from `first` on for joined, and those before them if there is no gap."""
        offsets, at = self._offsets, self._joined_end
        if self._joined_begin == at:
            at += 1
        while at <= first and offsets[at] == self._span(at - 1)[1]:
            at += 1
        if at <= first:
            self._joined_begin = first
        self._joined_end = len(offsets)

    @property
    def oldest_frame(self) -> int:
        """Return the sequence number of the oldest log frame that holds one. Raises IndexError without any."""
        if self._frames_ascend:
            return self._frames[self._first]
        return min(islice(self._frames, self._first, None))

    def count_before(self, offset: int) -> int:
        """Return how many begin before `offset`."""
        return bisect_left(self._offsets, offset, self._first) - self._first

    def covered_to(self, offset: int) -> int:
        """Return the end of the contiguous bytes that begin at `offset`; `offset` itself when none has that byte."""
        offsets, joined, end = self._offsets, self._joined_begin, self._joined_end
        first = max(self._first, bisect_right(offsets, offset, self._first) - 1)
        offset = self._covered_by(first, joined, offset)
        joined = max(first, joined)
        if joined < end and offsets[joined] <= offset:
            offset = max(offset, self._span(end - 1)[1])
        return self._covered_by(max(first, end), len(offsets), offset)

    def _covered_by(self, first: int, last: int, offset: int) -> int:
        """Return what `covered_to` returns of the rows from `first` to before `last`."""
        rows = zip(islice(self._offsets, first, last), islice(self._lengths, first, last), strict=True)
        for start, length in rows if first < last else ():
            if start > offset:
                break
            offset = max(offset, start + length)
        return offset

    def splits(self, offset: int) -> bool:
        """Return whether one begins before `offset` and ends beyond."""
        last = bisect_left(self._offsets, offset, self._first) - 1
        return last >= self._first and self._offsets[last] + self._lengths[last] > offset

    def overlapping(self, start: int, end: int) -> Iterator[PendingAppend]:
        """Return those with any byte in [start, end), in order, as of now."""
        first, last = self._rows(start, end)
        columns = (self._offsets, self._lengths, self._crcs, self._frames)
        return starmap(PendingAppend, zip(*(column[first:last] for column in columns), strict=True))

    def _rows(self, start: int, end: int) -> tuple[int, int]:
        """Return the first of the rows with any byte in [start, end), and the one behind the last."""
        first = max(bisect_right(self._offsets, start, self._first) - 1, self._first)
        if first < len(self._offsets) and self._offsets[first] + self._lengths[first] <= start:
            first += 1
        return first, bisect_left(self._offsets, end, first)

    def remove_tiered(self, start: int, end: int, covered: Callable[[int, int], bool]) -> None:
        """Remove those within [start, end), and those on its edges of which ``covered(offset, end)`` is true."""
        first, last = self._rows(start, end)
        if first < last and self._offsets[first] < start and not covered(*self._span(first)):
            first += 1
        if first < last and self._span(last - 1)[1] > end and not covered(*self._span(last - 1)):
            last -= 1
        if first == self._first:
            self.remove_first(last - first)
        elif first < last:  # a merged source was flushed before the target's own bytes: the gap is in the middle
            self._room.remove_appends(last - first)
            self.length_bytes -= sum(self._lengths[first:last])
            for column in (self._offsets, self._lengths, self._crcs, self._frames):
                del column[first:last]
            self._joined_begin = self._joined_end = len(self._offsets)

    def _span(self, row: int) -> tuple[int, int]:
        return self._offsets[row], self._offsets[row] + self._lengths[row]

    def remove_first(self, count: int) -> None:
        """Remove so many of the oldest ones."""
        self._room.remove_appends(count)
        self.length_bytes -= sum(self._lengths[self._first : self._first + count])
        self._first += count
        if self._first == len(self._offsets):
            self._empty()
        elif self._first > max(_REMOVED_MAX, len(self._offsets) // 2):
            for column in (self._offsets, self._lengths, self._crcs, self._frames):
                del column[: self._first]
            self._joined_begin = max(self._joined_begin - self._first, 0)
            self._joined_end = max(self._joined_end - self._first, 0)
            self._first = 0

    def runs(self, max_bytes: int, max_runs: int, boundary: int | None = None) -> list[PendingAppends]:
        """Return copies of the first contiguous runs, each at most `max_bytes` long unless one append is longer.

        A run ends at ``boundary``, an offset at which an append begins.
        The room does not count the copies: they are as short-lived as the uploads that they are for.
        """
        runs: list[PendingAppends] = []
        at, count = self._first, len(self._offsets)
        while at < count and len(runs) < max_runs:
            begin, at = at, self._contiguous(at, self._fitting(at, max_bytes, boundary))
            runs.append(self._copy(begin, at, self._span(at - 1)[1] - self._offsets[begin]))
        return runs

    def _fitting(self, begin: int, max_bytes: int, boundary: int | None) -> int:
        """Return the row after the last one of a run that starts at row `begin`, if there is no gap."""
        offsets = self._offsets
        limit = offsets[begin] + max_bytes
        end = bisect_left(offsets, limit, begin + 1)
        if end - 1 > begin and self._span(end - 1)[1] > limit:
            end -= 1
        if boundary is not None:
            at = bisect_left(offsets, boundary, begin + 1, end)
            end = at if at < end and offsets[at] == boundary else end
        return end

    def _contiguous(self, begin: int, end: int) -> int:
        """Return the row behind the first gap after row `begin`, or `end`. Compares the lengths of ever more rows."""
        offsets, lengths = self._offsets, self._lengths
        at, count = begin + 1, _COMPARED_MIN
        while at < end:
            last = min(at + count, end) - 1
            if offsets[at - 1] + sum(lengths[at - 1 : last]) != offsets[last]:  # they do not overlap: there is a gap
                while offsets[at] == self._span(at - 1)[1]:
                    at += 1
                return at
            at, count = last + 1, 2 * count
        return end

    def _copy(self, begin: int, end: int, length_bytes: int) -> PendingAppends:
        found = PendingAppends()
        found._offsets = self._offsets[begin:end]
        found._lengths = self._lengths[begin:end]
        found._crcs = self._crcs[begin:end]
        found._frames = self._frames[begin:end]
        found._frames_ascend = self._frames_ascend
        found.length_bytes = length_bytes
        return found

    @property
    def start(self) -> int:
        """Return the offset of the first byte of a run. Raises IndexError."""
        return self._offsets[self._first]

    @property
    def end(self) -> int:
        """Return the offset after the last byte of a run. Raises IndexError."""
        return self._offsets[-1] + self._lengths[-1]
