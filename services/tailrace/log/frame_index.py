"""Which frames of an object log count, and how long their objects are. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Extent:
    """Frames that count: `epoch` wrote them, from ``first_sequence`` on, with objects of these lengths."""

    epoch: int
    first_sequence: int
    lengths: array[int]

    @property
    def next_sequence(self) -> int:
        """The sequence after the last of them."""
        return self.first_sequence + len(self.lengths)

    def length_of(self, sequence: int) -> int:
        """Bytes of a frame's object."""
        return self.lengths[sequence - self.first_sequence]

    def forget_below(self, sequence: int) -> None:
        """Drop the frames below `sequence`."""
        dropped = min(max(sequence - self.first_sequence, 0), len(self.lengths))
        del self.lengths[:dropped]
        self.first_sequence += dropped

    def copy(self) -> Extent:
        """One that does not change any more."""
        return Extent(self.epoch, self.first_sequence, self.lengths[:])


class FrameIndex:
    """The frames of an open log: those of earlier epochs, then its owner's own, which grow."""

    def __init__(self, earlier: Sequence[Extent] = (), own_epoch: int = 0, next_sequence: int = 0) -> None:
        self.own = Extent(own_epoch, next_sequence, array("I"))
        self.extents = [*earlier, self.own]

    def length_bytes(self, first: int, end: int) -> int:
        """Bytes of the objects of frames `first` to `end` − 1."""
        return sum(length for _, _, length in self.places(first, end))

    def places(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Epoch, sequence and object length of the frames `first` to `end` − 1, as they are now."""
        for extent in [extent.copy() for extent in self.extents]:
            for sequence in range(max(first, extent.first_sequence), min(end, extent.next_sequence)):
                yield extent.epoch, sequence, extent.length_of(sequence)

    def epoch_of(self, sequence: int) -> int | None:
        """Who wrote a frame; None when it does not count."""
        for extent in reversed(self.extents):
            if extent.first_sequence <= sequence < extent.next_sequence:
                return extent.epoch
        return None

    def forget_below(self, sequence: int) -> None:
        """Drop the frames below `sequence`."""
        for extent in self.extents:
            extent.forget_below(sequence)
        self.extents = [extent for extent in self.extents if extent.lengths or extent is self.own]
