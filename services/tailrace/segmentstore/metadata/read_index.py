"""The read index: maps offsets of a segment to cache entries or places in the log.

See "Yet Another Cache but for the Streaming World".

Pure bookkeeping; the cache manager owns the bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LogPlaces = tuple[tuple[int, int, int], ...]
"""Fragments of the data in the log: (frame sequence, offset in the payload, length)."""


class FramePlaces:
    """Places in one frame, in columns: recovery may leave many small appends there."""

    __slots__ = ("_lengths", "_starts", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self._starts = array("I")
        self._lengths = array("I")

    def add(self, start: int, length: int) -> None:
        """Add a place behind all others."""
        self._starts.append(start)
        self._lengths.append(length)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(repeat(self.sequence), self._starts, self._lengths)


class Entry:
    """A run of a segment's bytes.

    ``address`` is the cache address, or -1 when recovery left the bytes in the log at ``places``. ``evictable`` is true
    once Tier 2 holds every byte; such an entry is never appended to.
    """

    __slots__ = ("address", "evictable", "length", "offset", "owner", "places")

    def __init__(
        self, owner: ReadIndex, offset: int, length: int, address: int, places: LogPlaces | FramePlaces = ()
    ) -> None:
        self.owner = owner
        self.offset = offset
        self.length = length
        self.address = address
        self.places = places
        self.evictable = False

    @property
    def end(self) -> int:
        """Segment offset after the last byte."""
        return self.offset + self.length


_NO_STARTS: list[int] = []  # of every segment without entries; neither is changed
_NO_ENTRIES: list[Entry] = []


class ReadIndex:
    """Entries of one segment, sorted by offset, never overlapping."""

    __slots__ = ("_entries", "_starts")

    def __init__(self) -> None:
        self._starts = _NO_STARTS
        self._entries = _NO_ENTRIES

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> Entry | None:
        """The entry with the highest offset."""
        return self._entries[-1] if self._entries else None

    def find(self, offset: int) -> Entry | None:
        """Return the entry that holds the byte at `offset` (floor search); None when none does."""
        index = bisect_right(self._starts, offset) - 1
        if index >= 0:
            entry = self._entries[index]
            if entry.offset + entry.length > offset:
                return entry
        return None

    def run(self, offset: int, max_length: int) -> list[Entry]:
        """Return the entries that hold consecutive bytes from `offset` on, up to `max_length` bytes."""
        index = bisect_right(self._starts, offset) - 1
        result: list[Entry] = []
        end = offset + max_length
        position = offset
        while 0 <= index < len(self._entries) and position < end:
            entry = self._entries[index]
            if entry.offset > position or entry.end <= position:
                break
            result.append(entry)
            position = entry.end
            index += 1
        return result

    def between(self, start: int, end: int) -> list[Entry]:
        """Return the entries with any byte in [start, end)."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        last = bisect_left(self._starts, end)
        return [entry for entry in self._entries[first:last] if entry.end > start]

    def first_gap(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first maximal range of [start, end) that no entry holds; None when there is none."""
        position = start
        for entry in self.between(start, end):
            if entry.offset > position:
                return position, min(entry.offset, end)
            position = entry.end
        return (position, end) if position < end else None

    def add(self, entry: Entry) -> None:
        """Insert an entry. Raises ValueError when it overlaps another one."""
        index = bisect_right(self._starts, entry.offset)
        if (index and self._entries[index - 1].end > entry.offset) or (
            index < len(self._starts) and self._starts[index] < entry.end
        ):
            raise ValueError(f"read index entry at {entry.offset} overlaps")
        if self._entries:
            self._starts.insert(index, entry.offset)
            self._entries.insert(index, entry)
        else:
            self._starts, self._entries = [entry.offset], [entry]
        entry.owner = self

    def remove(self, entry: Entry) -> None:
        """Remove an entry. Raises KeyError when it is not in the index."""
        index = bisect_left(self._starts, entry.offset)
        if index >= len(self._entries) or self._entries[index] is not entry:
            raise KeyError(entry.offset)
        if len(self._entries) == 1:
            self._starts, self._entries = _NO_STARTS, _NO_ENTRIES
            return
        del self._starts[index]
        del self._entries[index]

    def remove_below(self, offset: int) -> list[Entry]:
        """Remove and return the entries that end at or below `offset`, but for the last entry of the index."""
        count = min(bisect_left(self._starts, offset), len(self._entries) - 1)
        if count > 0 and self._entries[count - 1].end > offset:
            count -= 1
        if count <= 0:
            return []
        removed = self._entries[:count]
        del self._starts[:count], self._entries[:count]
        return removed

    def clear(self) -> list[Entry]:
        """Remove and return all entries."""
        entries, self._entries, self._starts = self._entries, _NO_ENTRIES, _NO_STARTS
        return entries
