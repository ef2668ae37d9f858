"""The frame counters that all logs share (docs/design.md#tier-1)."""

from __future__ import annotations

from tailrace.common import limits


class SequencedLog:
    """The properties of an open `DurableLog` that depend on frame counters. The defaults are those of a file log."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._next_sequence = 0
        self._log_start = 0
        self._unsynced_bytes = 0
        self._epochs_at_opening = 0

    @property
    def max_frame_bytes(self) -> int:
        """Return the largest payload that one frame may carry."""
        return self._max_frame_bytes

    @property
    def frame_target_bytes(self) -> int:
        """See DurableLog.frame_target_bytes."""
        return min(limits.FRAME_PAYLOAD_TARGET_BYTES, self._max_frame_bytes)

    @property
    def frames_in_flight_max(self) -> int:
        """See DurableLog: one frame is synced while the next is written."""
        return limits.LOG_FRAMES_IN_FLIGHT_MAX

    @property
    def part_frames_in_flight_max(self) -> int:
        """See DurableLog: a frame that is written while a sync runs costs no sync of its own."""
        return limits.LOG_FRAMES_IN_FLIGHT_MAX

    @property
    def frames_cost_requests(self) -> bool:
        """See DurableLog: recovery reads many frames of a file at once."""
        return False

    def frames_per_checkpoint(self, worth: int) -> int:
        """See DurableLog: frames of one operation each take longest to replay, for each of its bytes."""
        return max(worth, limits.LOG_FILE_CHECKPOINT_FRAMES)

    @property
    def next_sequence(self) -> int:
        """Return the address of the next appended frame."""
        return self._next_sequence

    @property
    def log_start(self) -> int:
        """Return the address of the first frame that is not truncated."""
        return self._log_start

    @property
    def epochs_at_opening(self) -> int:
        """See DurableLog.epochs_at_opening."""
        return self._epochs_at_opening

    @property
    def unsynced_bytes(self) -> int:
        """Return the payload bytes that are appended and not durable yet. The simulator checks their bound."""
        return self._unsynced_bytes
