"""Decodes the three block forms of appends on the server, and encodes appends on the client.

See docs/protocol/wire.md#appends.

Form A is an ``AppendBlockEnd`` alone. Form B is an ``AppendBlock`` with all bytes, then an empty end. Form C is a block
that was opened before its bytes existed; an embedded ``Padding`` or ``PartialEvent`` frame fills its rest. This module
does not copy event bytes: the parts of an append are views of the receive buffer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import ProtocolError
from tailrace.wire.codec import FRAME_HEADER, FRAME_HEADER_BYTES, decode, frame_header
from tailrace.wire.commands_append import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    ConditionalBlockEnd,
    Padding,
    PartialEvent,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.wire.fields import Buffer

APPEND_BLOCK: Final = AppendBlock.CODE
APPEND_BLOCK_END: Final = AppendBlockEnd.CODE
CONDITIONAL_APPEND: Final = ConditionalAppend.CODE
CONDITIONAL_BLOCK_END: Final = ConditionalBlockEnd.CODE

_ID_BYTES: Final = 16
_PADDING: Final = Padding.CODE
_PARTIAL_EVENT: Final = PartialEvent.CODE
_END_HEAD: Final = struct.Struct(">16sii")  # writer, size of whole events, length of data
_END_TAIL: Final = struct.Struct(">iq")  # number of events, last event number
_REQUEST_ID: Final = struct.Struct(">q")
_NO_EVENT_NUMBER: Final = -(2**63)


@dataclass(slots=True)
class WireAppend:
    """One atomic append as received.

    ``data`` are views of the receive buffer with ``length`` bytes in total, valid until the next read into the buffer.
    ``expected_offset`` is -1 for an unconditional append.
    """

    writer_id: bytes
    data: list[Buffer]
    length: int
    num_events: int
    last_event_number: int
    request_id: int
    expected_offset: int = -1


class BlockAssembler:
    """Joins ``AppendBlock`` and ``AppendBlockEnd`` of one connection; pure.

    The caller keeps the payload of the open block (`open_length` bytes) in place until its end is received.
    """

    __slots__ = ("_writer_id", "open_length")

    def __init__(self) -> None:
        self._writer_id = b""
        self.open_length = -1
        """Payload length of the open block, -1 when none is open."""

    def begin(self, view: memoryview, start: int, length: int) -> bytes:
        """Begin the ``AppendBlock`` at ``view[start:start+length]``; return its writer's id.

        Raises:
            ProtocolError: another block is open, or the payload is too short.
        """
        self.refuse_open_block()
        if length < _ID_BYTES:
            raise ProtocolError(f"AppendBlock: a payload of {length} bytes has no writer id")
        self._writer_id = bytes(view[start : start + _ID_BYTES])
        self.open_length = length
        return self._writer_id

    def refuse_open_block(self) -> None:
        """Raise ProtocolError if a block is open: only its end may follow it (docs/protocol/wire.md#reassembly)."""
        if self.open_length >= 0:
            raise ProtocolError("an append block is open and was not followed by its end")

    def end(self, view: memoryview, start: int, length: int, block_start: int) -> WireAppend:
        """Decode an ``AppendBlockEnd``; `block_start` is where the open block's payload begins now.

        The block stays open until `close`, so that the caller may stop here and return to the same frame.

        Raises:
            ProtocolError: the parts do not fit together (docs/protocol/wire.md#reassembly).
        """
        append, whole_bytes = _decode_end(view, start, length)
        if self.open_length < 0:
            return append
        if append.writer_id != self._writer_id:
            raise ProtocolError("AppendBlockEnd: another writer's block is open")
        _prepend_block(append, view, block_start + _ID_BYTES, self.open_length - _ID_BYTES, whole_bytes)
        return append

    def close(self) -> None:
        """Close the open block: its append was submitted."""
        self.open_length = -1


def _decode_end(view: memoryview, start: int, length: int) -> tuple[WireAppend, int]:
    end = start + length
    data_start = start + _END_HEAD.size
    if data_start > end:
        raise ProtocolError(f"AppendBlockEnd: {length} bytes are too few")
    writer_id, whole_bytes, data_length = _END_HEAD.unpack_from(view, start)
    data_end = data_start + data_length
    if data_length < 0 or data_end + _END_TAIL.size > end:
        raise ProtocolError(f"AppendBlockEnd: data of {data_length} bytes is cut off or negative")
    num_events, last_event_number = _END_TAIL.unpack_from(view, data_end)
    if num_events <= 0:
        raise ProtocolError(f"AppendBlockEnd: {num_events} events in an append")
    _check_event_number(last_event_number)
    position = data_end + _END_TAIL.size
    request_id = _REQUEST_ID.unpack_from(view, position)[0] if end - position >= _REQUEST_ID.size else -1
    data: list[Buffer] = [view[data_start:data_end]] if data_length else []
    return WireAppend(writer_id, data, data_length, num_events, last_event_number, request_id), whole_bytes


def _check_event_number(number: int) -> None:
    if number == _NO_EVENT_NUMBER:
        raise ProtocolError("an event number must not be the value for no number")


def _prepend_block(append: WireAppend, view: memoryview, start: int, length: int, whole_bytes: int) -> None:
    """Put the open block's bytes before those of the end."""
    if not 0 <= whole_bytes <= length:
        raise ProtocolError(f"AppendBlockEnd: {whole_bytes} bytes of whole events in a block of {length}")
    whole_end = start + whole_bytes
    if whole_bytes < length:
        partial = _trailer(view, whole_end, start + length)
        if len(partial):
            append.data.insert(0, partial)
            append.length += len(partial)
        elif append.length:
            raise ProtocolError("AppendBlockEnd: more bytes after a padded block")
    if whole_bytes:
        append.data.insert(0, view[start:whole_end])
        append.length += whole_bytes
    if append.length > limits.APPEND_BLOCK_MAX_BYTES:
        raise ProtocolError(f"an append of {append.length} bytes, at most {limits.APPEND_BLOCK_MAX_BYTES} are allowed")


def _trailer(view: memoryview, start: int, end: int) -> memoryview:
    """Return the partial event in the frame that fills the block's rest; empty for padding."""
    if end - start < FRAME_HEADER_BYTES:
        raise ProtocolError(f"AppendBlock: {end - start} bytes after the whole events are too few for a frame")
    code, length = FRAME_HEADER.unpack_from(view, start)
    start += FRAME_HEADER_BYTES
    if length != end - start:
        raise ProtocolError(f"AppendBlock: a trailer of {length} bytes where {end - start} are left")
    if code == _PARTIAL_EVENT:
        return view[start:end]
    if code != _PADDING:
        raise ProtocolError(f"AppendBlock: a trailer of type {code}")
    return view[start:start]


def decode_conditional(code: int, view: memoryview, start: int, length: int) -> WireAppend:
    """Decode a ``ConditionalAppend`` (adds the event's header) or ``ConditionalBlockEnd`` (raw) as a one-event append.

    Raises:
        ProtocolError: the payload does not hold the command, or the offset is negative.
    """
    command = decode(code, view[start : start + length])
    data: list[Buffer]
    if isinstance(command, ConditionalAppend):
        data = [FRAME_HEADER.pack(0, len(command.data)), command.data]
    elif isinstance(command, ConditionalBlockEnd):
        data = [command.data]
    else:
        raise ProtocolError(f"command {code} is not a conditional append")
    if command.expected_offset < 0:
        raise ProtocolError(f"{type(command).__name__}: negative offset {command.expected_offset}")
    _check_event_number(command.event_number)
    return WireAppend(
        command.writer_id,
        data,
        sum(map(len, data)),
        1,
        command.event_number,
        command.request_id,
        command.expected_offset,
    )


def encode_append(
    writer_id: bytes,
    data: Sequence[Buffer],
    length: int,
    num_events: int,
    last_event_number: int,
    request_id: int,
) -> list[Buffer]:
    """Encode an append of form A as buffers: ``AppendBlockEnd`` around `data`, which has `length` bytes in total.

    The data is not copied. Raises BadRequestError above the largest frame.
    """
    payload_length = _END_HEAD.size + length + _END_TAIL.size + _REQUEST_ID.size
    head = frame_header(APPEND_BLOCK_END, payload_length) + _END_HEAD.pack(writer_id, length, length)
    return [head, *data, _END_TAIL.pack(num_events, last_event_number) + _REQUEST_ID.pack(request_id)]
