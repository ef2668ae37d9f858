"""A stream as sets of bytes: scales, appends and positions, for tests that check an algorithm on cuts against them.

The key space has a few cells. In each of them segments follow each other; a position is a segment and an offset. What
lies before a cut is a set of positions, cell by cell, and a set of bytes. Nothing here uses the order of cuts or epochs
as the product does.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange

CELLS = 8
Cut = Mapping[int, int]


@dataclass(frozen=True)
class Segment:
    """Cells from ``low`` up to ``high``, without it."""

    identifier: int
    low: int
    high: int


@dataclass
class StreamHistory:
    """A stream that grows: the active segments, all segments of each cell in their order, their lengths."""

    chance: random.Random
    active: list[Segment] = field(default_factory=list)
    segments: dict[int, Segment] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    chains: list[list[int]] = field(default_factory=lambda: [[] for _ in range(CELLS)])
    epochs: list[list[Segment]] = field(default_factory=list)
    """The active segments of each epoch."""

    @classmethod
    def begun(cls, chance: random.Random) -> StreamHistory:
        """A stream of one to three segments."""
        made = cls(chance)
        made._replace([], made._parts(0, CELLS, chance.randint(1, 3)))
        return made

    def append(self) -> None:
        """Append some bytes to an active segment."""
        self.lengths[self.chance.choice(self.active).identifier] += self.chance.randint(1, 4)

    def scale(self) -> None:
        """Replace neighbouring segments by one or more that cover the same cells."""
        first = self.chance.randrange(len(self.active))
        last = self.chance.randint(first, min(len(self.active) - 1, first + 2))
        gone = self.active[first : last + 1]
        low, high = gone[0].low, gone[-1].high
        self._replace(gone, self._parts(low, high, self.chance.randint(1, min(3, high - low))))

    def tail(self) -> dict[int, int]:
        """The cut at the end."""
        return {segment.identifier: self.lengths[segment.identifier] for segment in self.active}

    def some_cut(self, steps: int) -> dict[int, int]:
        """A cut that a reader reaches in so many steps: on in any segment, and at its end to the next ones."""
        cut = {self.chains[cell][0]: 0 for cell in range(CELLS)}
        for _ in range(steps):
            identifier = self.chance.choice(list(cut))
            if cut[identifier] < self.lengths[identifier]:
                cut[identifier] += self.chance.randint(1, self.lengths[identifier] - cut[identifier])
            else:
                self.follow(cut, identifier)
        return cut

    def follow(self, cut: dict[int, int], identifier: int) -> None:
        """Go on behind a segment that was read to its end, when all that its successors wait for was read, too."""
        before, after = {identifier}, set[int]()
        while True:  # until both cover the same cells
            found = {self._neighbour(cell, each, 1) for each in before for cell in self._cells(each)}
            if None in found:
                return
            after |= {each for each in found if each is not None}
            more = {self._neighbour(cell, each, -1) for each in after for cell in self._cells(each)}
            if more == before:
                break
            before = {each for each in more if each is not None}
        if all(cut.get(each) == self.lengths[each] for each in before):
            for each in before:
                del cut[each]
            cut.update(dict.fromkeys(sorted(after), 0))

    def positions(self, cut: Cut) -> frozenset[tuple[int, int, int]]:
        """Every position before a cut: cell, segment, offset; the end of a segment is one of its positions."""
        found = set[tuple[int, int, int]]()
        for cell, chain in enumerate(self.chains):
            for identifier in chain:
                if identifier in cut:
                    found.update((cell, identifier, offset) for offset in range(cut[identifier]))
                    break
                found.update((cell, identifier, offset) for offset in range(self.lengths[identifier] + 1))
        return frozenset(found)

    def bytes_before(self, cut: Cut) -> frozenset[tuple[int, int]]:
        """Every byte before a cut: segment, offset."""
        length = self.lengths
        return frozenset((segment, at) for _, segment, at in self.positions(cut) if at < length[segment])

    def ranges(self) -> dict[int, KeyRange]:
        """The key range of every segment that there ever was."""
        return {each.identifier: KeyRange(each.low / CELLS, each.high / CELLS) for each in self.segments.values()}

    def _cells(self, identifier: int) -> range:
        segment = self.segments[identifier]
        return range(segment.low, segment.high)

    def _neighbour(self, cell: int, identifier: int, step: int) -> int | None:
        chain = self.chains[cell]
        at = chain.index(identifier) + step
        return chain[at] if at < len(chain) else None

    def _parts(self, low: int, high: int, count: int) -> list[tuple[int, int]]:
        edges = [low, *sorted(self.chance.sample(range(low + 1, high), count - 1)), high]
        return list(itertools.pairwise(edges))

    def _replace(self, gone: list[Segment], parts: list[tuple[int, int]]) -> None:
        made = [Segment(segment_id(len(self.segments) + at, len(self.epochs)), *part) for at, part in enumerate(parts)]
        for segment in made:
            self.segments[segment.identifier] = segment
            self.lengths[segment.identifier] = 0
            for cell in range(segment.low, segment.high):
                self.chains[cell].append(segment.identifier)
        self.active = sorted([each for each in self.active if each not in gone] + made, key=lambda each: each.low)
        self.epochs.append(self.active)
