"""What every log keeps about its frames (design §4)."""

from __future__ import annotations

from tailrace.common import limits


class SequencedLog:
    """Numbers of the frames of a log that is written, as `DurableLog` shows them."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._next_sequence = 0
        self._log_start = 0
        self._unsynced_bytes = 0
        self._epochs_at_opening = 0

    @property
    def max_frame_bytes(self) -> int:
        """Largest payload that one frame may carry."""
        return self._max_frame_bytes

    @property
    def frame_target_bytes(self) -> int:
        """See DurableLog.frame_target_bytes."""
        return min(limits.FRAME_PAYLOAD_TARGET_BYTES, self._max_frame_bytes)

    @property
    def frames_in_flight_max(self) -> int:
        """One that is being synced, and one that was written meanwhile."""
        return limits.LOG_FRAMES_IN_FLIGHT_MAX

    @property
    def part_frames_in_flight_max(self) -> int:
        """What is written while a sync runs costs no sync of its own."""
        return limits.LOG_FRAMES_IN_FLIGHT_MAX

    @property
    def frames_cost_requests(self) -> bool:
        """They lie behind each other in files."""
        return False

    def frames_per_checkpoint(self, worth: int) -> int:
        """They are scanned in one go: their bytes and their operations count."""
        return limits.CHECKPOINT_INTERVAL_OPERATIONS

    @property
    def next_sequence(self) -> int:
        """Address that the next appended frame will get."""
        return self._next_sequence

    @property
    def log_start(self) -> int:
        """Address of the first frame that was not truncated."""
        return self._log_start

    @property
    def epochs_at_opening(self) -> int:
        """See DurableLog.epochs_at_opening."""
        return self._epochs_at_opening

    @property
    def unsynced_bytes(self) -> int:
        """Return the payload bytes that are appended and not durable yet. The simulator checks their bound."""
        return self._unsynced_bytes
