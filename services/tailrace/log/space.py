"""Whether frames surely fit into the files that a log has (design §3.5). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrameSpace:
    """Bytes of frames that an empty file takes, and of the largest frame; the first is not below the second.

    A frame lies in one file, so every file but the last may end with a part that the next frame did not fit in.
    """

    file_bytes: int
    frame_bytes: int

    def fits(self, length_bytes: int, frame_count: int, room_bytes: int, files: int) -> bool:
        """Whether frames of that length in all fit into the room of the present file and so many empty ones."""
        gain = self.file_bytes - self.frame_bytes
        sure = room_bytes + files * gain
        if files:
            sure = max(sure, self.file_bytes + (files - 1) * gain)
        if length_bytes <= sure:
            return True
        per_file = self.file_bytes // self.frame_bytes
        return frame_count <= room_bytes // self.frame_bytes + files * per_file

    def files_for(self, length_bytes: int, frame_count: int) -> int:
        """How many empty files are enough."""
        by_count = -(-frame_count // (self.file_bytes // self.frame_bytes))
        gain = self.file_bytes - self.frame_bytes
        if not gain:
            return max(1, by_count)
        by_length = 1 + max(0, -(-(length_bytes - self.file_bytes) // gain))
        return max(1, min(by_count, by_length))
