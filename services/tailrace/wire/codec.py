"""Encodes and decodes commands (docs/protocol/wire.md#frames, docs/protocol/wire.md#commands); pure functions."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, ProtocolError
from tailrace.wire.command import Command, layout_of
from tailrace.wire.commands import COMMANDS
from tailrace.wire.text import encode_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.wire.fields import Buffer

FRAME_HEADER: Final = struct.Struct(">ii")
FRAME_HEADER_BYTES: Final = FRAME_HEADER.size
PAYLOAD_MAX_BYTES: Final = limits.FRAME_MAX_BYTES - FRAME_HEADER_BYTES

_DATA_APPENDED: Final = struct.Struct(">ii16sqqqq")
_DATA_APPENDED_CODE: Final = 7
_SEGMENT_READ_CODE: Final = 10
_TAIL_OF_SEGMENT_READ: Final = struct.Struct(">q")


def encode_parts(command: Command) -> list[Buffer]:
    """Encode a command's frame as buffers to send in order; large data is not copied.

    Raises:
        BadRequestError: a value does not fit its field, or the frame is larger than 16 MiB - 1.
    """
    parts: list[Buffer] = [b""]
    for slot in layout_of(type(command)):
        slot.field.encode(getattr(command, slot.name), parts)
    length = sum(map(len, parts))
    parts[0] = frame_header(command.CODE, length)
    return parts


def encode(command: Command) -> bytes:
    """Encode a command's frame. Raises BadRequestError as `encode_parts`."""
    return b"".join(encode_parts(command))


def frame_header(code: int, payload_length: int) -> bytes:
    """Encode a frame's header. Raises BadRequestError above the largest frame."""
    if payload_length > PAYLOAD_MAX_BYTES:
        raise BadRequestError(
            f"a frame of {payload_length} bytes does not fit, at most {PAYLOAD_MAX_BYTES} are allowed"
        )
    return FRAME_HEADER.pack(code, payload_length)


def decode(code: int, payload: Buffer) -> Command:
    """Decode the command of a frame.

    Bulk data (append data, read data) stays a view of `payload` and is valid as long as `payload`. Missing optional
    fields take their defaults; bytes after the last field are ignored (docs/protocol/wire.md#frames).

    Raises:
        ProtocolError: unknown code, or the payload does not hold the command.
    """
    kind = COMMANDS.get(code)
    if kind is None:
        raise ProtocolError(f"unknown command {code}")
    view = memoryview(payload)
    position, end = 0, len(view)
    values: list[Any] = []
    try:
        for slot in layout_of(kind):
            # An optional integer that is cut off counts as missing, as in the original decoder.
            if slot.optional and end - position < slot.field.min_bytes:
                break
            value, position = slot.field.decode(view, position, end)
            values.append(value)
    except ProtocolError as error:
        raise ProtocolError(f"{kind.__name__}: {error}") from None
    return kind(*values)


def encode_data_appended(
    writer_id: bytes, event_number: int, previous_event_number: int, request_id: int, segment_length: int
) -> bytes:
    """Encode `DataAppended`, the reply of the hot path."""
    return _DATA_APPENDED.pack(
        _DATA_APPENDED_CODE,
        _DATA_APPENDED.size - FRAME_HEADER_BYTES,
        writer_id,
        event_number,
        previous_event_number,
        request_id,
        segment_length,
    )


def encode_segment_read(
    segment: str,
    offset: int,
    data: Sequence[Buffer],
    length: int,
    *,
    at_tail: bool,
    end_of_segment: bool,
    request_id: int,
) -> bytes:
    """Encode `SegmentRead` with one copy of its data, which is in several buffers of `length` bytes in total."""
    name = encode_text(segment)
    head = b"".join(
        (
            len(name).to_bytes(2, "big"),
            name,
            offset.to_bytes(8, "big", signed=True),
            b"\1" if at_tail else b"\0",
            b"\1" if end_of_segment else b"\0",
            length.to_bytes(4, "big"),
        )
    )
    payload_length = len(head) + length + _TAIL_OF_SEGMENT_READ.size
    return b"".join(
        (frame_header(_SEGMENT_READ_CODE, payload_length), head, *data, _TAIL_OF_SEGMENT_READ.pack(request_id))
    )
