"""Cache blocks that the staged appends of one segment will take. Pure."""

from __future__ import annotations

from collections import deque

from tailrace.kernel import BLOCK_BYTES


class StagedTail:
    """Bytes that are staged behind a segment's tail entry, and the blocks that they take when they are committed.

    They fill the last block of the tail entry, which has `free_bytes` left, and then new blocks. So they take exactly
    as many blocks as are reserved for them, however the bytes are cut into appends. What the tail will be behind a
    staged merge is not known: bytes behind it count from a new block, which is never too little.
    """

    __slots__ = ("_free_bytes", "_stretches", "flush_again")

    def __init__(self, free_bytes: int) -> None:
        self._free_bytes = free_bytes
        self._stretches = deque([0])  # staged bytes before the first staged merge, between that and the next, ...
        self.flush_again = False
        """Whether the tail entry, which Tier 2 held, could not be made evictable because of these bytes."""

    @property
    def blocks(self) -> int:
        """Blocks that all staged bytes take."""
        stretches = iter(self._stretches)
        return _blocks(next(stretches) - self._free_bytes) + sum(map(_blocks, stretches))

    @property
    def idle(self) -> bool:
        """Whether nothing is staged."""
        return len(self._stretches) == 1 and not self._stretches[0]

    def growth(self, length: int) -> int:
        """Return how many more blocks it takes with one more append of that length."""
        staged = self._stretches[-1]
        if len(self._stretches) == 1:
            staged -= self._free_bytes
        # As _blocks(staged + length) - _blocks(staged), for each append.
        return -staged // BLOCK_BYTES - -(staged + length) // BLOCK_BYTES

    def closing(self) -> int:
        """Return how many more blocks it takes when the tail entry cannot grow any more: 0 or 1."""
        staged = self._stretches[0]
        return _blocks(staged) - _blocks(staged - self._free_bytes)

    def append_staged(self, length: int) -> None:
        """Add an append."""
        self._stretches[-1] += length

    def merge_staged(self) -> None:
        """Add a merge: another segment's entries will follow the tail."""
        self._stretches.append(0)

    def append_committed(self, length: int, free_bytes: int) -> None:
        """Take the first bytes away; the tail's last block has `free_bytes` left then."""
        self._stretches[0] -= length
        self._free_bytes = free_bytes

    def merge_committed(self, free_bytes: int) -> int:
        """Take the first merge away; return how many blocks fewer it takes with the tail that came with it."""
        before = self.blocks
        self._stretches.popleft()
        self._free_bytes = free_bytes
        return before - self.blocks

    def closed(self) -> None:
        """Count from a new block from now on."""
        self._free_bytes = 0


def _blocks(length: int) -> int:
    """Return the blocks of so many bytes; none when they are negative, by less than a block."""
    return -(-length // BLOCK_BYTES)
