"""Tracks which bytes of a segment are in Tier 2: an interval set of chunk references (docs/design.md#tier-2). Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.segmentstore.metadata.fields import ChunkRef

_offset = attrgetter("segment_offset")
_NO_REFS: list[ChunkRef] = []  # of every segment without any; never changed


class Coverage:
    """Chunk references of one segment, sorted by segment offset, never overlapping."""

    __slots__ = ("_changed_from", "_refs")

    def __init__(self, refs: Sequence[ChunkRef] = ()) -> None:
        self._refs: list[ChunkRef] = sorted(refs, key=_offset) if refs else _NO_REFS
        self._changed_from = self._refs[0].segment_offset if self._refs else None
        for left, right in pairwise(self._refs):
            if left.end > right.segment_offset:
                raise ValueError(f"chunk references overlap at {right.segment_offset}")

    def __iter__(self) -> Iterator[ChunkRef]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether any byte of [start, end) is covered."""
        index = bisect_left(self._refs, end, key=_offset)
        return index > 0 and self._refs[index - 1].end > start

    def covers(self, start: int, end: int) -> bool:
        """Return whether every byte of [start, end) is covered; an empty range is."""
        return all(gap_start >= gap_end for gap_start, gap_end in self.gaps(start, end))

    def add(self, ref: ChunkRef) -> None:
        """Add a reference. Raises ValueError when it is empty or overlaps another one."""
        if ref.length <= 0 or self.overlaps(ref.segment_offset, ref.end):
            raise ValueError(f"chunk reference {ref} is empty or overlaps")
        if self._refs:
            self._refs.insert(bisect_right(self._refs, ref.segment_offset, key=_offset), ref)
        else:
            self._refs = [ref]
        self._changed(ref.segment_offset)

    def _changed(self, offset: int) -> None:
        if self._changed_from is None or offset < self._changed_from:
            self._changed_from = offset

    def take_changed(self) -> int | None:
        """Return the lowest offset of the references added since the last call; None when none was."""
        offset, self._changed_from = self._changed_from, None
        return offset

    def holds(self, refs: Sequence[ChunkRef]) -> bool:
        """Return whether exactly these references follow one another here."""
        index = bisect_left(self._refs, refs[0].segment_offset, key=_offset)
        return self._refs[index : index + len(refs)] == list(refs)

    def replace(self, old: Sequence[ChunkRef], new: Sequence[ChunkRef]) -> bool:
        """Replace exactly `old` by `new`; return False, without a change, when some of `old` are missing.

        Raises ValueError when the two are not contiguous over the same range.
        """
        if _gapless(old) != _gapless(new):
            raise ValueError("references over another range than those they replace")
        if not self.holds(old):
            return False
        index = bisect_left(self._refs, old[0].segment_offset, key=_offset)
        self._refs[index : index + len(old)] = new
        self._changed(new[0].segment_offset)
        return True

    def move(self, old: ChunkRef, new: ChunkRef) -> bool:
        """Replace `old` by `new`; return False, without a change, when `old` is missing.

        Raises ValueError when `new` does not end with `old`, or is not within its range.
        """
        if not old.segment_offset <= new.segment_offset < new.end or new.end != old.end:
            raise ValueError(f"chunk reference {new} in place of {old}")
        if not self.holds([old]):
            return False
        self._refs[bisect_left(self._refs, old.segment_offset, key=_offset)] = new
        self._changed(new.segment_offset)
        return True

    def before(self, offset: int, count: int) -> int:
        """Return the start of the reference `count` places before the first one from `offset` on; 0 without one."""
        index = bisect_left(self._refs, offset, key=_offset) - count
        return self._refs[index].segment_offset if index >= 0 else 0

    def following(self, offset: int, count: int) -> list[ChunkRef]:
        """Return the first `count` references that end beyond `offset`."""
        index = bisect_right(self._refs, offset, key=_offset)
        if index and self._refs[index - 1].end > offset:
            index -= 1
        return self._refs[index : index + count]

    def find(self, offset: int) -> ChunkRef | None:
        """Return the reference that holds the byte at `offset`; None when none does."""
        index = bisect_right(self._refs, offset, key=_offset)
        if index and self._refs[index - 1].end > offset:
            return self._refs[index - 1]
        return None

    def next_start(self, offset: int) -> int | None:
        """Return where the first reference beyond `offset` begins; None when there is none."""
        index = bisect_right(self._refs, offset, key=_offset)
        return self._refs[index].segment_offset if index < len(self._refs) else None

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the maximal ranges of [start, end) that are not covered."""
        position = start
        index = bisect_right(self._refs, start, key=_offset)
        if index and self._refs[index - 1].end > start:
            position = self._refs[index - 1].end
        while position < end:
            stop = min(self._refs[index].segment_offset, end) if index < len(self._refs) else end
            if stop > position:
                yield position, stop
            if index >= len(self._refs):
                return
            position = self._refs[index].end
            index += 1

    def truncate(self, start: int) -> list[ChunkRef]:
        """Remove and return the references that end at or below `start`."""
        index = 0
        while index < len(self._refs) and self._refs[index].end <= start:
            index += 1
        if not index:
            return []
        dropped, self._refs = self._refs[:index], self._refs[index:] or _NO_REFS
        return dropped

    def clear(self) -> list[ChunkRef]:
        """Remove and return all references."""
        dropped, self._refs = self._refs, _NO_REFS
        return dropped


def _gapless(refs: Sequence[ChunkRef]) -> tuple[int, int]:
    """Return start and end of contiguous references. Raises ValueError when they are not contiguous."""
    if not refs or any(ref.length <= 0 for ref in refs):
        raise ValueError("no references, or an empty one")
    for left, right in pairwise(refs):
        if left.end != right.segment_offset:
            raise ValueError(f"chunk references with a gap at {left.end}")
    return refs[0].segment_offset, refs[-1].end
