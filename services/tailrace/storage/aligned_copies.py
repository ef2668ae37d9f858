"""Aligned memory for objects that are written past the page cache (docs/design.md#objects-in-a-folder)."""

from __future__ import annotations

import mmap
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.storage.port import Buffer

ALIGNMENT_BYTES: Final = 4096
"""No file system asks for more of addresses, offsets and lengths. Pages are as large, so mapped memory is aligned."""


@dataclass(slots=True)
class AlignedCopy:
    """The joined buffers of an object, at the beginning of aligned memory."""

    memory: mmap.mmap
    length_bytes: int

    def view(self) -> memoryview:
        """Return the joined buffers."""
        return memoryview(self.memory)[: self.length_bytes]


class AlignedCopies:
    """Makes aligned copies, and keeps up to ``limits.UPLOADS_MAX`` returned ones, whose memory is used again.

    New memory costs the kernel a fault for each page. Threads may use it at a time.
    """

    def __init__(self) -> None:
        self._idle: deque[mmap.mmap] = deque(maxlen=limits.UPLOADS_MAX)

    def take(self, data: Sequence[Buffer], length_bytes: int) -> AlignedCopy:
        """Copy the joined buffers, which have that length."""
        memory = self._memory(length_bytes)
        position = 0
        for piece in data:
            end = position + len(piece)
            memory[position:end] = piece
            position = end
        return AlignedCopy(memory, length_bytes)

    def _memory(self, length_bytes: int) -> mmap.mmap:
        if length_bytes > limits.STORAGE_ALIGNED_BYTES:
            return _new_memory(length_bytes)
        try:
            return self._idle.pop()
        except IndexError:
            return _new_memory(limits.STORAGE_ALIGNED_BYTES)

    def give(self, copy: AlignedCopy) -> None:
        """Return a copy; the caller must not use it any more. One that is not returned is freed with its object."""
        if len(copy.memory) == limits.STORAGE_ALIGNED_BYTES:
            self._idle.append(copy.memory)


def _new_memory(length_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
