"""Pure codec of the file log's frames (docs/formats/log.md has the byte layout and test vectors).

See docs/design.md#file-log.

A frame starts on a 512-byte sector of a file that was all zero before. A crash may keep any subset of its sectors. So a
frame is *torn* exactly when its end marker is missing, or a sector is zero that the frame does not record as zero. A
frame that is complete in that sense and does not match its checksums is *corrupt*.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tailrace.common.errors import FormatVersionError
from tailrace.kernel import crc32c, is_zero, zero_sectors

Buffer: TypeAlias = bytes | bytearray | memoryview

SECTOR_BYTES: Final = 512
HEADER_BYTES: Final = 128
MAGIC: Final = b"TRLOGFRM"
VERSION: Final = 1
HEADER_END: Final = b"\xa7\x5b\xd9\x6e"
FENCE: Final = b"\xa5"
END_MARKER: Final = b"\xe5\xd7\xb9\xae\x9d\x7b\xcd\xeb"

_HEADER = struct.Struct(">8sHHIQ16sQqQQIIIII28x")
_HEADER_TAIL = struct.Struct(">I4s")
_RUN = struct.Struct(">II")
_START = struct.Struct(">QQI")
_START_ENTRY = struct.Struct(">QQQ")


class FrameKind(enum.IntEnum):
    """The kind of a frame."""

    DATA = 1
    """A payload of the log's owner; the only kind that takes a sequence number."""
    START = 2
    """First frame of every file: lists the valid frames of each epoch. Its sequence is the file's first."""
    MARK = 3
    """A header without a payload: makes a greater log start durable."""


_KINDS: Final = frozenset(int(kind) for kind in FrameKind)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of a frame. ``offset`` is the frame's position in its file: it reveals misdirected writes.

    ``acknowledged_through`` is the greatest sequence that was durable when the frame was written (-1: none),
    ``log_start`` the lowest sequence that recovery may still need.
    """

    kind: FrameKind
    container: int
    epoch: int
    nonce: bytes
    sequence: int
    acknowledged_through: int
    log_start: int
    offset: int
    payload_length: int
    frame_length: int
    run_count: int
    runs_crc: int
    payload_crc: int


class Condition(enum.Enum):
    """What is at a position where a frame may begin."""

    COMPLETE = "complete"
    ABSENT = "absent"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition and, when it is CORRUPT, the reason."""

    condition: Condition
    reason: str = ""


COMPLETE: Final = Verdict(Condition.COMPLETE)
ABSENT: Final = Verdict(Condition.ABSENT)
TORN: Final = Verdict(Condition.TORN)


def _corrupt(reason: str) -> Verdict:
    return Verdict(Condition.CORRUPT, reason)


def frame_length(payload_length: int, run_count: int) -> int:
    """Return the bytes that a frame occupies in its file: a multiple of the sector."""
    unpadded = HEADER_BYTES + payload_length + len(FENCE) + run_count * _RUN.size + len(END_MARKER)
    return -(-unpadded // SECTOR_BYTES) * SECTOR_BYTES


def frame_length_max(payload_length: int) -> int:
    """Return the most bytes that a frame with such a payload can occupy: every other sector is zero."""
    return frame_length(payload_length, payload_length // (2 * SECTOR_BYTES) + 1)


def zero_runs(payload: Sequence[memoryview]) -> list[tuple[int, int]]:
    """Return the runs (first sector, count) of the sectors that are wholly inside the payload and hold only zeros."""
    runs: list[tuple[int, int]] = []
    position = HEADER_BYTES
    open_sector_zero = False  # whether the bytes seen of the sector at `position` are all zero
    for piece in payload:
        taken = 0
        within = position % SECTOR_BYTES
        if within:
            taken = min(SECTOR_BYTES - within, len(piece))
            open_sector_zero = open_sector_zero and is_zero(piece[:taken])
            if open_sector_zero and within + taken == SECTOR_BYTES:
                _extend_runs(runs, position // SECTOR_BYTES)
        whole = (len(piece) - taken) // SECTOR_BYTES * SECTOR_BYTES
        if whole:
            first = (position + taken) // SECTOR_BYTES
            for index in zero_sectors(piece[taken : taken + whole]):
                _extend_runs(runs, first + index)
        if taken + whole < len(piece):
            open_sector_zero = is_zero(piece[taken + whole :])
        position += len(piece)
    return runs


def _extend_runs(runs: list[tuple[int, int]], sector: int) -> None:
    if runs and runs[-1][0] + runs[-1][1] == sector:
        runs[-1] = (runs[-1][0], runs[-1][1] + 1)
    else:
        runs.append((sector, 1))


@dataclass(frozen=True, slots=True)
class FrameIdentity:
    """The fields that all frames of one owner share."""

    container: int
    epoch: int
    nonce: bytes


def encode_frame(
    identity: FrameIdentity,
    kind: FrameKind,
    payload: Sequence[memoryview],
    *,
    sequence: int,
    acknowledged_through: int,
    log_start: int,
    offset: int,
) -> tuple[list[Buffer], int]:
    """Return the buffers of a frame, in order, and their total length. The payload is not copied."""
    payload_length = 0
    payload_crc = 0
    for piece in payload:
        payload_length += len(piece)
        payload_crc = crc32c(piece, payload_crc)
    runs = zero_runs(payload)
    table = b"".join(_RUN.pack(first, count) for first, count in runs)
    length = frame_length(payload_length, len(runs))
    fixed = _HEADER.pack(
        MAGIC, VERSION, kind, identity.container, identity.epoch, identity.nonce, sequence, acknowledged_through,
        log_start, offset, payload_length, length, len(runs), crc32c(table), payload_crc,
    )  # fmt: skip
    padding = length - HEADER_BYTES - payload_length - len(FENCE) - len(table) - len(END_MARKER)
    header = fixed + _HEADER_TAIL.pack(crc32c(fixed), HEADER_END)
    return [header, *payload, FENCE + table + FENCE * padding + END_MARKER], length


def decode_header(sector: Buffer, offset: int) -> FrameHeader | Verdict:
    """Return the header in a frame's first sector, or why there is none. ``offset`` is the sector's position.

    Raises:
        FormatVersionError: the header is valid and of a newer version.
    """
    view = memoryview(sector)
    fixed = view[: _HEADER.size]
    if len(view) < HEADER_BYTES:
        return ABSENT if is_zero(view) else _corrupt("the file ends inside a header")
    if is_zero(view[:SECTOR_BYTES]):
        return ABSENT
    crc, header_end = _HEADER_TAIL.unpack_from(view, _HEADER.size)
    if header_end != HEADER_END or crc != crc32c(fixed):
        if _cut_short(header_end, HEADER_END) and is_zero(view[HEADER_BYTES:SECTOR_BYTES]):
            return TORN
        return _corrupt("the header does not match its checksum")
    magic, version, kind, *rest = _HEADER.unpack(fixed)
    if magic != MAGIC:
        return _corrupt("the header has another magic number")
    if version > VERSION:
        raise FormatVersionError(f"a log frame at offset {offset} has format version {version}, known up to {VERSION}")
    if kind not in _KINDS:
        return _corrupt(f"frames of kind {kind} do not exist")
    header = FrameHeader(FrameKind(kind), *rest)
    if header.offset != offset:
        return _corrupt(f"the frame belongs at offset {header.offset}")
    if header.frame_length != frame_length(header.payload_length, header.run_count):
        return _corrupt("the lengths of the header contradict each other")
    return header


def _cut_short(found: bytes, expected: bytes) -> bool:
    """Return whether `found` is a proper prefix of `expected` followed by zeros: a write that ended there."""
    kept = found.rstrip(b"\0")
    return len(kept) < len(expected) and expected.startswith(kept)


def judge_frame(header: FrameHeader, image: memoryview) -> Verdict:
    """Return whether the bytes of a frame with a valid header are complete, torn or corrupt."""
    if _cut_short(bytes(image[-len(END_MARKER) :]), END_MARKER):
        return TORN
    payload_end = HEADER_BYTES + header.payload_length
    table_end = payload_end + len(FENCE) + header.run_count * _RUN.size
    zeros = [index + 1 for index in zero_sectors(image[SECTOR_BYTES:])]
    if zeros and (not header.run_count or zeros[-1] >= payload_end // SECTOR_BYTES):
        return TORN  # no sector may be zero, or one of those with the table is missing
    table = image[payload_end + len(FENCE) : table_end]
    if crc32c(table) != header.runs_crc:
        return _corrupt("the table of zero sectors does not match its checksum")
    if zeros:
        recorded: set[int] = set()
        next_sector = 1  # the header is in sector 0
        for first, count in _RUN.iter_unpack(table):
            if first < next_sector or first + count > payload_end // SECTOR_BYTES:
                return _corrupt("the table of zero sectors makes no sense")
            recorded.update(range(first, first + count))
            next_sector = first + count
        if not recorded.issuperset(zeros):
            return TORN
    if bytes(image[payload_end : payload_end + 1]) != FENCE or bytes(image[table_end:]).strip(FENCE) != END_MARKER:
        return _corrupt("the end of the frame is damaged")
    if crc32c(image[HEADER_BYTES:payload_end]) != header.payload_crc:
        return _corrupt("the payload does not match its checksum")
    return COMPLETE


def payload_of(header: FrameHeader, image: memoryview) -> memoryview:
    """Return the payload inside a frame's bytes."""
    return image[HEADER_BYTES : HEADER_BYTES + header.payload_length]


@dataclass(frozen=True, slots=True)
class EpochRange:
    """Frames `first` to `last` (inclusive) are valid as written by `epoch`."""

    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Payload of a START frame.

    ``first_sequence`` is the first sequence of this epoch, ``previous_epoch`` the one before it (0: none). ``history``
    lists the accepted frames of earlier epochs, oldest first, without truncated ones. Frames of an earlier epoch
    outside of it are never read.
    """

    first_sequence: int
    previous_epoch: int
    history: tuple[EpochRange, ...]

    def encode(self) -> bytes:
        """Return the payload's bytes."""
        entries = b"".join(_START_ENTRY.pack(entry.epoch, entry.first, entry.last) for entry in self.history)
        return _START.pack(self.first_sequence, self.previous_epoch, len(self.history)) + entries

    @classmethod
    def decode(cls, payload: memoryview) -> StartRecord:
        """Read the record in a payload with a valid checksum. Raises ValueError when it is not such a record."""
        if len(payload) < _START.size:
            raise ValueError("the start record is too short")
        first_sequence, previous_epoch, count = _START.unpack_from(payload)
        if len(payload) != _START.size + count * _START_ENTRY.size:
            raise ValueError("the start record's length is wrong")
        entries = _START_ENTRY.iter_unpack(payload[_START.size :])
        return cls(first_sequence, previous_epoch, tuple(EpochRange(*entry) for entry in entries))
