"""Decides which frames of a file log are valid, from a scan of its files; pure.

See docs/design.md#file-log, docs/formats/log.md.

Recovery takes the contiguous prefix. A frame missing at or below the greatest ``acknowledged_through`` is a data loss,
and the log is refused. A frame missing above it was never acknowledged; it and all later ones are dropped. Frames below
``log_start`` were truncated. The START frame of the newest epoch lists the valid frames of older epochs, so leftovers
that were never acknowledged cannot come back later.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.common.errors import CorruptionError, DataLossError
from tailrace.log.frames import Condition, EpochRange, StartRecord


@dataclass(slots=True)
class FileScan:
    """The result of scanning one file.

    ``sectors`` are the first sectors of the contiguous DATA frames from ``first_sequence`` on. ``end_offset`` is where
    that prefix (with its MARK frames) ends, and ``end`` what is there. ``greatest_*`` cover every valid header that
    the file's owner wrote, also those behind the end; ``strays`` counts the latter.
    """

    name: str
    epoch: int
    first_sequence: int
    length_bytes: int
    start: StartRecord | None = None
    nonce: bytes = b""
    sectors: array[int] = field(default_factory=lambda: array("I"))
    end_offset: int = 0
    end: Condition = Condition.ABSENT
    reason: str = ""
    strays: int = 0
    greatest_acknowledged: int = -1
    greatest_log_start: int = 0

    @property
    def next_sequence(self) -> int:
        """Return the sequence after the file's prefix."""
        return self.first_sequence + len(self.sectors)


@dataclass(frozen=True, slots=True)
class AcceptedFile:
    """The valid frames `first` to `last` of a file."""

    scan: FileScan
    first: int
    last: int


@dataclass(slots=True)
class Decision:
    """The valid frames of the log.

    Frames up to ``acknowledged_through`` are known as acknowledged; later ones were only found. ``previous_epoch`` is
    the newest epoch with a START frame, ``known_epoch`` the greatest epoch that ever tried to open the log; 0: none.
    """

    files: list[AcceptedFile] = field(default_factory=list)
    garbage: list[str] = field(default_factory=list)
    history: tuple[EpochRange, ...] = ()
    previous_epoch: int = 0
    known_epoch: int = 0
    next_sequence: int = 0
    log_start: int = 0
    acknowledged_through: int = -1

    def check_opened(self, directory: str, epoch: int) -> None:
        """Check that the log is the one that was opened for `epoch` (0: none was). Raises DataLossError.

        Only a START frame proves that: an attempt to open a log that fails may leave a file without one. An epoch's
        last START frame is deleted only once a later epoch's is durable.
        """
        if self.previous_epoch < epoch:
            state = f"ends with epoch {self.previous_epoch}" if self.previous_epoch else "is empty or missing"
            raise DataLossError(f"log folder {directory} {state}, but had one of epoch {epoch}")


def decide(scans: Iterable[FileScan]) -> Decision:
    """Decide which frames are valid.

    Raises:
        CorruptionError: a frame that recovery needs is damaged; the text names file and offset.
        DataLossError: an acknowledged frame is missing; the text names its sequence.
    """
    epochs: dict[int, list[FileScan]] = {}
    for scan in sorted(scans, key=lambda scan: (scan.epoch, scan.first_sequence)):
        epochs.setdefault(scan.epoch, []).append(scan)
    decision = Decision(known_epoch=max(epochs, default=0))
    top = _newest_started(epochs)
    if top is not None:
        _decide_from(epochs, top, decision)
    accepted = {file.scan.name for file in decision.files}
    decision.garbage = [scan.name for files in epochs.values() for scan in files if scan.name not in accepted]
    return decision


def _newest_started(epochs: dict[int, list[FileScan]]) -> int | None:
    """Return the newest epoch with a START frame: `open` returns only after that frame is durable."""
    for epoch in sorted(epochs, reverse=True):
        files = epochs[epoch]
        if any(scan.start is not None for scan in files):
            return epoch
        for scan in files:
            if scan.end is Condition.CORRUPT:
                raise CorruptionError(f"{scan.name} at offset {scan.end_offset}", scan.reason)
            if scan.strays:
                raise DataLossError(f"{scan.name}: frames of epoch {epoch} exist, but the START frame is missing")
    return None


def _decide_from(epochs: dict[int, list[FileScan]], top: int, decision: Decision) -> None:
    files = epochs[top]
    for scan in files:
        if scan.end is Condition.CORRUPT:
            # Refuse even a damaged MARK: without its log start, truncated frames would look lost.
            raise CorruptionError(f"{scan.name} at offset {scan.end_offset}", scan.reason)
    record = _agreed_start(files)
    decision.previous_epoch = top
    decision.log_start = max(scan.greatest_log_start for scan in files)
    decision.acknowledged_through = max(record.first_sequence - 1, *(scan.greatest_acknowledged for scan in files))
    history: list[EpochRange] = []
    for entry in record.history:
        first = max(entry.first, decision.log_start)
        if first <= entry.last:
            _walk(epochs.get(entry.epoch, []), first, entry.last, decision)
            history.append(EpochRange(entry.epoch, first, entry.last))
    first = max(record.first_sequence, decision.log_start)
    decision.next_sequence = _walk(files, first, None, decision)
    if decision.next_sequence > first:
        history.append(EpochRange(top, first, decision.next_sequence - 1))
    decision.history = tuple(history)


def _agreed_start(files: list[FileScan]) -> StartRecord:
    """Return the START record of an epoch, from its last file that has one (history only shrinks)."""
    started = [scan for scan in files if scan.start is not None]
    for scan in started:
        if scan.nonce != started[0].nonce:
            raise CorruptionError(f"{scan.name} at offset 0", "another owner wrote in this epoch")
    record = started[-1].start
    assert record is not None
    return record


def _walk(files: list[FileScan], first: int, last: int | None, decision: Decision) -> int:
    """Accept the frames from `first` through `last` (None: to the end); return the next sequence.

    Raises:
        CorruptionError, DataLossError: as `decide`.
    """
    expected = first
    stopped_at: FileScan | None = None  # the last file that was checked
    begun = [scan for scan in files if scan.first_sequence <= first][-1:]
    for scan in begun + [scan for scan in files if scan.first_sequence > first]:
        if last is not None and expected > last:
            return expected
        if scan.first_sequence > expected:
            break
        stopped_at = scan
        if scan.start is None:
            continue
        if scan.first_sequence < expected and scan not in begun:
            raise CorruptionError(f"{scan.name} at offset 0", f"repeats frames below {expected}")
        end = scan.next_sequence - 1 if last is None else min(scan.next_sequence - 1, last)
        if end >= expected:
            decision.files.append(AcceptedFile(scan, expected, end))
            expected = end + 1
    if last is not None and expected > last:
        return expected
    if stopped_at is not None and stopped_at.end is Condition.CORRUPT:
        raise CorruptionError(f"{stopped_at.name} at offset {stopped_at.end_offset}", stopped_at.reason)
    acknowledged = decision.acknowledged_through if last is None else last
    if expected <= acknowledged:
        where = f" at {stopped_at.name} offset {stopped_at.end_offset}" if stopped_at is not None else ""
        raise DataLossError(f"log frame {expected} is missing{where}, but frames through {acknowledged} were durable")
    return expected
