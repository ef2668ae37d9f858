"""Frames of the wire and events of a segment in pure Python (the twin of ``_frames.pyx``).

A frame is ``int32 type, int32 length, payload``, big-endian, the length without the eight header bytes (wire, "frame").
Inside a segment each event stands under the same header, with type 0 (wire, "Event framing in a segment").
"""

from __future__ import annotations

import array
import struct
from typing import TYPE_CHECKING

from tailrace.kernel._buffers import byte_view, check_range

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

EVENT_LENGTH_MAX = 0x7FFFFFFF

_HEADER = struct.Struct(">ii")
_HEADER_BYTES = _HEADER.size


def scan_frames(
    buffer: Buffer, start: int, end: int, max_frame_length: int, max_frames: int = 1024
) -> tuple[list[tuple[int, int, int]], int]:
    """The complete frames in ``buffer[start:end]`` as (type, payload start, payload length), and where the next begins.

    At most ``max_frames`` are returned, so a caller goes on until it gets fewer. All offsets are of the buffer.
    Raises ValueError for a range outside of the buffer, and as soon as a header is there whose length is negative or
    above ``max_frame_length`` (the payload need not be there); frames before it in the same call are not returned.
    """
    view = byte_view(buffer)
    check_range(start, end, len(view))
    frames: list[tuple[int, int, int]] = []
    position = start
    while len(frames) < max_frames and end - position >= _HEADER_BYTES:
        kind, length = _HEADER.unpack_from(view, position)
        if length < 0:
            raise ValueError(f"frame at {position} has a negative length: {length}")
        if length > max_frame_length:
            raise ValueError(f"frame at {position} is too long: {length} bytes, at most {max_frame_length}")
        if end - position - _HEADER_BYTES < length:
            break
        frames.append((kind, position + _HEADER_BYTES, length))
        position += _HEADER_BYTES + length
    return frames, position


def pack_events(events: Iterable[Buffer]) -> bytes:
    """The events one after the other, each under its header, as a segment stores them.

    Raises TypeError or BufferError for what is no contiguous buffer, ValueError for an event above 2**31 - 1 bytes.
    """
    parts: list[bytes | memoryview] = []
    for event in events:
        view = byte_view(event)
        length = len(view)
        if length > EVENT_LENGTH_MAX:
            raise ValueError(f"an event has at most {EVENT_LENGTH_MAX} bytes: {length}")
        parts.append(_HEADER.pack(0, length))
        parts.append(view)
    return b"".join(parts)


def _event_length(view: memoryview, position: int, max_event_length: int) -> int:
    kind, length = _HEADER.unpack_from(view, position)
    if kind != 0:
        raise ValueError(f"no event begins at {position}: type {kind}")
    if length < 0:
        raise ValueError(f"event at {position} has a negative length: {length}")
    if length > max_event_length:
        raise ValueError(f"event at {position} is too long: {length} bytes, at most {max_event_length}")
    return int(length)


def split_events(
    buffer: Buffer, start: int, end: int, max_event_length: int = EVENT_LENGTH_MAX
) -> tuple[list[tuple[int, int]], int]:
    """The complete events in ``buffer[start:end]`` as (payload start, length), and where the next one begins.

    Raises ValueError for a range outside of the buffer and for a header that is no event's: a type other than 0, a
    length that is negative or above ``max_event_length``.
    """
    view = byte_view(buffer)
    check_range(start, end, len(view))
    events: list[tuple[int, int]] = []
    position = start
    while end - position >= _HEADER_BYTES:
        length = _event_length(view, position, max_event_length)
        if end - position - _HEADER_BYTES < length:
            break
        events.append((position + _HEADER_BYTES, length))
        position += _HEADER_BYTES + length
    return events, position


def split_events_bytes(
    buffer: Buffer, start: int, end: int, max_event_length: int = EVENT_LENGTH_MAX
) -> tuple[list[bytes], int]:
    """As ``split_events``, with a copy of each payload in place of its position."""
    view = byte_view(buffer)
    spans, position = split_events(view, start, end, max_event_length)
    return [bytes(view[first : first + length]) for first, length in spans], position


def gather_events(
    buffer: Buffer, start: int, end: int, stop: int, shift: int, max_event_length: int = EVENT_LENGTH_MAX
) -> tuple[bytes, bytes, bytes, int]:
    """The payloads of the complete events in ``buffer[start:end]`` that begin before ``stop``, without their headers.

    Returns (payloads one after the other, ends, positions, where the next event begins). ``ends`` are native int32: 0,
    then where each payload ends. ``positions`` are native int64: where each event's header begins in the buffer, plus
    ``shift``. Raises ValueError as ``split_events``, and for payloads of 2**31 bytes or more together.
    """
    view = byte_view(buffer)
    check_range(start, end, len(view))
    parts: list[memoryview] = []
    ends, positions = array.array("i", [0]), array.array("q")
    position, total = start, 0
    while position < stop and end - position >= _HEADER_BYTES:
        length = _event_length(view, position, max_event_length)
        following = position + _HEADER_BYTES + length
        if following > end:
            break
        total += length
        if total > EVENT_LENGTH_MAX:
            raise ValueError(f"the events before {following} have {total} bytes, at most {EVENT_LENGTH_MAX}")
        parts.append(view[position + _HEADER_BYTES : following])
        ends.append(total)
        positions.append(position + shift)
        position = following
    return b"".join(parts), ends.tobytes(), positions.tobytes(), position
