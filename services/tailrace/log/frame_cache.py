"""Caches small frames that a scan reads whole, so that the recovery after it needs no request for them.

See docs/design.md#object-log.

A scan needs only headers. But in an object store a request costs the same for a header and for a small frame, and a log
may have thousands of frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.log.frame_index import Extent


class FrameCache:
    """Verified payloads of one log. With the reads in progress, at most ``limits.LOG_OBJECT_CACHE_BYTES``."""

    def __init__(self) -> None:
        self._payloads: dict[tuple[int, int], memoryview] = {}
        self._lengths: dict[tuple[int, int], int] = {}
        self._used_bytes = 0

    def reserve(self, length_bytes: int) -> bool:
        """Reserve room to read an object whole; return whether there was. Then call `keep` or `release`."""
        if length_bytes > limits.LOG_OBJECT_CACHE_FRAME_MAX_BYTES:
            return False
        if self._used_bytes + length_bytes > limits.LOG_OBJECT_CACHE_BYTES:
            return False
        self._used_bytes += length_bytes
        return True

    def release(self, length_bytes: int) -> None:
        """Free reserved room: the object is not kept."""
        self._used_bytes -= length_bytes

    def keep(self, epoch: int, sequence: int, payload: memoryview, length_bytes: int) -> None:
        """Keep the verified payload of an object whose room is reserved."""
        self._drop(epoch, sequence)
        self._payloads[epoch, sequence] = payload
        self._lengths[epoch, sequence] = length_bytes

    def get(self, epoch: int, sequence: int) -> memoryview | None:
        """Return a frame's payload, if it is kept."""
        return self._payloads.get((epoch, sequence))

    def retain(self, extents: Sequence[Extent]) -> None:
        """Drop all frames that are not in the extents."""
        ends = {extent.epoch: (extent.first_sequence, extent.next_sequence) for extent in extents}
        for epoch, sequence in list(self._payloads):
            first, end = ends.get(epoch, (0, 0))
            if not first <= sequence < end:
                self._drop(epoch, sequence)

    def clear(self) -> None:
        """Drop everything."""
        self._used_bytes -= sum(self._lengths.values())
        self._payloads.clear()
        self._lengths.clear()

    def _drop(self, epoch: int, sequence: int) -> None:
        if self._payloads.pop((epoch, sequence), None) is not None:
            self._used_bytes -= self._lengths.pop((epoch, sequence))
