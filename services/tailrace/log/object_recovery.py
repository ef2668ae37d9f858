"""Decides which frames of an object log are valid, from a scan of its objects; pure.

See docs/design.md#object-log, docs/formats/log.md.

The rules are those of the file log. The contiguous prefix is valid. A frame missing at or below the greatest
``acknowledged_through`` is a data loss, and the log is refused. A frame missing above it was never acknowledged; it and
all later ones are dropped. Frames below ``log_start`` were truncated. The newest START frame lists the valid frames of
older epochs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace.common.errors import CorruptionError, DataLossError
from tailrace.log.frame_index import Extent
from tailrace.log.frames import EpochRange, FrameHeader, FrameKind, StartRecord

if TYPE_CHECKING:
    from tailrace.log.object_keys import LogKeys

WINDOW_FRAMES: Final = 64
"""An owner stores frame n only after n − WINDOW_FRAMES is acknowledged. Part of the format: recovery searches so far
behind a gap."""


@dataclass(frozen=True, slots=True)
class StartedEpoch:
    """The START frame of an epoch."""

    header: FrameHeader
    record: StartRecord


@dataclass(slots=True)
class ObjectScan:
    """The contiguous frames of one epoch from ``first_sequence`` on, by the lengths of their objects.

    ``greatest_*`` cover every header that was read, also those behind the first gap.
    """

    epoch: int
    first_sequence: int
    lengths: array[int] = field(default_factory=lambda: array("I"))
    greatest_acknowledged: int = -1
    greatest_log_start: int = 0

    @property
    def next_sequence(self) -> int:
        """Return the sequence after the last frame."""
        return self.first_sequence + len(self.lengths)

    def accept(self, header: FrameHeader) -> None:
        """Add the next frame of the prefix."""
        self.lengths.append(header.frame_length)
        self.note(header)

    def note(self, header: FrameHeader) -> None:
        """Take the counters of any frame of the epoch."""
        self.greatest_acknowledged = max(self.greatest_acknowledged, header.acknowledged_through)
        self.greatest_log_start = max(self.greatest_log_start, header.log_start)


@dataclass(slots=True)
class ObjectDecision:
    """The valid frames of the log. ``previous_epoch`` is the newest epoch with a START frame (0: none)."""

    previous_epoch: int = 0
    next_sequence: int = 0
    log_start: int = 0
    extents: list[Extent] = field(default_factory=list)

    @property
    def history(self) -> tuple[EpochRange, ...]:
        """Return the accepted frames, as a START frame lists them."""
        return tuple(
            EpochRange(extent.epoch, extent.first_sequence, extent.next_sequence - 1)
            for extent in self.extents
            if extent.lengths
        )

    def check_opened(self, folder: str, epoch: int) -> None:
        """Check that the log is the one that was opened for `epoch` (0: none was). Raises DataLossError.

        Only a START frame proves that: an attempt to open a log that fails leaves a claim, and a log may lose its
        frames without its claims. An epoch's START frame is deleted only once a later epoch's is stored.
        """
        if self.previous_epoch < epoch:
            raise lost_epoch(folder, epoch)


def lost_epoch(folder: str, epoch: int) -> DataLossError:
    """Return the error of a log that was opened for an epoch and does not have it."""
    return DataLossError(f"log {folder} has lost epoch {epoch}, its last one")


def check_identity(
    header: FrameHeader, place: str, *, kind: FrameKind, container: int, epoch: int, nonce: bytes | None = None
) -> None:
    """Raise CorruptionError unless a header belongs to its key. ``nonce`` None: any owner's."""
    reason = ""
    if header.container != container:
        reason = f"the frame belongs to container {header.container}"
    elif header.epoch != epoch:
        reason = f"the frame belongs to epoch {header.epoch}"
    elif header.kind is not kind:
        reason = f"a {header.kind.name} frame is stored in place of a {kind.name} frame"
    elif nonce is not None and header.nonce != nonce:
        reason = "another owner wrote in this epoch"
    if reason:
        raise CorruptionError(place, reason)


def decide(
    keys: LogKeys, top: StartedEpoch, mark: FrameHeader | None, own: ObjectScan, older: Sequence[ObjectScan]
) -> ObjectDecision:
    """Decide which frames are valid.

    ``top`` is the newest START frame, ``mark`` the last MARK of its epoch, ``own`` the scan of its frames. ``older``
    has a scan for each entry of its history that is not truncated as a whole.

    Raises:
        DataLossError: an acknowledged frame is missing; the text names its object.
    """
    record = top.record
    log_start = greatest_log_start(top, mark, own)
    acknowledged = max(
        record.first_sequence - 1,
        top.header.acknowledged_through,
        mark.acknowledged_through if mark is not None else -1,
        own.greatest_acknowledged,
    )
    decision = ObjectDecision(top.header.epoch, log_start=log_start)
    for entry, scan in zip(remaining_history(record, log_start), older, strict=True):
        if scan.next_sequence <= entry.last:
            raise _loss(keys, entry.epoch, scan.next_sequence, entry.last)
        decision.extents.append(Extent(scan.epoch, scan.first_sequence, scan.lengths))
    if own.next_sequence <= acknowledged:
        raise _loss(keys, own.epoch, own.next_sequence, acknowledged)
    decision.extents.append(Extent(own.epoch, own.first_sequence, own.lengths))
    decision.next_sequence = own.next_sequence
    return decision


def greatest_log_start(top: StartedEpoch, mark: FrameHeader | None, own: ObjectScan) -> int:
    """Return the lowest sequence that recovery may still need."""
    return max(top.header.log_start, mark.log_start if mark is not None else 0, own.greatest_log_start)


def remaining_history(record: StartRecord, log_start: int) -> list[EpochRange]:
    """Return the entries of a START frame, without frames that were truncated since."""
    return [
        EpochRange(entry.epoch, max(entry.first, log_start), entry.last)
        for entry in record.history
        if entry.last >= log_start
    ]


def _loss(keys: LogKeys, epoch: int, sequence: int, acknowledged: int) -> DataLossError:
    key = keys.frame(epoch, sequence)
    return DataLossError(f"log frame {sequence} is missing ({key}), but frames through {acknowledged} were durable")
