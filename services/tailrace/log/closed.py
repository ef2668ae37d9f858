"""Reads a file log that no server has open, for tools that must not change a byte of it (docs/formats/log.md)."""

from __future__ import annotations

import bisect
import os
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common.errors import CorruptionError
from tailrace.log import frames
from tailrace.log.disk import RealDisk, RealFile, RealLock
from tailrace.log.frames import Condition, Verdict
from tailrace.log.port import RecoveredFrame
from tailrace.log.recovery import AcceptedFile, Decision, decide
from tailrace.log.scan import Window, frame_at, read_frames, scan_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailrace.common.errors import DataError
    from tailrace.log.disk import DirectoryLock, ReadableDisk
    from tailrace.log.recovery import FileScan


class Damage(NamedTuple):
    """Damage of a log; ``position`` None: the place as a whole."""

    place: str
    position: int | None
    reason: str


class ReadOnlyDisk:
    """The machine's disk as a `ReadableDisk`: it opens files for reading, and locks existing lock files only."""

    def __init__(self) -> None:
        self._disk = RealDisk()

    def open(self, path: str) -> RealFile:
        """See ReadableDisk.open."""
        return RealFile(self._disk, path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def list(self, directory: str) -> list[str]:
        """See ReadableDisk.list. A missing directory is empty: nothing was ever written to it."""
        return self._disk.list(directory) if os.path.isdir(directory) else []

    def lock(self, directory: str) -> RealLock:
        """See ReadableDisk.lock. Without a lock file there is no owner: every owner creates it first."""
        try:
            descriptor = os.open(os.path.join(directory, "lock"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return RealLock(-1)
        return RealLock.taken(descriptor, directory)

    def close(self) -> None:
        """End its threads; all files must be closed."""
        self._disk.close()


class ClosedLog:
    """The valid frames of a file log, as its next owner would find them; nothing is changed.

    The log is locked from `open` to `close`, so that no owner opens it meanwhile. ``opened_epoch``: see `FileLog`.
    """

    def __init__(self, disk: ReadableDisk, directory: str, container: int, *, opened_epoch: int = 0) -> None:
        self._disk = disk
        self.directory = directory
        self._container = container
        self._opened_epoch = opened_epoch
        self._lock: DirectoryLock | None = None
        self._decision = Decision()
        self._last_read: tuple[int, bytes] = (-1, b"")
        self.scans: list[FileScan] = []

    async def open(self) -> None:
        """Lock the log and find its valid frames. ``scans`` describes each file even when this fails.

        Raises:
            StartError: the log is in use.
            CorruptionError, DataLossError, FormatVersionError: as `DurableLog.open`.
        """
        self._lock = self._disk.lock(self.directory)
        self.scans = await scan_directory(self._disk, self.directory, self._container)
        self._decision = decide(self.scans)
        self._decision.check_opened(self.directory, self._opened_epoch)

    @property
    def has_begun(self) -> bool:
        """Return whether the log ever had an owner."""
        return self._decision.previous_epoch > 0

    @property
    def frame_count(self) -> int:
        """Return the number of valid frames."""
        return sum(accepted.last + 1 - accepted.first for accepted in self._decision.files)

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of the files up to their last frame."""
        return sum(scan.end_offset for scan in self.scans)

    async def recover(self, first_sequence: int = 0) -> AsyncIterator[RecoveredFrame]:
        """See DurableLog.recover."""
        for accepted in self._decision.files:
            async for frame in read_frames(self._disk, accepted, first_sequence):
                yield RecoveredFrame(frame.header.sequence, frame.header.epoch, frame.payload)

    def place_of(self, sequence: int) -> tuple[str, int]:
        """Return file and offset of a frame. Raises KeyError: it does not exist."""
        accepted = self._file_of(sequence)
        scan = accepted.scan
        return scan.name, scan.sectors[sequence - scan.first_sequence] * frames.SECTOR_BYTES

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        """See DurableLog.read. The last frame that was read stays in memory."""
        if self._last_read[0] != sequence:
            self._last_read = sequence, await self._read_frame(sequence)
        return self._last_read[1][offset : offset + length]

    async def _read_frame(self, sequence: int) -> bytes:
        name, place = self.place_of(sequence)
        file = self._disk.open(name)
        try:
            found = await frame_at(Window(file), place)
        finally:
            file.close()
        if isinstance(found, Verdict):
            raise CorruptionError(f"{name} at offset {place}", found.reason or f"the frame is {found.condition.value}")
        return bytes(found[1])

    def _file_of(self, sequence: int) -> AcceptedFile:
        files = self._decision.files
        index = bisect.bisect_right(files, sequence, key=lambda accepted: accepted.first) - 1
        if index < 0 or sequence > files[index].last:
            raise KeyError(f"log frame {sequence} does not exist")
        return files[index]

    async def damage(self, error: DataError) -> list[Damage]:
        """Return all damage; `error` is the first that was found."""
        damaged = [scan for scan in self.scans if scan.end is Condition.CORRUPT]
        found = [
            Damage(scan.name, scan.end_offset, f"log frame {scan.next_sequence}: {scan.reason}") for scan in damaged
        ]
        if not (isinstance(error, CorruptionError) and any(scan.name in str(error) for scan in damaged)):
            found.append(Damage("", None, str(error)))
        return found

    @property
    def held_bytes(self) -> int:
        """Return the bytes of its files, which are longer than their content."""
        return sum(scan.length_bytes for scan in self.scans)

    def close(self) -> None:
        """Unlock the log."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
