"""Reads the files of a file log: a window over a file, and the scan for a recovery."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import is_zero
from tailrace.log import frames
from tailrace.log.frames import Condition, FrameHeader, FrameKind, StartRecord, Verdict
from tailrace.log.recovery import AcceptedFile, FileScan

if TYPE_CHECKING:
    from tailrace.log.disk import DiskFile, ReadableDisk

_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.log")
_SPARE: Final = re.compile(r"spare-\d+\.log")


def file_name(first_sequence: int, epoch: int) -> str:
    """Return the name of the file whose first frame has that sequence and epoch."""
    return f"{first_sequence:020d}-{epoch:020d}.log"


def spare_name(number: int) -> str:
    """Return the name of a file without frames."""
    return f"spare-{number}.log"


def is_spare(name: str) -> bool:
    """Return whether the name is one that `spare_name` makes."""
    return _SPARE.fullmatch(name) is not None


class Window:
    """Reads of a file at rising offsets, fetched in large pieces."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._start = 0
        self._data = memoryview(b"")
        self.length_bytes = file.length_bytes

    async def view(self, offset: int, length: int) -> memoryview:
        """Return the bytes there, fewer at the end of the file. The view stays valid."""
        if not self._start <= offset <= offset + length <= self._start + len(self._data):
            wanted = max(length, limits.LOG_SCAN_WINDOW_BYTES)
            self._data = memoryview(await self._read(offset, min(wanted, self.length_bytes - offset)))
            self._start = offset
        return self._data[offset - self._start : offset - self._start + length]

    async def _read(self, offset: int, length: int) -> bytes:
        data = await self._file.pread(offset, length) if length > 0 else b""
        while 0 < len(data) < length:
            more = await self._file.pread(offset + len(data), length - len(data))
            if not more:
                break
            data += more
        return data


async def frame_at(window: Window, offset: int) -> tuple[FrameHeader, memoryview] | Verdict:
    """Return the complete frame at an offset, or what is there instead."""
    header = frames.decode_header(await window.view(offset, frames.SECTOR_BYTES), offset)
    if isinstance(header, Verdict):
        return header
    image = await window.view(offset, header.frame_length)
    if len(image) < header.frame_length:
        return Verdict(Condition.CORRUPT, "the frame runs past the end of the file")
    verdict = frames.judge_frame(header, image)
    return (header, frames.payload_of(header, image)) if verdict.condition is Condition.COMPLETE else verdict


async def scan_directory(disk: ReadableDisk, directory: str, container: int) -> list[FileScan]:
    """Scan every log file of a directory."""
    scans = []
    nonces: dict[int, set[bytes]] = {}  # of the owner of each epoch
    without: list[FileScan] = []  # files that do not show their owner
    for name in disk.list(directory):
        if match := _NAME.fullmatch(name):
            file = disk.open(f"{directory}/{name}")
            try:
                scan = FileScan(f"{directory}/{name}", int(match[2]), int(match[1]), file.length_bytes)
                window = Window(file)
                await _scan_file(window, scan, container)
                if nonce := scan.nonce or await _nonce_of_torn_start(window, scan, container):
                    nonces.setdefault(scan.epoch, set()).add(nonce)
                    await _scan_rest(window, scan, container, {nonce})
                else:
                    without.append(scan)
            finally:
                file.close()
            scans.append(scan)
    for scan in without:
        file = disk.open(scan.name)
        try:
            await _scan_rest(Window(file), scan, container, nonces.get(scan.epoch, set()))
        finally:
            file.close()
    return scans


async def _nonce_of_torn_start(window: Window, scan: FileScan, container: int) -> bytes:
    """Return the owner's nonce in the header of a START that is not whole; empty: the header is not whole either.

    Only the log itself writes at the beginning of a file, never data of its users.
    """
    header = frames.decode_header(await window.view(0, frames.SECTOR_BYTES), 0)
    if isinstance(header, Verdict) or header.kind is not FrameKind.START:
        return b""
    return header.nonce if (header.container, header.epoch) == (container, scan.epoch) else b""


async def _scan_file(window: Window, scan: FileScan, container: int) -> None:
    offset = 0
    while offset < window.length_bytes:
        found = await frame_at(window, offset)
        if isinstance(found, Verdict):
            scan.end, scan.reason = found.condition, found.reason
            break
        header, payload = found
        if problem := _misplaced(scan, header, container):
            scan.end, scan.reason = Condition.CORRUPT, problem
            break
        _note(scan, header)
        if header.kind is FrameKind.DATA:
            scan.sectors.append(offset // frames.SECTOR_BYTES)
        elif header.kind is FrameKind.START:
            try:
                scan.start = StartRecord.decode(payload)
            except ValueError as error:
                scan.end, scan.reason = Condition.CORRUPT, str(error)
                break
            scan.nonce = header.nonce
        offset += header.frame_length
    scan.end_offset = offset


def _misplaced(scan: FileScan, header: FrameHeader, container: int) -> str:
    """Return why a complete frame does not belong to its position; empty when it does."""
    if header.container != container:
        return f"the frame belongs to container {header.container}"
    if header.epoch != scan.epoch:
        return f"the frame belongs to epoch {header.epoch}"
    if (header.kind is FrameKind.START) != (scan.start is None):
        return "a file begins with its only START frame"
    if scan.start is not None and header.nonce != scan.nonce:
        return "the frame has another owner's nonce"
    if header.sequence != scan.next_sequence:
        return f"frame {header.sequence} is stored in place of frame {scan.next_sequence}"
    return ""


def _note(scan: FileScan, header: FrameHeader) -> None:
    scan.greatest_acknowledged = max(scan.greatest_acknowledged, header.acknowledged_through)
    scan.greatest_log_start = max(scan.greatest_log_start, header.log_start)


async def _scan_rest(window: Window, scan: FileScan, container: int, nonces: Collection[bytes]) -> None:
    """Search for valid headers of the owner behind the prefix: they show what was acknowledged.

    Behind a torn frame there may be anything that its writer put into its payload, also what looks like a header. But
    the nonce is known to the owner alone, and all its files have it. Without `nonces` the epoch has no START frame, and
    each header counts.
    """
    offset = scan.end_offset
    while offset < window.length_bytes:
        piece = await window.view(offset, min(limits.LOG_SCAN_WINDOW_BYTES, window.length_bytes - offset))
        if not piece:
            return
        if not is_zero(piece):
            for at in range(0, len(piece), frames.SECTOR_BYTES):
                sector = piece[at : at + frames.SECTOR_BYTES]
                if bytes(sector[:8]) == frames.MAGIC:
                    header = _owners_header(sector, offset + at, nonces)
                    if header is not None and (header.container, header.epoch) == (container, scan.epoch):
                        _note(scan, header)
                        scan.strays += header.kind is not FrameKind.START
        offset += len(piece)


def _owners_header(sector: memoryview, offset: int, nonces: Collection[bytes]) -> FrameHeader | None:
    """Return the valid header of an owner with one of `nonces`, if there are any; None: there is none."""
    try:
        header = frames.decode_header(sector, offset)
    except FormatVersionError:
        if not nonces:
            raise
        return None  # not of this owner: its START has a version that is known
    return header if isinstance(header, FrameHeader) and (not nonces or header.nonce in nonces) else None


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A valid frame and its position."""

    file: str
    offset: int
    header: FrameHeader
    payload: memoryview


async def read_frames(
    disk: ReadableDisk, accepted: AcceptedFile, first_sequence: int = 0
) -> AsyncIterator[StoredFrame]:
    """Yield the frames of an accepted file from `first_sequence` on, verified again.

    Raises:
        CorruptionError: the file changed since it was scanned.
    """
    scan = accepted.scan
    first = max(first_sequence, accepted.first)
    file = disk.open(scan.name)
    try:
        window = Window(file)
        for sequence in range(first, accepted.last + 1):
            offset = scan.sectors[sequence - scan.first_sequence] * frames.SECTOR_BYTES
            found = await frame_at(window, offset)
            if isinstance(found, Verdict):
                raise CorruptionError(f"{scan.name} at offset {offset}", found.reason or found.condition.value)
            yield StoredFrame(scan.name, offset, *found)
    finally:
        file.close()
