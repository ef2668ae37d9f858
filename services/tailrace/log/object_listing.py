"""What a list of an object log's objects shows: a hint of where to read, and when fewer reads notice a loss. Pure.

See docs/design.md#object-log, docs/formats/log.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.log.object_keys import ObjectKind

if TYPE_CHECKING:
    from tailrace.log.object_keys import LogKeys


@dataclass(frozen=True, slots=True)
class LogListing:
    """The frames and marks of a list, which may be outdated. Without arguments: nothing is known."""

    last_frames: dict[int, int] = field(default_factory=dict)
    """Greatest sequence of each epoch that has frames."""
    lengths: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes of the object of each frame, by epoch and sequence."""
    last_marks: dict[int, int] = field(default_factory=dict)
    """Number of the newest mark of each epoch that has marks."""
    is_current: bool = False
    """It is no older than the claim behind those epochs: it shows whatever their owners acknowledged."""

    @classmethod
    def of(cls, keys: LogKeys, found: Mapping[str, int], below_epoch: int) -> LogListing:
        """Make it of the lengths of the listed objects, for a scan of the epochs before `below_epoch`."""
        last_frames: dict[int, int] = {}
        lengths: dict[tuple[int, int], int] = {}
        last_marks: dict[int, int] = {}
        for key, length in found.items():
            name = keys.parse(key)
            if name is None:
                continue
            if name.kind is ObjectKind.FRAME:
                last_frames[name.epoch] = max(last_frames.get(name.epoch, 0), name.number)
                lengths[name.epoch, name.number] = length
            elif name.kind is ObjectKind.MARK:
                last_marks[name.epoch] = max(last_marks.get(name.epoch, 0), name.number)
        return cls(last_frames, lengths, last_marks, keys.claim(below_epoch) in found)

    def ends_at(self, epoch: int, sequence: int) -> bool:
        """Return whether no frame of an epoch that was there, from `sequence` on, can have been acknowledged.

        A frame is acknowledged only while the next claim does not exist, so a list that shows a later claim shows that
        frame too, and those that its owner stored after it.
        """
        return self.is_current and self.last_frames.get(epoch, -1) < sequence
