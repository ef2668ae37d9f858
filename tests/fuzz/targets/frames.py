"""Frames of the logs, with the checksums of header, table of zero sectors and payload right."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tailrace.common.errors import FormatVersionError
from tailrace.kernel import crc32c
from tailrace.log import frames
from tailrace.log.frames import Condition, FrameHeader, FrameIdentity, FrameKind, StartRecord, Verdict

DOCUMENTED = (FormatVersionError, ValueError)
"""ValueError: of `StartRecord.decode` alone; `run` makes an AssertionError of all others."""

IDENTITY = FrameIdentity(3, 5, bytes(16))
FIXED = struct.Struct(">8sHHIQ16sQqQQIIIII28x")
WHOLE_HEADER, BUILT = b"\0", b"\1"
LENGTHS = struct.Struct(">BHB")  # kind, payload length in units of 64 bytes, number of runs


def run(data: bytes) -> None:
    """The first byte says what the rest is: a header without its checksum, or lengths, table and payload."""
    found = None
    try:
        if data[:1] == WHOLE_HEADER:
            _of_header(data[1:])
        else:
            found = _of_parts(data[1:])
    except ValueError as error:
        raise AssertionError("a frame's decoder raised ValueError") from error
    if found is not None:
        StartRecord.decode(found)


def _of_header(fixed: bytes) -> None:
    fixed = fixed[: FIXED.size].ljust(FIXED.size, b"\0")
    sector = fixed + struct.pack(">I4s", crc32c(fixed), frames.HEADER_END)
    frames.decode_header(sector.ljust(frames.SECTOR_BYTES, b"\0"), 0)


def _of_parts(data: bytes) -> memoryview | None:
    """The payload of a complete START frame."""
    if len(data) < LENGTHS.size:
        return None
    kind, units, count = LENGTHS.unpack_from(data)
    table = data[LENGTHS.size : LENGTHS.size + 8 * count]
    count = len(table) // 8
    table = table[: 8 * count]
    rest = data[LENGTHS.size + 8 * count :]
    payload = rest.ljust(64 * (units % 64), b"\0")  # zero sectors behind it
    length = frames.frame_length(len(payload), count)
    fixed = FIXED.pack(
        frames.MAGIC, frames.VERSION, kind, 3, 5, bytes(16), 7, 6, 1, 0,
        len(payload), length, count, crc32c(table), crc32c(payload),
    )  # fmt: skip
    image = fixed + struct.pack(">I4s", crc32c(fixed), frames.HEADER_END) + payload + frames.FENCE + table
    image += frames.FENCE * (length - len(image) - len(frames.END_MARKER)) + frames.END_MARKER
    header = frames.decode_header(image[: frames.SECTOR_BYTES], 0)
    if isinstance(header, Verdict):
        return None
    verdict = frames.judge_frame(header, memoryview(image))
    if header.kind is not FrameKind.START or verdict.condition is not Condition.COMPLETE:
        return None
    return frames.payload_of(header, memoryview(image))


def seeds() -> Iterator[bytes]:
    record = StartRecord(4, 1, (frames.EpochRange(1, 0, 3),)).encode()
    yield BUILT + LENGTHS.pack(FrameKind.START, 0, 0) + record
    yield BUILT + LENGTHS.pack(FrameKind.DATA, 32, 1) + struct.pack(">II", 1, 3)
    for kind in FrameKind:
        buffers, _ = frames.encode_frame(
            IDENTITY, kind, [memoryview(b"payload")], sequence=7, acknowledged_through=6, log_start=1, offset=0
        )
        image = b"".join(buffers)
        assert isinstance(frames.decode_header(image, 0), FrameHeader)
        yield WHOLE_HEADER + image[: FIXED.size]
