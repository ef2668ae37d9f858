"""What every log keeps about its frames (design §4)."""

from __future__ import annotations


class SequencedLog:
    """Numbers of the frames of a log that is written, as `DurableLog` shows them."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._next_sequence = 0
        self._log_start = 0
        self._unsynced_bytes = 0

    @property
    def max_frame_bytes(self) -> int:
        """Largest payload that one frame may carry."""
        return self._max_frame_bytes

    @property
    def next_sequence(self) -> int:
        """Address that the next appended frame will get."""
        return self._next_sequence

    @property
    def log_start(self) -> int:
        """Address of the first frame that was not truncated."""
        return self._log_start

    @property
    def unsynced_bytes(self) -> int:
        """Payload bytes that were appended and are not durable yet; the caller keeps them bounded."""
        return self._unsynced_bytes
