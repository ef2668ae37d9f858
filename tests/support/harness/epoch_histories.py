"""Random histories of a stream's scales, and positions that a reader could be at."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import strategies as st

from tailrace.common.ranges import KeyRange, split_range
from tailrace.controller.metadata import epochs as algebra
from tailrace.controller.metadata.model import Epoch, StreamSegment


@dataclass
class EpochHistory:
    """A stream's epochs, made by valid scales."""

    epochs: list[Epoch]
    next_number: int

    @property
    def last(self) -> Epoch:
        """The active epoch."""
        return self.epochs[-1]

    @property
    def segments(self) -> dict[int, StreamSegment]:
        """Every segment that there ever was, by id."""
        return algebra.segments_of(self.epochs)

    def scale(self, first: int, count: int, parts: int) -> None:
        """Replace `count` segments from the one at `first`, counted modulo, by `parts` equal ones."""
        active = self.last.segments
        first %= len(active)
        replaced = active[first : first + count]
        whole = KeyRange(replaced[0].low, replaced[-1].high)
        created = algebra.new_segments(split_range(whole, parts), self.next_number, self.last.epoch + 1)
        self.next_number += parts
        sealed = [segment.identifier for segment in replaced]
        self.epochs.append(algebra.next_epoch(self.last, sealed, created, 0))


def precedes(first: StreamSegment, second: StreamSegment) -> bool:
    """Whether `first` must be read to its end before `second` because they share keys."""
    return first.epoch < second.epoch and first.key_range.overlaps(second.key_range)


@st.composite
def histories(draw: st.DrawFn) -> EpochHistory:
    """Up to six scales."""
    count = draw(st.integers(1, 5))
    history = EpochHistory([algebra.first_epoch(count, draw(st.integers(0, 3)), 0)], 10)
    for _ in range(draw(st.integers(0, 6))):
        history.scale(draw(st.integers(0, 20)), draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    return history


@st.composite
def histories_with_cuts(draw: st.DrawFn, count: int = 1) -> tuple[EpochHistory, list[dict[int, int]]]:
    """A history with cuts that a reader could be at: it has read some segments to their ends, others in part."""
    history = draw(histories())
    return history, [draw_cut(draw, history) for _ in range(count)]


def draw_cut(draw: st.DrawFn, history: EpochHistory) -> dict[int, int]:
    """A position that a reader could be at."""
    reading = {segment.identifier: segment for segment in history.epochs[0].segments}
    for before, after in itertools.pairwise(history.epochs):
        replaced = [segment for segment in before.segments if after.find(segment.identifier) is None]
        if all(segment.identifier in reading for segment in replaced) and draw(st.booleans()):
            for segment in replaced:
                del reading[segment.identifier]
            reading |= {item.identifier: item for item in after.segments if before.find(item.identifier) is None}
    return {identifier: draw(st.integers(0, 5)) for identifier in sorted(reading)}


def offsets_by_range(cut: dict[int, int], history: EpochHistory) -> dict[tuple[float, float], tuple[int, int]]:
    """Where the cut is in every smallest part of the key space: (epoch of the segment, offset)."""
    edges = sorted({edge for segment in history.segments.values() for edge in segment.key_range})
    found = {}
    for low, high in itertools.pairwise(edges):
        for identifier, offset in cut.items():
            segment = history.segments[identifier]
            if segment.low <= low and high <= segment.high:
                found[low, high] = (segment.epoch, offset)
    return found
