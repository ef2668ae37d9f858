"""What both implementations of the block cache share: sizes, the error, the statistics.

The metadata of a block is one unsigned 64-bit number in block 0 of its buffer, in the machine's byte order (it never
leaves memory):

==========  ===================================================================
bits        meaning
==========  ===================================================================
0 to 31     address of the previous block of the entry (0 = none); of a free
            block, the index of the next free one in its buffer (0 = none)
32 to 44    bytes stored in the block
45          the block is used
46          the block is the last of an entry, so its address is the entry's
47          the entry was deleted, the block waits for its last view
48 to 63    views that pin the block
==========  ===================================================================

The number of block 0 itself: in bits 0 to 31 the index of the first free block (0 = none), in the rest their count.
"""

from __future__ import annotations

from typing import NamedTuple

BLOCK_BYTES = 4096
BUFFER_BYTES = 2 * 1024 * 1024
BLOCKS_PER_BUFFER = BUFFER_BYTES // BLOCK_BYTES
USABLE_BLOCKS_PER_BUFFER = BLOCKS_PER_BUFFER - 1
# Addresses have 32 bits: 9 for the block in its buffer, 23 for the buffer.
BUFFERS_MAX = 1 << 23
PINS_MAX = (1 << 16) - 1


class CacheFullError(RuntimeError):
    """The cache has fewer free blocks than the operation needs (or than were reserved for it); nothing was changed."""


class CacheSnapshot(NamedTuple):
    """The state of a cache at one moment. ``used_bytes + free_blocks * 4096 == max_bytes`` always holds."""

    max_bytes: int
    """Memory of all buffers: the hard bound, metadata included."""
    used_bytes: int
    """Metadata, blocks of entries, and blocks of deleted entries that wait for their views."""
    stored_bytes: int
    """Bytes of data in entries."""
    metadata_bytes: int
    total_blocks: int
    """Blocks that can hold data."""
    free_blocks: int
    """Free blocks, the reserved ones included."""
    reserved_blocks: int
    pinned_blocks: int
    """Blocks under at least one view."""
    deferred_blocks: int
    """Blocks of deleted entries that wait for their views."""
    entries: int
    full_buffers: int


def blocks_needed(length_bytes: int) -> int:
    """Blocks that an entry of this length takes: at least one, as an empty entry holds a block too."""
    if length_bytes < 0:
        raise ValueError(f"a length is not negative: {length_bytes}")
    return max(1, -(-length_bytes // BLOCK_BYTES))


def buffers_for(max_bytes: int) -> int:
    """Number of buffers within ``max_bytes``; raises ValueError if not even one fits, or if addresses end before."""
    count = max_bytes // BUFFER_BYTES
    if not 1 <= count <= BUFFERS_MAX:
        raise ValueError(
            f"a cache has at least {BUFFER_BYTES} bytes and at most {BUFFERS_MAX * BUFFER_BYTES}: {max_bytes}"
        )
    return count
