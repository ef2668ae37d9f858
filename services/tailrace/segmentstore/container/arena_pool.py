"""The buffers in which a worker's containers make up log frames (docs/design.md#memory-budgets).

All containers of a worker share one pool, so that their number does not multiply what is kept for reuse.
"""

from __future__ import annotations

from tailrace.common import limits


class ArenaPool:
    """Gives out buffers, and keeps returned ones for reuse while all of them together are at most ``max_bytes``."""

    def __init__(self, max_bytes: int = limits.ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._idle: dict[int, list[bytearray]] = {}
        self.used_bytes = 0
        self.idle_bytes = 0

    def take(self, length_bytes: int) -> bytearray:
        """Take a buffer of that length with arbitrary content."""
        self.used_bytes += length_bytes
        idle = self._idle.get(length_bytes)
        if idle:
            self.idle_bytes -= length_bytes
            return idle.pop()
        return bytearray(length_bytes)

    def give(self, arena: bytearray) -> None:
        """Return a buffer; the caller and its views must not use it any more."""
        length_bytes = len(arena)
        self.forget(length_bytes)
        if self.used_bytes + self.idle_bytes + length_bytes <= self._max_bytes:
            self._idle.setdefault(length_bytes, []).append(arena)
            self.idle_bytes += length_bytes

    def forget(self, length_bytes: int) -> None:
        """Count a buffer out that is not returned: views of it may still be in use, as those of a stopped container."""
        self.used_bytes -= length_bytes
