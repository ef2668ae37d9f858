"""Calculates whether frames certainly fit into the files of a log (docs/design.md#faults-of-the-log). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrameSpace:
    """The capacity of an empty file for frames, and the size of the largest frame, which is not above it.

    A frame is in one file, so every file but the last may end with unused room, too small for the next frame.
    """

    file_bytes: int
    frame_bytes: int

    def fits(self, length_bytes: int, frame_count: int, room_bytes: int, files: int) -> bool:
        """Return whether frames of that total length fit into the room of the current file and so many empty ones."""
        gain = self.file_bytes - self.frame_bytes
        sure = room_bytes + files * gain
        if files:
            sure = max(sure, self.file_bytes + (files - 1) * gain)
        if length_bytes <= sure:
            return True
        per_file = self.file_bytes // self.frame_bytes
        return frame_count <= room_bytes // self.frame_bytes + files * per_file

    def files_for(self, length_bytes: int, frame_count: int) -> int:
        """Return how many empty files are enough."""
        by_count = -(-frame_count // (self.file_bytes // self.frame_bytes))
        gain = self.file_bytes - self.frame_bytes
        if not gain:
            return max(1, by_count)
        by_length = 1 + max(0, -(-(length_bytes - self.file_bytes) // gain))
        return max(1, min(by_count, by_length))
