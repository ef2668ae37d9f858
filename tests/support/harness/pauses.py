"""Randomness that decides how often a client tries."""

from __future__ import annotations

from tailrace.common.real_ports import SystemEntropy


class PausesPastAnyDeadline(SystemEntropy):
    """A client with it gives up after so many pauses, on a slow machine too: the next is longer than any deadline."""

    def __init__(self, after: int = 0) -> None:
        self._left = after

    def uniform(self) -> float:
        """Return what makes the pause as short as usual, or longer than any deadline."""
        self._left -= 1
        return 0.0 if self._left >= 0 else 1e9
