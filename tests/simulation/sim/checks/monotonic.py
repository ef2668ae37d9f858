"""What may only grow, over all owners of a container (docs/design.md#invariants, I5).

The committed state is what readers are shown. Whatever it held when an owner died must be there after it: so no client
ever saw bytes that were not durable.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.violations import require
from tailrace.segmentstore.metadata.state import ContainerState


class Seen(NamedTuple):
    """The furthest that a segment was ever shown."""

    length: int
    start: int
    sealed: bool
    flushed_through: int


class Monotonic:
    """Compares each look at a container's committed state with all looks before."""

    def __init__(self) -> None:
        self._segments: dict[int, Seen] = {}
        self._gone: set[int] = set()
        self._epoch = 0
        self._sequence = 0

    def look(self, state: ContainerState) -> None:
        """Raises Violation when something went back."""
        require(state.epoch >= self._epoch, f"epoch {state.epoch} after {self._epoch}")
        sequence = state.committed_sequence
        require(sequence >= self._sequence, f"operation {sequence} is the last one, {self._sequence} was shown")
        self._epoch, self._sequence = state.epoch, sequence
        seen: dict[int, Seen] = {}
        for segment_id, segment in state.segments.items():
            now = Seen(segment.length, segment.start_offset, segment.sealed, segment.index.flushed_through)
            before = self._segments.get(segment_id, now)
            for what, old, new in zip(Seen._fields, before, now, strict=True):
                require(old <= new, f"{segment.name}: {what} {new} after {old}")
            require(now.start <= now.length, f"{segment.name} starts at {now.start}, its length is {now.length}")
            seen[segment_id] = now
        self._gone |= self._segments.keys() - seen.keys()
        self._segments = seen
        back = self._gone & seen.keys()
        require(not back, f"segments {sorted(back)} were gone and are there again")
