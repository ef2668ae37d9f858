"""An index of the valid frames of an object log, with the lengths of their objects. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Extent:
    """Valid frames that `epoch` wrote, from ``first_sequence`` on, with objects of these lengths."""

    epoch: int
    first_sequence: int
    lengths: array[int]

    @property
    def next_sequence(self) -> int:
        """Return the sequence after the last frame."""
        return self.first_sequence + len(self.lengths)

    def length_of(self, sequence: int) -> int:
        """Return the bytes of a frame's object."""
        return self.lengths[sequence - self.first_sequence]

    def forget_below(self, sequence: int) -> None:
        """Drop the frames below `sequence`."""
        dropped = min(max(sequence - self.first_sequence, 0), len(self.lengths))
        del self.lengths[:dropped]
        self.first_sequence += dropped

    def copy(self) -> Extent:
        """Return a copy that does not change."""
        return Extent(self.epoch, self.first_sequence, self.lengths[:])


class FrameIndex:
    """The frames of an open log: those of earlier epochs, then those of its owner, which grow."""

    def __init__(self, earlier: Sequence[Extent] = (), own_epoch: int = 0, next_sequence: int = 0) -> None:
        self.own = Extent(own_epoch, next_sequence, array("I"))
        self.extents = [*earlier, self.own]

    def length_bytes(self, first: int, end: int) -> int:
        """Return the bytes of the objects of frames `first` to `end` − 1."""
        return sum(length for _, _, length in self.places(first, end))

    def places(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield epoch, sequence and object length of the frames `first` to `end` − 1, as of the call."""
        for extent in [extent.copy() for extent in self.extents]:
            for sequence in range(max(first, extent.first_sequence), min(end, extent.next_sequence)):
                yield extent.epoch, sequence, extent.length_of(sequence)

    def epoch_of(self, sequence: int) -> int | None:
        """Return the epoch that wrote a frame; None when the frame is not valid."""
        for extent in reversed(self.extents):
            if extent.first_sequence <= sequence < extent.next_sequence:
                return extent.epoch
        return None

    def forget_below(self, sequence: int) -> None:
        """Drop the frames below `sequence`."""
        for extent in self.extents:
            extent.forget_below(sequence)
        self.extents = [extent for extent in self.extents if extent.lengths or extent is self.own]
